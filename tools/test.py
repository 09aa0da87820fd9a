"""Installs jaxcc and what its tests need in the environment that runs this, then runs the tests.

Options are passed on to pytest: `.venv/bin/python tools/test.py tests/layout -x`.
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
BUILD = ROOT / "build" / "tests"


def run(*command: str | Path, **extra_env: str) -> None:
    """Runs one step in the checkout; a step that fails ends the run with its exit status."""
    words = [str(word) for word in command]
    print("+", *words, flush=True)
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path, **extra_env})
    if done.returncode:
        sys.exit(done.returncode)


def install() -> None:
    """Installs jaxcc with its test dependencies, and mpi4jax built against the MPI among them."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet")
    run(*pip, ".[test]")
    # mpi4jax takes any nvcc on PATH for a CUDA toolkit; an empty one makes it build for the CPU.
    with tempfile.TemporaryDirectory() as no_cuda:
        run(
            *pip,
            "--no-build-isolation",
            "mpi4jax>=0.9.1",
            MPI4JAX_BUILD_MPICC=str(BIN / "mpicc"),
            CUDA_PATH=no_cuda,
        )


def test_cpp() -> None:
    """Builds and runs the C++ tests."""
    run(
        BIN / "cmake",
        "-S",
        ".",
        "-B",
        BUILD,
        "-G",
        "Ninja",
        "-DJAXCC_PYTHON=OFF",
        "-DJAXCC_TESTS=ON",
    )
    run(BIN / "cmake", "--build", BUILD)
    run(BIN / "ctest", "--test-dir", BUILD, "--output-on-failure", "--timeout", "300")


def test_python(options: list[str]) -> None:
    """Runs pytest on what is installed: `python -m pytest` would put the checkout on the path."""
    run(BIN / "pytest", *options)


if __name__ == "__main__":
    install()
    test_cpp()
    test_python(sys.argv[1:])
