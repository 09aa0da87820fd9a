"""What every test needs before JAX starts: four CPU devices, and a kernel cache of its own."""

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["MPI4JAX_NO_WARN_JAX_VERSION"] = "1"

# A shell's background jobs ignore Ctrl-C, which tests send.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Interpreters that tests start must get the jaxcc of this one, not the folder they are started in.
_spec = importlib.util.find_spec("jaxcc")
assert _spec is not None and _spec.origin is not None, "jaxcc is not installed"
os.environ["PYTHONPATH"] = str(Path(_spec.origin).parents[1])
os.environ["PYTHONSAFEPATH"] = "1"

# Workers of pytest-xdist inherit the folder of the process that starts them.
_own_cache = "PYTEST_XDIST_WORKER" not in os.environ
if _own_cache:
    os.environ["JAXCC_CACHE_DIR"] = tempfile.mkdtemp(prefix="jaxcc-tests-")


@pytest.fixture(scope="session", autouse=True)
def _cache_folder() -> Iterator[None]:
    yield
    if _own_cache:
        shutil.rmtree(os.environ["JAXCC_CACHE_DIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the texts that golden tests compare with; `--share N` runs every
    test, but of the cases of one test only the first and about one in N of the others."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests' golden texts")
    parser.addoption("--share", type=int, default=1, metavar="N", help="run one in N cases")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--share` does. A case's name decides, so that all parameters have their
    turn, and every worker of pytest-xdist decides alike."""
    share: int = config.option.share
    seen: set[str] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        chosen = (
            test not in seen
            or zlib.crc32(item.nodeid.encode()) % share == 0
            or item.get_closest_marker("every_case") is not None
        )
        (kept if chosen else left_out).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares a text with golden/<name>.txt beside the test's file."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / f"{name}.txt"
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n")
        assert text + "\n" == path.read_text()

    return compare


def pytest_report_header() -> str:
    """The versions under test."""
    jax, jaxlib = (importlib.metadata.version(name) for name in ("jax", "jaxlib"))
    return f"jax {jax}, jaxlib {jaxlib}, jaxcc from {os.environ['PYTHONPATH']}"
