"""The processes of a program as the system knows them, so that who waits for one sees it end."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

from jaxcc import _compat

_SPACE = "jaxcc/pid/"
_LOOKUP_MS = 100


def place() -> str:
    """The same for processes that can see one another, and open each other's files in /proc."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"


@functools.cache
def announce(process: int) -> None:
    """Lets the others find this process; to be called once it has joined them."""
    store = _compat.key_value_store()
    if store is not None:
        pid = os.getpid()
        store.key_value_set(f"{_SPACE}{process}", f"{pid} {_born(pid)} {place()}", True)


def pid_of(process: int) -> int:
    """The number of a process of this place; 0 if that is not known."""
    return _found(process)[0]


def has_ended(process: int) -> bool:
    """Whether a process is known to have ended."""
    pid, born = _found(process)
    return pid > 0 and _born(pid) != born


_known: dict[int, tuple[int, str]] = {}


def _found(process: int) -> tuple[int, str]:
    """Its number, and when it began."""
    store = _compat.key_value_store()
    if process not in _known and store is not None:
        # It may not have announced itself so far, or never does.
        with contextlib.suppress(Exception):
            told = store.blocking_key_value_get(f"{_SPACE}{process}", _LOOKUP_MS)
            pid, born, where = told.split(" ", 2)
            _known[process] = (int(pid), born) if where == place() else (0, "")
    return _known.get(process, (0, ""))


def _born(pid: int) -> str:
    """When the process of this number began, in ticks since the machine did; "" if none runs."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie has ended.
    return "" if state in "ZX" else fields[18]
