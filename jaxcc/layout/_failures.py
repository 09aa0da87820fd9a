"""What a function raises while it is traced, in its author's words."""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, cast

import jax
import numpy as np
import opt_einsum  # pyright: ignore[reportMissingTypeStubs]

from jaxcc._compat import SourceLine
from jaxcc.layout._captured import captured_error
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._flatten import Slot
from jaxcc.layout._groups import group_text
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._nested import other_mesh_error, taken_error
from jaxcc.layout._trace import argument_names, per_rank_shape
from jaxcc.layout._values import type_text

# JAX has types for some of its parameters only.
_jax: Any = jax

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_EINSUM = os.path.dirname(os.path.abspath(opt_einsum.__file__)) + os.sep
_JAXCC = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# How JAX refuses a captured array that lies on a mesh with Explicit axes.
_CAPTURES = "Closing over inputs to shard_map"
# How it refuses a shard_map inside another one: by its mesh, or by its axes.
_OTHER_MESH = "should match the mesh passed to shard_map"
_TAKEN = "refer to an axis marked as manual"
_OUT_SPECS = (
    "reduce what is pending before the shard_map returns it: jax.lax.psum(..., axis), or pmean of "
    "means",
    "say in out_specs over which axes the ranks' results differ",
)
# What JAX says, why, and what to do. The second is what becomes of the first in a jax.grad.
_KNOWN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "out_specs which require replication",
        "the out_specs of a shard_map inside say that its ranks return the same, and they may not",
        _OUT_SPECS,
    ),
    (
        "Too few leaves for PyTreeDef",
        "JAX says so where it differentiates a shard_map whose ranks do not return the same, "
        "against its out_specs",
        _OUT_SPECS,
    ),
    (
        "is out of bounds for array of dimension",
        "the function sees the array that one rank has",
        ("count its dimensions from 0",),
    ),
)
# What speaks of shapes, for which the layouts of arguments may be the cause.
_OF_SHAPES = ("shape", " size", "divide")
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def explained(
    f: Callable[..., Any],
    args: Sequence[Any],
    layouts: Sequence[LayoutMap],
    sizes: Mapping[str, int],
    names: Sequence[str] | None = None,
) -> Callable[..., Any]:
    """`f`, where what JAX raises becomes a LayoutError that shows what `f` sees of its arguments,
    which messages call `names`, or what `f` does.

    Errors that the function raises by itself pass unchanged, with a note of what it saw.
    """

    @functools.wraps(f)
    def explaining(*inputs: Any) -> Any:
        try:
            return f(*inputs)
        except LayoutError:
            raise
        except Exception as error:
            seen = _seen(args, layouts, names or argument_names(f, args), sizes)
            if not _raised_by_jax(error):
                error.add_note(
                    "\n".join([f"jaxcc traced the function for {group_text(sizes)}", *seen])
                )
                raise
            # JAX refuses captured tracers with this class, as it does what it does not implement
            # itself; only the message tells the two apart.
            if isinstance(error, NotImplementedError) and _CAPTURES in str(error):
                raise captured_error(None, user_line(error)) from error
            axis = _unknown_axis(error, sizes)
            if axis is not None:
                raise _no_axis(axis, error, sizes) from error
            if isinstance(error, NameError) and "unbound axis name" in str(error):
                raise _left_out(error) from error
            if _OTHER_MESH in str(error) and not _all_taken():
                raise other_mesh_error(_first_line(error), user_line(error)) from error
            if _TAKEN in str(error) or _OTHER_MESH in str(error):
                raise taken_error(_first_line(error), user_line(error)) from error
            raise _untraceable(error, seen, sizes) from error

    return explaining


def _no_axis(axis: str, error: Exception, sizes: Mapping[str, int]) -> LayoutError:
    known = ", ".join(f"'{name}'" for name in sizes)
    return LayoutError(
        "LAYOUT_AXIS",
        f"the axis '{axis}' is not one of the mesh, which has {known}",
        line=user_line(error),
        fixes=(f"use one of {known}, or give a mesh that has an axis '{axis}'",),
    )


