"""The house: rooms import from lower floors, and BUILD.bazel names all sources and dependences."""

import ast
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxcc"
# Of the rooms on one floor none imports another.
FLOOR = {
    "compat": 0,
    "layout": 1,
    "peers": 1,
    "program": 2,
    "settings": 2,
    "codegen": 3,
    "runtime": 3,
    "launch": 3,
    "schedule": 4,
    "comm": 5,
    "roof": 6,
    "testing": 7,
    "optim": 7,
    "linen": 7,
    "random": 7,
    "nnx": 7,
    "cli": 8,
}
FILES = {"_compat": "compat", "_version": "compat", "__main__": "cli"}
FILES |= {"_coordination": "compat", "_peers": "peers", "_settings": "settings"}
PRIVATE_JAX = ("jax._src", "jax.extend", "jaxlib")
SOURCES = [
    "jaxcc/**/*.py",
    "jaxcc/**/*.pyi",
    "jaxcc/**/*.md",
    "ffi/**/*.cc",
    "ffi/**/*.h",
    "cuda/**/*",
]
SOURCES += ["tests/**/*.py", "examples/**/*.py", "tools/*.*"]


def room_of(module: list[str]) -> str:
    """The room of `jaxcc.<module>`: a folder, or the roof, which most files beside them make."""
    first = module[0] if module else ""
    return FILES.get(first, first if first in FLOOR else "roof")


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports, wherever in it, with the line; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def room_imports(path: Path) -> Iterator[tuple[str, int]]:
    """The rooms of jaxcc that a file imports from."""
    for name, line in imports(path):
        package, *module = name.split(".")
        if package == "jaxcc":
            yield room_of(module), line


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_lower_floors(path: Path) -> None:
    room = room_of(list(path.relative_to(PACKAGE).with_suffix("").parts))
    for other, line in room_imports(path):
        if other != room:
            assert FLOOR[other] < FLOOR[room], f"{path}:{line}: {room} imports from {other}"


def test_only_compat_touches_private_jax() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files()
        if path.parent.name != "_compat" and path.name != "_coordination.py"
        for name, line in imports(path)
        if name.startswith(PRIVATE_JAX)
    ]
    assert not found


def targets() -> dict[str, dict[str, Any]]:
    """The targets of BUILD.bazel by name: the file is Python, given its functions."""
    found: dict[str, dict[str, Any]] = {}

    def rule(**attributes: Any) -> None:
        assert attributes["name"] not in found
        found[attributes["name"]] = attributes

    def glob(patterns: list[str], exclude: tuple[str, ...] = ()) -> list[str]:
        paths = {str(path.relative_to(ROOT)) for one in patterns for path in ROOT.glob(one)}
        return sorted(path for path in paths if not any(fnmatch(path, one) for one in exclude))

    rules = ("cc_library", "cc_test", "filegroup", "py_library")
    names: dict[str, Callable[..., Any]] = {name: rule for name in rules}
    names |= {"glob": glob, "package": lambda **_: None}
    exec(compile((ROOT / "BUILD.bazel").read_text(), "BUILD.bazel", "exec"), dict(names))
    return found


def test_bazel_names_every_source_once() -> None:
    wanted = {
        str(path.relative_to(ROOT))
        for pattern in SOURCES
        for path in ROOT.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
    named = [
        source
        for target in targets().values()
        for kind in ("srcs", "hdrs", "data")
        for source in set(target.get(kind, []))
        if not source.startswith(":")
    ]
    assert not wanted - set(named), "in no target of BUILD.bazel"
    assert len(wanted) > 50
    twice = {source for source in named if named.count(source) > 1}
    shared = ("problems", "processes", "steps", "testing", "worlds")
    assert twice <= {f"ffi/tests/{name}.h" for name in shared}
    assert all((ROOT / source).exists() for source in named)


def test_bazel_names_every_dependence_between_rooms() -> None:
    for name, target in targets().items():
        deps = {dep.removeprefix(":") for dep in target.get("deps", [])}
        for source in target.get("srcs", []):
            if source.startswith("jaxcc/"):
                used = {room for room, _ in room_imports(ROOT / source)} - {name}
                assert used <= deps, f"{source} imports from {used - deps}"


def test_cmake_and_bazel_build_the_same_sources() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "ffi/tests/CMakeLists.txt").read_text()
    for path in sorted((ROOT / "ffi").rglob("*.cc")):
        name = path.stem if path.parent.name == "tests" else str(path.relative_to(ROOT))
        assert name in cmake, f"CMake does not build {path}"
