"""From a kernel's text to a shared library, by the system's C++ compiler."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from jaxcc.codegen import _cache
from jaxcc.codegen._epilogue import Kernel
from jaxcc.layout import CodegenError

# Products and sums are rounded as written, so that a kernel gives the same bits however the work is
# cut. NaN, infinities and signed zeros keep their meaning; errno and exception flags are given up.
_FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
_CANDIDATES = ("g++", "c++", "clang++")
_LIMIT_S = 120


def find_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler: JAXCC_CXX, else g++, c++ or clang++ on PATH.

    Raises:
      CodegenError: CODEGEN_NO_COMPILER if there is none.
    """
    chosen = os.environ.get("JAXCC_CXX")
    for command in [shlex.split(chosen)] if chosen else [[name] for name in _CANDIDATES]:
        if command and (path := shutil.which(command[0])):
            return (path, *command[1:])
    raise CodegenError(
        "CODEGEN_NO_COMPILER",
        f"there is no C++ compiler: {chosen or ', '.join(_CANDIDATES)} not found",
        because="fused kernels are compiled when they are first used",
        fixes=("install g++ (Debian: apt-get install g++)", "set JAXCC_CXX to a C++17 compiler"),
    )


def include_folders() -> tuple[Path, ...]:
    """The folders that hold `protocol/` and `cuda/`, in an installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "include"
    return (installed,) if installed.is_dir() else (package.parent / "ffi", package.parent)


def compile_kernel(kernel: Kernel) -> tuple[str, Path]:
    """The key and the shared library of a kernel, compiled unless the cache has it.

    Raises:
      CodegenError: CODEGEN_NO_COMPILER, CODEGEN_COMPILE, CODEGEN_CACHE.
    """
    compiler = find_compiler()
    text = kernel.text
    key = _digest(text, _headers(), *_FLAGS, *compiler, _version(compiler), _cpu())
    folder = _cache.cache_folder()
    path = folder / f"{key}.so"
    if not _cache.find(path):
        _cache.store(path, _compile(compiler, text, folder))
    return key, path


def _compile(compiler: tuple[str, ...], text: str, folder: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=folder, suffix=".so.tmp")
    os.close(handle)
    built = Path(name)
    command = [*compiler, *_FLAGS, "-I", str(include_folders()[0]), "-o", name, "-", "-lm"]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        message = done.stderr if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        message = str(error)
    if message:
        built.unlink(missing_ok=True)
        raise CodegenError(
            "CODEGEN_COMPILE",
            f"{compiler[0]} did not compile a kernel",
            because=message.strip(),
            fixes=("set JAXCC_CXX to a C++17 compiler (g++ 9 or newer)",),
        )
    return built


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@functools.cache
def _headers() -> str:
    """What the kernels include."""
    names = ("abi.h", "element.h", "gather.h", "math.h", "stream.h")
    folder = include_folders()[0] / "protocol"
    return "".join((folder / name).read_text() for name in names)


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    command = [*compiler, "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S).stdout


@functools.cache
def _cpu() -> str:
    """The processor that -march=native compiles for."""
    lines = [platform.machine(), platform.processor()]
    try:
        with open("/proc/cpuinfo") as file:
            # The first processor's entry; the file is made line by line as it is read.
            for line in file:
                if not line.strip():
                    break
                if line.startswith(("model name", "flags", "Features", "CPU part")):
                    lines.append(line)
    except OSError:
        pass
    return "".join(lines)
