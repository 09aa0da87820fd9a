"""The command line as a user meets it: help, mistakes, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, TextIO

import jax
import pytest

import jaxcc
from jaxcc.cli import main
from jaxcc.layout import catalogue


def run(
    *args: str, stdout: int | TextIO = subprocess.PIPE, **changes: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(
        [sys.executable, "-m", "jaxcc", *args],
        env=environment | changes,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("command", [[], ["demo"], ["explain"], ["check"], ["doctor"], ["run"]])
def test_help_teaches_by_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    assert f"\n  jaxcc {' '.join(command)}" in capsys.readouterr().out.partition("example")[2]


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["check", "--help"]])
def test_what_needs_no_jax_does_not_import_it(command: list[str]) -> None:
    code = """
import sys, jaxcc
from jaxcc.cli import main
assert callable(main) and "check" in dir(jaxcc) and "importlib" not in dir(jaxcc)
try:
    main(sys.argv[1:])
finally:
    heavy = {"jax", "jaxlib", "numpy", "rich"} & set(sys.modules)
    assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"jaxcc {jaxcc.__version__}\n"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], "command"),
        (["dmeo"], "dmeo"),
        (["demo", "--ranks", "0"], "'0' is not a number of ranks, 2 to 16"),
        (["demo", "--ranks", "1000"], "'1000' is not a number of ranks, 2 to 16"),
        (["demo", "--ranks", "two"], "'two' is not a number of ranks"),
        (["demo", "--ranks", "\u0664"], "'\u0664' is not a number of ranks"),
        (["demo", "--steps", "\u0664"], "'\u0664' is not a number of steps"),
        (["demo", "--steps", "-1"], "'-1' is not a number of steps"),
        (["explain", "A", "B"], "jaxcc explain: error: unrecognized arguments: B"),
        (["check"], "required: MODULE:FUNCTION"),
        (["check", "m:f", "f32[8]", "--rank-count", "4"], "jaxcc check: error: unrecognized"),
        (["check", "m:f", "--mesh", "tp"], "'tp' is not a mesh such as tp=4"),
        (["check", "m:f", "--mesh", "tp=2,tp=4"], "'tp=2,tp=4' is not a mesh"),
        (["check", "m:f", "--mesh", "tp=2", "--mesh", "dp=2,tp=4"], "'tp' is given twice"),
        (["check", "m:f", "--mesh", "tp=0"], "'tp=0' is not a mesh"),
        (["check", "m:f", "--mesh", "4=4"], "'4=4' is not a mesh"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(
    args: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    captured = capsys.readouterr()
    assert left.value.code == 2
    assert captured.out == ""
    assert names in captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["check", "no_colon"], "'no_colon' is not MODULE:FUNCTION"),
        (["check", ".m:f"], "'.m:f' is not MODULE:FUNCTION"),
        (["check", "m:f."], "'m:f.' is not MODULE:FUNCTION"),
        (["check", "no_such_module:f"], "no_such_module"),
        (["check", "json:no_such_function"], "json has no no_such_function"),
        (["check", "json:JSONEncoder.no_such_method"], "json has no JSONEncoder.no_such_method"),
        (["check", "json:dumps"], "@jaxcc.typed"),
        (["check", "sys:maxsize"], "sys:maxsize is no function: its type is int"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    args: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"jaxcc {args[0]}: ") and names in line


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize(
    "args",
    [
        ["dmeo"],
        ["check"],
        ["check", "m:f", "--rank-count", "4"],
        ["demo", "--ranks", "0"],
        ["check", "no_colon"],
        ["check", "no_such_module:f"],
        ["explain", "NONSENSE"],
        ["tune"],
    ],
)
def test_with_json_a_mistake_is_a_document_too(
    args: list[str], as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main([*args, *as_json])
    except SystemExit as left:
        code = left.code
    captured = capsys.readouterr()
    assert code == 2 and captured.err
    if not as_json:
        assert captured.out == ""
        return
    document = json.loads(captured.out)
    assert list(document) == ["error"]
    assert document["error"].splitlines()[0] in captured.err


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("LAYOUT_INDIVISIBEL", "LAYOUT_INDIVISIBLE"),
        ("[LAYOUT_CUNTED]", "LAYOUT_COUNTED"),
        ("mpi", "BACKEND_MPI_DEVICES"),
        ("psm", "psum"),
        ("Megatorn", "megatron"),
    ],
)
def test_explain_of_a_slip_shows_what_may_have_been_meant(
    wanted: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", wanted]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line, first, *others = captured.err.splitlines()
    assert line == (
        f"jaxcc explain: there is no error code or page {wanted!r}; did you mean {near}?"
    )
    name, title = first.split(maxsplit=1)
    assert name == near
    assert title == catalogue.GUIDES.get(near, "") or title == catalogue.CODES[near].title
    assert others[-1] == "jaxcc explain lists all" and len(others) < 10


def test_explain_of_nonsense_says_where_the_list_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NONSENSE"]) == 2
    line, last = capsys.readouterr().err.splitlines()
    assert "'NONSENSE'" in line and "did you mean" not in line
    assert last == "jaxcc explain lists all"


def test_explain_without_a_code_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    pages, *groups = capsys.readouterr().out.strip().split("\n\n")
    lines = [line for group in groups for line in group.splitlines()[1:]]
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert len(groups) == len(catalogue.GROUPS) and len(lines) == len(catalogue.CODES)
    assert shown == {code: entry.title for code, entry in catalogue.CODES.items()}
    for name, title in catalogue.GUIDES.items():
        assert any(line.split(maxsplit=1) == [name, title] for line in pages.splitlines())
    assert main(["explain", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"guides": dict(catalogue.GUIDES), "codes": shown}


@pytest.mark.parametrize("page", catalogue.GUIDES)
def test_explain_shows_a_page_of_the_guide(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    assert page in capsys.readouterr().out
    assert main(["explain", page]) == 0
    assert capsys.readouterr().out.startswith(f"# {catalogue.GUIDES[page]}\n")
    assert main(["explain", page.upper(), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"guide": page, "explanation": catalogue.guide(page)}


def test_explain_shows_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "layout_indivisible", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["code"] == "LAYOUT_INDIVISIBLE"
    assert "divide" in shown["explanation"]


PROGRAM = """\
import jax
from jax.sharding import AbstractMesh, AxisType
import jaxcc
from jaxcc import Replicated, Sliced

mesh = AbstractMesh((2,), ("tp",), axis_types=(AxisType.Auto,))
layouts = dict(mesh=mesh, in_layouts=(Sliced(1), Sliced(0), Replicated), out_layouts=Replicated)

@jaxcc.typed(**layouts)
def right(x, w, b):
    return jax.lax.psum(x @ w, "tp") + b

@jaxcc.typed(**layouts)
def wrong(x, w, b):
    return jax.lax.psum(x @ w + b, "tp")

@jaxcc.typed(**layouts)
def choosy(x, w, b):
    raise ValueError("I want\\nother shapes")

@jaxcc.typed(**layouts)
def leaving(x, w, b):
    raise SystemExit(7)

def loss(p, x, act):
    return jax.lax.pmean((act(x @ p["w"]) ** 2).mean(), "tp")

def report(f):
    p, x = {"w": jax.ShapeDtypeStruct((8, 6), "float32")}, jax.ShapeDtypeStruct((4, 8), "float32")
    layouts = (Replicated, Sliced(0))
    relu = lambda p, x: f(p, x, jax.nn.relu)
    return jaxcc.check(relu, p, x, mesh=mesh, in_layouts=layouts, grad=0)

def own_report():
    return report(loss)

def own_findings():
    return report(lambda p, x, act: 2 * loss(p, x, act) / jax.lax.axis_size("tp"))

def nothing():
    pass
"""

ANNOTATED = """\
from __future__ import annotations
from typing import Annotated, Any
import jax
import jaxcc
from jax.sharding import AbstractMesh
from jaxcc import Replicated, Sliced, on
from jaxtyping import Array, Bool, Float, Float16, Int, Key

mesh = AbstractMesh((2, 3), ("dp", "tp"))

def sized(
    x: Annotated[Float[Array, "12 rows=8"], on(tp=Sliced(0))],
    n: Annotated[Int[Array, ""], Replicated],
    h: Annotated[Float16[Array, "2"], Replicated],
    scale: float = 2.0,
    *,
    mask: Annotated[Bool[Array, "12"], on(tp=Sliced(0))],
) -> Any:
    return jax.lax.psum((x * n * scale).sum(0, where=mask[:, None]), "tp"), h

def named(x: Annotated[Float[Array, "b d"], on(tp=Sliced(1))]) -> Annotated[Array, Replicated]:
    return jax.lax.psum(x.sum(1), "tp")

def bare(x):
    return x

def wrong(x: Annotated[Float[Array, "12"], Sliced(0)]):
    return jax.lax.psum(x.mean(), "tp"), jax.lax.psum(x.max(), "tp")

def noisy(k: Annotated[Key[Array, ""], Replicated], x: Annotated[Float[Array, "8"], Sliced(0)]):
    return x * jax.random.normal(k)

typed = jaxcc.typed(mesh=mesh)(named)

class Model:
    def __init__(self, ranks: int):
        self.ranks = ranks

    def mean(self, x: Annotated[Float[Array, "12"], on(tp=Sliced(0))]) -> Any:
        return jax.lax.psum(x.sum(), "tp") / self.ranks

    @jaxcc.typed(static_argnames="self")
    def decorated(self, x: Annotated[Float[Array, "12"], Sliced(0)]) -> Any:
        return x

    @jaxcc.typed
    def arrays(self, x: Annotated[Float[Array, "12"], Sliced(0)]) -> Any:
        return x

    def report(self):
        x = jax.ShapeDtypeStruct((12,), "float32")
        return jaxcc.check(self.mean, x, mesh=mesh, in_layouts=on(tp=Sliced(0)))

class Models:
    right = Model(1)

right = Models.right
"""

TYPES = ("f32[4,8]", "float32[8, 6]", "f32[6]")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    name = f"program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_check_accepts_a_right_function(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:right", *TYPES]) == 0
    assert "Replicated" in capsys.readouterr().out


def test_check_finds_a_wrong_function(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:wrong", *TYPES, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["clean"] is False
    (finding,) = shown["findings"]
    assert finding["code"].startswith("LAYOUT_")
    assert finding["line"]["line"] == 1 + PROGRAM.splitlines().index(
        '    return jax.lax.psum(x @ w + b, "tp")'
    )


def test_check_refuses_what_is_no_type(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:right", "f32 4 8"]) == 2
    assert "'f32 4 8' is not an array type such as f32[8,1024]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["f7[4]", "object[4]", "m8[4]", "[4]", "f32[n]", "f32", "f32[\u0664]"]
)
def test_check_refuses_dtypes_that_jax_has_not(
    program: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{program}:right", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(text) in line


def test_check_of_a_key(annotated: str, capsys: pytest.CaptureFixture[str]) -> None:
    for types in ([], ["key<fry>[]", "f32[8]"], ["key<rbg>[]", "f32[8]"]):
        assert main(["check", f"{annotated}:noisy", *types, "--mesh", "tp=2"]) == 0
        assert "key<" in capsys.readouterr().out


def test_check_takes_options_anywhere(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = TYPES
    assert main(["check", f"{program}:right", "--ranks", "4", first, "--json", *others]) == 0
    assert json.loads(capsys.readouterr().out)["clean"] is True


def test_check_says_what_the_function_raises(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{program}:choosy", *TYPES]) == 2
    line = 1 + PROGRAM.splitlines().index('    raise ValueError("I want\\nother shapes")')
    where = f"{program}.py:{line}"
    first, *notes = capsys.readouterr().err.splitlines()
    assert first == (
        f"jaxcc check: {program}:choosy raises ValueError: I want other shapes ({where})"
    )
    assert any("f32[4,8]" in note for note in notes)


def test_check_of_a_function_that_exits(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:leaving", *TYPES]) == 2
    assert f"{program}:leaving raises SystemExit: 7 (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("types", "what"),
    [
        (TYPES[:2], "missing a required argument: 'b'; 2 given"),
        ((*TYPES, "f32[6]"), "too many positional arguments; 4 given"),
    ],
)
def test_check_for_a_wrong_number_of_arguments(
    types: tuple[str, ...], what: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{program}:right", *types]) == 2
    assert capsys.readouterr().err == f"jaxcc check: {program}:right: {what}\n"


@pytest.fixture
def annotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of functions with annotations, in the current folder."""
    name = f"annotated_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ANNOTATED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_check_of_a_plain_function_for_a_mesh_and_its_own_sizes(
    annotated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{annotated}:sized", "--mesh", "tp=4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["sizes"] == [{"tp": 4}, {"tp": 2}]
    assert [(one["name"], one["type"], one["layout"]) for one in report["arguments"]] == [
        ("x", "f32[12,8]", "Sliced(0)@tp"),
        ("n", "i32[]", "Replicated"),
        ("h", "f16[2]", "Replicated"),
        ("mask", "bool[12]", "Sliced(0)@tp"),
    ]
    assert report["communication"] == [
        {"op": "all-reduce", "axes": ["tp"], "count": 1, "bytes": 4 * 8}
    ]
    assert [one["type"] for one in report["results"]] == ["f32[8]", "f16[2]"]


def test_check_takes_arguments_by_name(annotated: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["check", f"{annotated}:sized", "--mesh", "tp=2", "f32[12,8]"]
    assert main([*args, "h=f16[2]", "n=i32[]", "mask=bool[12]"]) == 0
    capsys.readouterr()
    assert main([*args, "h=f16[2]", "i32[]"]) == 2
    assert "'i32[]' has no name" in capsys.readouterr().err


def test_a_mesh_in_the_place_of_the_functions_own(
    annotated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, shape = f"{annotated}:typed", "f32[2,30]"
    assert main(["check", target, shape]) == 0
    assert capsys.readouterr().out.startswith("rank-invariant for dp=2, tp=3 (")
    assert main(["check", target, shape, "--mesh", "pp=1,tp=5"]) == 0
    assert capsys.readouterr().out.startswith("rank-invariant for pp=1, tp=5 (")
    assert main(["check", target, shape, "--mesh", "tp=4"]) == 1
    assert "[LAYOUT_INDIVISIBLE]" in capsys.readouterr().out
    assert main(["check", target, shape, "--mesh", "rows=2"]) == 1
    assert "'tp', but the mesh has rows" in capsys.readouterr().out


def test_check_of_what_an_instance_has(annotated: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("right.mean", "Models.right.mean"):
        assert main(["check", f"{annotated}:{path}", "--mesh", "dp=3", "--mesh", "tp=2"]) == 0
        assert capsys.readouterr().out.startswith("rank-invariant for dp=3, tp=2 (")
    assert main(["check", f"{annotated}:right.report"]) == 0
    assert main(["check", f"{annotated}:right.decorated", "--mesh", "tp=2"]) == 0
    assert main(["check", f"{annotated}:right.arrays", "--mesh", "tp=2"]) == 1


def test_all_findings_are_in_the_document(
    annotated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{annotated}:wrong", "--mesh", "tp=3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert len(found) == 2 and {one["code"] for one in found} <= set(catalogue.CODES)
    assert found[0]["line"]["file"] == str(Path.cwd() / f"{annotated}.py")


def test_a_check_of_the_users_own(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:own_report", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["clean"] and shown["report"]["results"]
    assert main(["check", f"{program}:own_findings"]) == 1
    assert "LAYOUT_SCALE" in capsys.readouterr().out
    assert main(["check", f"{program}:nothing"]) == 2
    assert "returns NoneType, not what jaxcc.check returns" in capsys.readouterr().err
    for more in (["--mesh", "tp=2"], ["f32[8]"]):
        assert main(["check", f"{program}:own_report", *more]) == 2
        assert "leave out --mesh and the arguments' types" in capsys.readouterr().err


def test_with_json_an_exception_is_a_document_too(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{program}:choosy", *TYPES, "--json"]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "ValueError: I want other shapes" in document["error"]
    assert document["error"] in captured.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["named", "--mesh", "tp=2"], "the annotation of 'x' does not say its sizes"),
        (["named", "f32[2,4]"], "has no mesh; give one, for example --mesh tp=4"),
        (["bare", "f32[2,4]", "--mesh", "tp=2"], "has no layouts; annotate its parameters"),
        (["mesh", "f32[2,4]", "--mesh", "tp=2"], "is no function: its type is AbstractMesh"),
        (["Model.mean", "--mesh", "tp=2"], "has no instance for its parameter 'self'"),
        (["Model.decorated", "--mesh", "tp=2"], "has no instance for its parameter 'self'"),
    ],
)
def test_what_a_check_needs(
    args: list[str], said: str, annotated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    function, *others = args
    assert main(["check", f"{annotated}:{function}", *others]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_example_in_the_help_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    _, _, example = capsys.readouterr().out.partition("example:")
    commands, _, program = example.partition("with layer.py in this folder:")
    text = program.partition("\nA function")[0]
    (tmp_path / "layer.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lines = [shlex.split(line) for line in commands.strip().splitlines()]
    assert len(lines) == 2
    for program, *args in lines:
        assert program == "jaxcc" and main(args) == 0
        assert "Sliced(0)@tp" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["f64[4,8]", "int64[4,8]", "c128[4,8]"])
def test_check_of_64_bits_says_how_to_turn_them_on(
    program: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with jax.enable_x64(False):
        assert main(["check", f"{program}:right", text, *TYPES[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(text) in line and "JAX_ENABLE_X64=1" in line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1\nraise ValueError('no\\nway')", "ValueError: no way ({}:2)"),
        ("assert False", "AssertionError ({}:1)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' ({}:1)"),
        ("\ndef f(:", "SyntaxError: invalid syntax ({}, line 2)"),
        ("import sys; sys.exit('bye')", "SystemExit: bye ({}:1)"),
        ("import json; json.loads('[')", "JSONDecodeError: Expecting value: {other} ({}:1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    text: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"broken_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["check", f"{name}:f", "f32[8]"]) == 2
    wanted = what.format(f"{name}.py", other="line 1 column 2 (char 1)")
    assert capsys.readouterr().err == f"jaxcc check: cannot import {name}: {wanted}\n"


@pytest.mark.parametrize(
    "text",
    [
        'mesh = jax.make_mesh((640,), ("tp",))',
        "devices = np.array(jax.devices()[:640]).reshape(2, 320)",
    ],
)
def test_a_module_that_wants_more_devices_is_told_how_to_have_them(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"wide_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"import jax\nimport numpy as np\n{text}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["check", f"{name}:f", "f32[8]"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name}.py:3" in line and f"{jax.device_count()} here: --ranks N" in line


@pytest.mark.parametrize("args", [["explain"], ["explain", "--json"], ["demo", "--quick"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(args: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = run(*args, stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "jaxcc: cannot write: No space left on device"
    assert "Traceback" not in done.stderr and done.stderr.count("No space") == 1


@pytest.mark.parametrize("args", [["explain"], ["explain", "--json"], ["--help"]])
def test_output_that_nobody_reads_ends_quietly(args: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = run(*args, stdout=gone, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_is_one_line() -> None:
    command = [sys.executable, "-m", "jaxcc", "demo"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            # The first line comes when all is imported.
            assert process.stderr.readline() == "attention tail ...\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "jaxcc: interrupted" and "Traceback" not in err


def test_python_dash_m_is_the_command_line() -> None:
    done = run("check", "no_such_module:f")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
