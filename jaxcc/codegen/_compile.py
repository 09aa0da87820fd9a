"""From a kernel's text to a shared library, by the system's C++ compiler."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from jaxcc.codegen import _cache
from jaxcc.codegen._epilogue import Kernel
from jaxcc.codegen._source import Source
from jaxcc.layout import CodegenError

# Products and sums are rounded as written, so that a kernel gives the same bits however the work is
# cut. NaN, infinities and signed zeros keep their meaning; errno and exception flags are given up.
_FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
_CANDIDATES = ("g++", "c++", "clang++")
_LIMIT_S = 60
_HEADERS = (
    *("abi", "element", "gamma", "gather", "inverse", "math", "math64", "random"),
    *("reductions", "send", "stream", "total", "trig64"),
)
_FIXES = ("install g++ (Debian: apt-get install g++)", "set JAXCC_CXX to a C++17 compiler")


def find_compiler() -> tuple[str, ...]:
    """The command of the C++ compiler: JAXCC_CXX, else g++, c++ or clang++ on PATH.

    Raises:
      CodegenError: CODEGEN_NO_COMPILER if there is none.
    """
    chosen = os.environ.get("JAXCC_CXX")
    try:
        commands = [shlex.split(chosen)] if chosen else [[name] for name in _CANDIDATES]
    except ValueError as error:
        raise CodegenError(
            "CODEGEN_NO_COMPILER",
            f"JAXCC_CXX is not a command: {chosen}",
            because=str(error),
            fixes=_FIXES,
        ) from None
    for command in commands:
        if command and (path := shutil.which(command[0])):
            return (path, *command[1:])
    raise CodegenError(
        "CODEGEN_NO_COMPILER",
        f"there is no C++ compiler: {chosen or ', '.join(_CANDIDATES)} not found",
        because="fused kernels are compiled when they are first used",
        fixes=_FIXES,
    )


def include_folders() -> tuple[Path, ...]:
    """The folders that hold `protocol/` and `cuda/`, in an installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "include"
    return (installed,) if installed.is_dir() else (package.parent / "ffi", package.parent)


def compile_kernel(kernel: Kernel | Source) -> tuple[str, Path]:
    """The key and the shared library of a kernel, compiled unless the cache has it.

    Raises:
      CodegenError: CODEGEN_NO_COMPILER, CODEGEN_COMPILE, CODEGEN_CACHE.
    """
    compiler = find_compiler()
    text = kernel.text
    key = _digest(text, _headers(), *_FLAGS, *compiler, _version(compiler), _cpu())
    folder = _cache.cache_folder()
    path = folder / f"{key}.so"
    # A whole library may not load either, where machines that differ share the folder.
    if not _cache.find(path) or _load_problem(path):
        _cache.store(path, _compile(compiler, text, folder))
    return key, path


def _compile(compiler: tuple[str, ...], text: str, folder: Path) -> Path:
    """A new file in `folder`: a library that loads."""
    built = _cache.new_cache_file(folder)
    include = ("-I", str(include_folders()[0]))
    try:
        done = _run((*compiler, *_FLAGS, *include, "-o", str(built), "-", "-lm"), text)
        if done.returncode:
            raise _failure(compiler, done.stderr or f"it ended with status {done.returncode}")
        if problem := _load_problem(built):
            raise _failure(compiler, problem)
    except BaseException:
        built.unlink(missing_ok=True)
        raise
    return built


def _run(command: tuple[str, ...], text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a compiler on `text`.

    Raises:
      CodegenError: CODEGEN_COMPILE if it does not start, or takes too long.
    """
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                out, message = process.communicate(text, timeout=_LIMIT_S)
            except BaseException:
                # With all that the compiler started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failure(command, str(error)) from None
    return subprocess.CompletedProcess(command, process.returncode, out, message)


def _failure(compiler: tuple[str, ...], message: str) -> CodegenError:
    return CodegenError(
        "CODEGEN_COMPILE",
        f"{compiler[0]} did not compile a kernel",
        because=message.strip(),
        fixes=("set JAXCC_CXX to a C++17 compiler (g++ 9 or newer)",),
    )


def _load_problem(path: Path) -> str:
    """Why `path` is not a kernel's library on this machine; empty if it is."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"what it made cannot be loaded: {error}"
    found = hasattr(library, "jaxcc_kernel_tile")
    # The file may be replaced, so nothing of it is kept.
    _ctypes.dlclose(library._handle)
    return "" if found else "what it made holds no kernel"


def _digest(*parts: str) -> str:
    # Environment variables need not be UTF-8.
    whole = "\0".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(whole).hexdigest()[:24]


@functools.cache
def _headers() -> str:
    """What the kernels include."""
    folder = include_folders()[0] / "protocol"
    return "".join((folder / f"{name}.h").read_text() for name in _HEADERS)


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    return _run((*compiler, "--version")).stdout


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
