"""Large results keep their memory from call to call. Importing this imports no JAX.

glibc maps a block of more than 32 MiB anew for each allocation and gives it back when it is freed:
each call of a program then touches fresh pages for its result, which takes longer than most of what
it computes. The settings here keep such blocks in one heap, for all threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_MMAP_THRESHOLD = 1 << 30
_TRIM_THRESHOLD = (1 << 31) - 1  # of a heap's free end; mallopt takes an int
_TOP_PAD = 64 << 20
_ARENAS = 1  # a thread's own arena cannot hold a block of more than 64 MiB

# mallopt's names are macros of malloc.h.
_MALLOPT = {-3: _MMAP_THRESHOLD, -1: _TRIM_THRESHOLD, -2: _TOP_PAD, -8: _ARENAS}
_TUNABLES = {
    "glibc.malloc.mmap_threshold": _MMAP_THRESHOLD,
    "glibc.malloc.trim_threshold": _TRIM_THRESHOLD,
    "glibc.malloc.top_pad": _TOP_PAD,
    "glibc.malloc.arena_max": _ARENAS,
    "glibc.malloc.hugetlb": 1,  # transparent huge pages in the heap; mallopt has no name for it
}
TUNABLES = "GLIBC_TUNABLES"
"""The variable from which glibc takes its settings when a process starts."""

_called: list[bool] = []


def tune_malloc() -> None:
    """Makes this process keep the memory of large results: call it before JAX starts.

    JAX starts when it is first asked for devices or runs something; importing it does not. Memory
    that was once used is not given back to the system before the process ends. `jaxcc run` does
    the same for its ranks, by `malloc_environment`. A second call changes nothing.

    Raises:
      BackendError: BACKEND_MALLOC if JAX has started, whose threads keep the memory that they have,
        or if this process allocates by something other than glibc.
    """
    if is_tuned():
        return
    if problem := _why_not():
        because, fix = problem
        from jaxcc.layout import BackendError

        raise BackendError(
            "BACKEND_MALLOC", "tune_malloc would have no effect", because=because, fixes=(fix,)
        )
    libc = ctypes.CDLL(None)
    for name, value in _MALLOPT.items():
        libc.mallopt(name, value)
    _called.append(True)


def is_tuned() -> bool:
    """Whether this process keeps the memory of large results: by a call, or by its environment."""
    return bool(_called) or not malloc_environment()


def malloc_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables with which a process that is started is tuned from its first line on.

    Args:
      environment: that of the process, by default this one's; what it sets for glibc's malloc
        stays.

    Returns:
      The variables to set, empty where nothing is left to set: `{**os.environ,
      **malloc_environment()}`.
    """
    environment = os.environ if environment is None else environment
    given = environment.get(TUNABLES, "")
    named = {setting.partition("=")[0] for setting in given.split(":")}
    added = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in named]
    return {TUNABLES: ":".join([given] * bool(given) + added)} if added else {}


def allocator() -> str:
    """What gives this process its memory: "glibc 2.36", or the file that took its place."""
    program, libc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    version = libc.gnu_get_libc_version
    version.restype = ctypes.c_char_p
    if _address(program.malloc) == _address(libc.malloc):
        return f"glibc {version().decode()}"
    preloaded = os.environ.get("LD_PRELOAD", "").split()
    return os.path.basename(preloaded[0]) if preloaded else "not glibc"


def _why_not() -> tuple[str, str] | None:
    """Why settings would have no effect, and what helps."""
    try:
        found = allocator()
    except (OSError, AttributeError):
        found = "another C library"
    if not found.startswith("glibc"):
        return f"it sets glibc's malloc, and memory comes from {found}", "leave the call out"
    if "jax" in sys.modules:
        from jaxcc._compat import backend_started

        if backend_started():
            return (
                "JAX has started, and its threads have memory of their own",
                "call it before the first line that asks for devices or runs something; or set "
                f"{TUNABLES}={malloc_environment({})[TUNABLES]} before Python starts",
            )
    return None


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # pyright: ignore[reportArgumentType]
