"""A `shard_map` inside the function, over axes that the function itself is not one rank of.

It is its body between two moves of data: each rank takes its block of every operand, and the blocks
of every result are put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from jaxcc import _compat
from jaxcc._compat import SourceLine
from jaxcc.layout._errors import LayoutError

ENTER = "enter_shard_map"
"""The rank's block of an array, by the axes that `spec` gives for each dimension."""

LEAVE = "leave_shard_map"
"""The array whose blocks the ranks have; along the other axes of `axes` they have the same, and JAX
has seen to that if `sure`."""

Spec = tuple[tuple[str, ...], ...]
"""For each dimension the axes that slice it, major first."""


def opened(eqn: Any) -> list[Any]:
    """The equations that a `shard_map` is: those that enter, its body, and those that leave.

    Raises:
      LayoutError: LAYOUT_NESTED if the function is one rank of all its axes already;
        LAYOUT_UNSUPPORTED for specs that say more than who has which block.
    """
    params = eqn.params
    body = _compat.open_jaxpr(params["jaxpr"])
    axes = tuple(axis for axis in params["mesh"].axis_names if axis in params["newly_manual_axes"])

    if not axes:
        line = _compat.source_line(eqn)
        raise taken_error("the function is one rank of its axes already", line)

    def move(op: str, spec: Any, outer: Any, given: Any, made: Any) -> Any:
        dims = _spec(spec, outer.aval.ndim, eqn)
        sure = params["check_vma"] or set(axes) <= {axis for over in dims for axis in over}
        moved = {"spec": dims, "axes": axes, "sure": sure}
        return _compat.with_operation(eqn, op, moved, [given], [made])

    return [
        *(
            move(ENTER, spec, outer, outer, inner)
            for spec, outer, inner in zip(params["in_specs"], eqn.invars, body.invars, strict=True)
        ),
        *body.eqns,
        *(
            move(LEAVE, spec, outer, inner, outer)
            for spec, inner, outer in zip(
                params["out_specs"], body.outvars, eqn.outvars, strict=True
            )
        ),
    ]


def _spec(spec: PartitionSpec, ndim: int, eqn: Any) -> Spec:
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        raise LayoutError(
            "LAYOUT_UNSUPPORTED",
            f"a shard_map inside the function has the spec {spec}, which has no rule",
            line=_compat.source_line(eqn),
            fixes=("reduce inside it: jax.lax.psum(..., axis)",),
        )
    entries: Sequence[Any] = tuple(spec)
    dims = [(one,) if isinstance(one, str) else tuple(one or ()) for one in entries]
    return (*dims, *[()] * (ndim - len(dims)))


def spec_of(params: Mapping[str, Any]) -> list[tuple[int, tuple[str, ...]]]:
    """The dimensions that are sliced, each with its axes, major first."""
    return [(dim, axes) for dim, axes in enumerate(params["spec"]) if axes]


def taken_error(what: str, line: SourceLine | None) -> LayoutError:
    """The error for a shard_map inside the function over axes of which that is one rank already."""
    return LayoutError(
        "LAYOUT_NESTED",
        f"no axis is left for a shard_map inside the function: {what}",
        line=line,
        because=(
            "check runs the function as one rank of every axis that axis_names= does not leave out"
        ),
        fixes=(
            "check(..., axis_names=...) with the axes of which the function is one rank, () for a "
            "whole program",
            "give check the per-rank function that shard_map is given",
        ),
    )


def other_mesh_error(what: str, line: SourceLine | None) -> LayoutError:
    """The error for a shard_map inside the function over a mesh with other axes."""
    return LayoutError(
        "LAYOUT_NESTED",
        f"a shard_map inside the function has another mesh than the check: {what}",
        line=line,
        because="the check knows the axes of its own mesh alone",
        fixes=("give check a mesh= with the axes of that shard_map's",),
    )
