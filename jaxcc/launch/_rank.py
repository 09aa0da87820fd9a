"""A rank of `jaxcc run`: `python -m jaxcc.launch._rank SEAT TARGET [ARGS]`.

It runs its script or module as Python itself would, with two differences. When the script imports
JAX, JAX is told of all ranks; not before, since a script may set variables for JAX first. And if an
error leaves the script, the launcher hears of it before this process closes the connections that
its peers wait on: else their errors would come first.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from jaxcc.launch._channel import ARRIVED, Launcher
from jaxcc.launch._job import Report, Seat

_PR_SET_PDEATHSIG = 1
# The launcher answers at once, unless it is stopped.
_ANSWER_S = 5.0


def main() -> None:
    text, target, *args = sys.argv[1:]
    seat = Seat.from_text(text)
    _end_with(seat.launcher)
    if seat.cores:
        os.sched_setaffinity(0, seat.cores)
    for stream in (sys.stdout, sys.stderr):
        if seat.lines and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    launcher = Launcher(seat.channel)
    _after_import("jax", lambda: _join(seat, launcher))
    sys.argv = [target, *args]
    try:
        if seat.is_module:
            _set_path(os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _set_path(os.path.dirname(os.path.realpath(target)))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as left:
        code, words = _last(left)
        if code != 0:
            _tell(launcher, Report(f"exit code {code}", words, code))
        sys.exit(code)
    except BaseException as error:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        _tell(launcher, Report(_why(error), _traceback(error), code))
        sys.exit(code)


def _end_with(launcher: int) -> None:
    """Has this process killed when the launcher dies, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        sys.exit(128 + signal.SIGKILL)


def _set_path(folder: str) -> None:
    """Puts `folder` first, where Python has put this module's."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _join(seat: Seat, launcher: Launcher) -> None:
    """Makes JAX know of the other ranks, when all have come so far."""
    from jaxcc import _compat, _peers
    from jaxcc._settings import timeout_s
    from jaxcc.launch._exit import finish_at_exit

    limit = timeout_s()
    answer = launcher.ask(ARRIVED, limit)
    if answer != "":
        from jaxcc.layout import BackendError

        raise BackendError(
            "BACKEND_COORDINATOR",
            f"rank {seat.rank} of {seat.ranks} is alone with JAX",
            because=answer or f"the others have not imported it within {limit:g} s",
            fixes=("import jax on every rank, even where a rank does nothing else",),
        )
    _compat.join(seat.coordinator, seat.ranks, seat.rank, devices=seat.devices, timeout_s=limit)
    _peers.announce(seat.rank)
    finish_at_exit()


def _after_import(name: str, then: Callable[[], None]) -> None:
    """Calls `then` once, when the module has been imported."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Importing(name, then))


class _Importing:
    """Finds the module as the finders behind this one do, and calls `then` behind its code."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = execute_then
        return spec


def _last(left: SystemExit) -> tuple[int, str]:
    """The exit code and what Python prints: what is no number is printed, and means 1."""
    if left.code is None:
        return 0, ""
    return (left.code & 0xFF, "") if isinstance(left.code, int) else (1, f"{left.code}\n")


def _why(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _traceback(error: BaseException) -> str:
    """What Python, or the hook that the script has set, prints of the error."""
    error.__traceback__ = _below_here(error.__traceback__)
    with redirect_stderr(io.StringIO()) as shown:
        sys.excepthook(type(error), error, error.__traceback__)
    return shown.getvalue()


def _below_here(frames: TracebackType | None) -> TracebackType | None:
    """Without what runs the script."""
    ours = (main.__code__.co_filename, runpy.run_path.__code__.co_filename)
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return frames


def _tell(launcher: Launcher, report: Report) -> None:
    """Reports, and waits until the launcher lets this rank end."""
    for stream in (sys.stdout, sys.stderr):
        # A closed one, or one whose reader is gone.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    if launcher.ask(report.to_text(), _ANSWER_S) is None:
        sys.stderr.write(report.text)


if __name__ == "__main__":
    main()