def _all_taken() -> bool:
    """Whether what is traced is one rank of every axis."""
    return bool(_jax.sharding.get_abstract_mesh().are_all_axes_manual)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def _left_out(error: Exception) -> LayoutError:
    return LayoutError(
        "LAYOUT_AXIS",
        f"the function uses an axis that axis_names= leaves out: {_first_line(error)}",
        line=user_line(error),
        because="along it the function sees whole arrays: it is no rank of the axis",
        fixes=("add the axis to axis_names=", "use it in a shard_map inside the function"),
    )


def _untraceable(error: Exception, seen: Sequence[str], sizes: Mapping[str, int]) -> LayoutError:
    text = str(error).strip() or "no message"
    if isinstance(error, _NEEDS_VALUE):
        # What follows speaks of the functions that trace, not of the user's.
        text = text.splitlines()[0]
        because = "tracing knows the shapes of values, not what they are"
        fixes = ("choose between values with jax.numpy.where",)
    elif "varying manual axes" in text or "manual axis types" in text:
        because = "JAX tracks which values differ between ranks (check_vma=True), and refuses this"
        fixes = (
            "reduce what differs only because its sum is still pending: jax.lax.psum(..., axis)",
            "cast the value that enters with jax.lax.pcast(..., to='varying'), or run and check "
            "with check_vma=False",
        )
    else:
        because = f"the function sees each argument as one rank of {group_text(sizes)} does"
        fixes = ("give the arguments layouts whose per-rank shapes fit one another",)
        if not any(word in text for word in _OF_SHAPES):
            fixes = ()
        for said, why, what in _KNOWN:
            if said in text:
                text, because, fixes = text.splitlines()[0], why, what
    return LayoutError(
        "LAYOUT_TRACE",
        f"JAX cannot trace the function for {group_text(sizes)}: {type(error).__name__}: {text}",
        line=user_line(error),
        operands=tuple(seen),
        because=because,
        fixes=fixes,
    )


def _seen(
    args: Sequence[Any],
    layouts: Sequence[LayoutMap],
    names: Sequence[str],
    sizes: Mapping[str, int],
) -> list[str]:
    """A line for each leaf of the arguments: whole type, layout, and per-rank type."""
    lines: list[str] = []
    leaves = jax.tree.leaves(tuple(args))
    for leaf, layout, name in zip(leaves, layouts, names, strict=True):
        shape = per_rank_shape(leaf.shape, layout, sizes, name)
        whole, own = (type_text(Slot(tuple(s), _dtype(leaf))) for s in (leaf.shape, shape))
        lines.append(f"argument '{name}': whole {whole} {layout.describe()}, per rank {own}")
    return lines


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames that the error passed, innermost first."""
    walked = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    yield from reversed(walked)


def _raised_by_jax(error: Exception) -> bool:
    if isinstance(error, AttributeError):  # a module of JAX raises it for a name of the user's
        return False
    innermost = next(_frames(error), None)
    # opt_einsum is a part of jax.numpy.einsum.
    return innermost is not None and innermost.f_code.co_filename.startswith((_JAX, _EINSUM))


def _unknown_axis(error: Exception, sizes: Mapping[str, int]) -> str | None:
    """The axis that a collective of JAX was given and that no mesh has; JAX's own message does not
    always say it."""
    in_spec = re.search(r"refers to '(\w+)'", str(error))
    if in_spec and in_spec[1] not in sizes:
        return in_spec[1]
    named = isinstance(error, ValueError) and "axis_name" in str(error)
    if not named and not isinstance(error, (NameError, AssertionError)):
        return None
    for frame in _frames(error):
        if not frame.f_code.co_filename.startswith(_JAX):
            continue
        given: Any = frame.f_locals.get("axis_name")
        axes = cast(Sequence[Any], given if isinstance(given, (tuple, list)) else (given,))
        for axis in axes:
            if isinstance(axis, str) and axis not in sizes:
                return axis
    return None


def user_line(error: BaseException) -> SourceLine | None:
    """The innermost line outside JAX and jaxcc that the error passed."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith((_JAX, _EINSUM, _JAXCC)) or frame.lineno is None:
            continue
        one_line = frame.end_lineno == frame.lineno
        return SourceLine(
            frame.filename,
            frame.lineno,
            frame.colno or 0,
            frame.end_colno if one_line else None,
            frame.name,
        )
    return None


def _dtype(leaf: Any) -> Any:
    """The element type, also where a scalar type stands for it; keys have one of their own."""
    return leaf.dtype if hasattr(leaf.dtype, "itemsize") else np.dtype(leaf.dtype)
