"""Installs jaxcc and what its tests need in the environment that runs this, then runs the tests.

`tools/test.py` builds a wheel, installs it, and runs the C++ and the Python tests; with
`--wheel FILE` it installs that wheel and runs the Python tests alone. Other options are pytest's.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

if sys.version_info < (3, 12):  # noqa: UP036
    sys.exit(
        f"jaxcc needs Python 3.12 or newer; this is {sys.version.split()[0]} at {sys.executable}"
    )

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sysconfig.get_path("scripts"))
WHEELS = ROOT / "build" / "wheel"
CPP_TESTS = ROOT / "build" / "tests"
PIP = (sys.executable, "-m", "pip")


def run(*command: str | Path, **extra_env: str) -> None:
    """Runs one step in the checkout; a step that fails ends the run with its exit status."""
    words = [str(word) for word in command]
    print("+", *words, flush=True)
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path, **extra_env})
    if done.returncode:
        sys.exit(done.returncode)


def build() -> Path:
    """Builds the wheel; one without the C++ part, which is made where no compiler is, fails."""
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    run(*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", WHEELS, ".")
    (wheel,) = WHEELS.glob("*.whl")
    if "-abi3-" not in wheel.name:
        sys.exit(f"{wheel.name} lacks the C++ part: see what `pip wheel -v .` says of it")
    return wheel


def install(wheel: Path) -> None:
    """Installs the wheel, its test dependencies, and mpi4jax built against the MPI among them."""
    run(*PIP, "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
    run(*PIP, "install", "--quiet", f"{wheel}[test]")
    # mpi4jax takes any nvcc on PATH for a CUDA toolkit; an empty one makes it build for the CPU.
    # pip's cache may hold one built with the headers of another jaxlib, which this one refuses.
    with tempfile.TemporaryDirectory() as no_cuda:
        run(
            *(*PIP, "install", "--quiet", "--no-cache-dir", "--no-build-isolation"),
            "mpi4jax>=0.9.1",
            MPI4JAX_BUILD_MPICC=str(BIN / "mpicc"),
            CUDA_PATH=no_cuda,
        )


def test_cpp() -> None:
    """Builds and runs the C++ tests."""
    options = ("-G", "Ninja", "-DJAXCC_PYTHON=OFF", "-DJAXCC_TESTS=ON")
    run(BIN / "cmake", "-S", ".", "-B", CPP_TESTS, *options)
    run(BIN / "cmake", "--build", CPP_TESTS)
    run(BIN / "ctest", "--test-dir", CPP_TESTS, "--output-on-failure", "--timeout", "300", "-j2")


def test_python(options: list[str]) -> None:
    """Runs pytest on what is installed: `python -m pytest` would put the checkout on the path."""
    run(BIN / "pytest", "-n", "auto", *options)


def main(options: list[str]) -> None:
    """Installs and tests."""
    if options[:1] == ["--wheel"]:
        install(Path(options[1]).resolve())
        test_python(options[2:])
    else:
        install(build())
        test_cpp()
        test_python(options)


if __name__ == "__main__":
    main(sys.argv[1:])
