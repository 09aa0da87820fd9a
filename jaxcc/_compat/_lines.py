"""Where in the user's program something was written."""

from __future__ import annotations

import contextlib
import functools
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax._src import source_info_util as _source_info
from jax.extend import source_info_util

_TRACING_ROOMS = (
    *("layout", "program", "schedule", "codegen", "runtime", "comm", "optim", "nnx", "linen"),
    "random",
)


@dataclass(frozen=True)
class SourceLine:
    """Where a user wrote something: file, line (from 1), columns (from 0) and function name.

    `within` is where it is in a library that the line calls, such as `optax/_src/base.py:7`.
    """

    file: str
    line: int
    column: int
    end_column: int | None
    function: str
    within: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_line(eqn: Any) -> SourceLine | None:
    """The user's line that made this equation, or None if JAX made it by itself.

    What a library made is the user's where that called it.
    """
    traceback = eqn.source_info.traceback
    inner = frame = _source_info.user_frame(traceback)
    if inner is None or frame is None:
        return None
    library = _library(inner.file_name)
    if library is not None:
        frames = _source_info.user_frames(traceback)
        frame = next((f for f in frames if _library(f.file_name) is None), inner)
    within = f"{library}:{inner.start_line}" if frame is not inner else ""
    same_line = frame.end_line == frame.start_line
    return SourceLine(
        frame.file_name,
        frame.start_line,
        frame.start_column,
        frame.end_column if same_line else None,
        frame.function_name,
        within,
    )


def is_transposed(eqn: Any) -> bool:
    """Whether reverse-mode differentiation made this equation in its backward pass."""
    return "transpose(" in str(eqn.source_info.name_stack)


@functools.cache
def _library(file: str) -> str | None:
    """A file's path within the folder that packages are installed in; None for a user's file."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return None


@contextlib.contextmanager
def at_line_of(eqn: Any) -> Iterator[None]:
    """Gives what is traced inside the user's line of `eqn`."""
    if eqn is None:
        yield
        return
    with _source_info.user_context(eqn.source_info.traceback):
        yield


def _hide_from_user_lines() -> None:
    """Makes JAX attribute what jaxcc traces to the line that called it."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for room in _TRACING_ROOMS:
        source_info_util.register_exclusion(os.path.join(here, room) + os.sep)


# Before the first trace: every room that traces imports this module.
_hide_from_user_lines()
