"""Every use of `jax.extend` and `jax._src`, and every difference between supported JAX versions.

JAX promises nothing about `jax.extend` or its private modules, and primitives change their names between releases;
all other modules see only what is defined here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import source_info_util as _source_info
from jax.extend import core as _core

JAX_VERSION: tuple[int, ...] = tuple(int(p) for p in jax.__version__.split(".")[:3])

Literal = _core.Literal
Var = _core.Var
Jaxpr = _core.Jaxpr
JaxprEqn = _core.JaxprEqn
Primitive = _core.Primitive

# One name for each operation, whatever the JAX version calls it.
_ALIASES: Mapping[str, str] = {
    "pjit": "jit",
    "psum_invariant": "psum",
    "all_gather_invariant": "all_gather",
    "call": "eval_jaxpr",
    "closed_call": "eval_jaxpr",
    "core_call": "eval_jaxpr",
    "checkpoint": "remat",
    "remat2": "remat",
}


def op_name(eqn: Any) -> str:
    """The name of an equation's primitive, the same in every supported JAX version."""
    name: str = eqn.primitive.name
    return _ALIASES.get(name, name)


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr itself, whether or not this JAX version wraps it in a ClosedJaxpr."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxpr_consts(jaxpr: Any) -> list[Any]:
    """The values of the jaxpr's constvars."""
    return list(getattr(jaxpr, "consts", ()))


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs in an equation's parameters."""
    yield from _core.jaxprs_in_params(eqn.params)


def axis_names(eqn: Any) -> tuple[str, ...]:
    """The mesh axes that a collective equation runs over."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return (axes,) if isinstance(axes, str) else tuple(axes)


@dataclass(frozen=True)
class SourceLine:
    """Where a user wrote something: a file, a line (from 1), columns (from 0) and a function name."""

    file: str
    line: int
    column: int
    end_column: int | None
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_line(eqn: Any) -> SourceLine | None:
    """The user's line that made this equation, or None if JAX made it by itself."""
    frame = _source_info.user_frame(eqn.source_info.traceback)
    if frame is None:
        return None
    same_line = frame.end_line == frame.start_line
    return SourceLine(
        frame.file_name,
        frame.start_line,
        frame.start_column,
        frame.end_column if same_line else None,
        frame.function_name,
    )


def bind(eqn: Any, *values: Any) -> list[Any]:
    """Runs or traces one equation on `values`, keeping the user's line on what it makes."""
    with _source_info.user_context(eqn.source_info.traceback), eqn.ctx.manager:
        # 0.11 replaced get_bind_params's list of functions by keyword parameters.
        params = eqn.primitive.get_bind_params(eqn.params)
        if isinstance(params, tuple):
            functions, params = params
            out = eqn.primitive.bind(*functions, *values, **params)
        else:
            out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def hide_from_user_lines(*folders: str) -> None:
    """Makes JAX attribute what code in `folders` traces to the line that called it."""
    from jax.extend import source_info_util

    for folder in folders:
        source_info_util.register_exclusion(folder + os.sep)


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes over which JAX takes `x` to differ between ranks."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)
