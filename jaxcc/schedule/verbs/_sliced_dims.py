"""Which dimension of each value is sliced once a gather has moved past the work on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jaxcc import _compat
from jaxcc.layout import ScheduleError
from jaxcc.program import Op, Program
from jaxcc.schedule.verbs._pointwise import POINTWISE

REDUCTIONS: Mapping[str, str | None] = {
    "reduce_sum": "sum",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_and": "min",
    "reduce_or": "max",
    "reduce_prod": None,
}
"""What puts the ranks' parts of a reduction together; None if no collective does. `lax.pmax` leaves
NaN out, and what stands for the maximum of a whole array must not."""

_Shape = tuple[int, ...]


class _NeedsAll(Exception):
    """An operation that cannot run on a slice: what it does with the sliced dimension, and why that
    needs the rest of it.
    """

    def __init__(self, what: str, because: str, code: str = "SCHEDULE_NOT_POINTWISE") -> None:
        super().__init__(what)
        self.what = what
        self.because = because
        self.code = code


def sliced_dims(
    program: Program, gather: Op, region: Iterable[Op], after: str
) -> dict[str, int | None]:
    """The sliced dimension of what `gather` makes and of each value of `region`, if they are
    computed from the gather's operand; None for a value that every rank still holds whole.

    Args:
      program: what holds them.
      gather: a tiled all-gather over one axis.
      region: what lies between it and `after`, in the program's order.
      after: the last operation, for messages.

    Raises:
      ScheduleError: an operation needs more of its operand than a slice.
    """
    types = program.types()
    dims: dict[str, int | None] = {gather.outputs[0]: gather.params["dim"]}
    for op in region:
        given = {x: dim for x in op.value_inputs() if (dim := dims.get(x)) is not None}
        try:
            dim = _dim_after(op, given, types, gather, program) if given else None
        except _NeedsAll as needs:
            raise ScheduleError(
                needs.code,
                f"reorder: '{op.name}' ({op.kind}) lies between '{gather.name}' and '{after}' "
                f"but {needs.what}",
                line=op.line,
                because=needs.because,
                fixes=(f"reorder '{gather.name}' only up to what comes before '{op.name}'",),
            ) from None
        dims.update(dict.fromkeys(op.outputs, dim))
    return dims


def _dim_after(
    op: Op, given: Mapping[str, int], types: Mapping[str, Any], gather: Op, program: Program
) -> int | None:
    """The sliced dimension of the operation's result, for operands that are sliced as `given`."""
    if len(set(given.values())) > 1:
        both = " and ".join(f"'{x}' along dimension {dim}" for x, dim in given.items())
        raise _NeedsAll(
            f"would read slices of {both}",
            "a rank's blocks of two dimensions do not lie over one another",
            "SCHEDULE_SLICED_TWICE",
        )
    value, dim = next(iter(given.items()))
    if op.kind in POINTWISE:
        return dim
    if op.kind == "ppermute":
        return _sent(op, dim, gather)
    if op.kind == "reshape":
        return _reshaped(op, dim, types[value].shape, program.sizes[gather.params["axes"][0]])
    if op.kind in REDUCTIONS:
        return _reduced(op, dim, types[value].dtype)
    if op.kind in _MOVED:
        return _MOVED[op.kind](op.eqn.params, dim)
    what = "does not treat every element by itself"
    if op.kind == "fused":
        what = "is fused already; reorder first, then fuse"
    raise _NeedsAll(what, "on a slice it would see a part of what it needs")


def _sent(op: Op, dim: int, gather: Op) -> int:
    (axis,) = gather.params["axes"]
    if axis in _compat.axis_names(op.eqn):
        raise _NeedsAll(
            f"sends over '{axis}' itself",
            "each rank would receive another rank's block in place of its own, and the blocks "
            "would be gathered in another order",
            "SCHEDULE_WRONG_OPERATION",
        )
    return dim


def _reduced(op: Op, dim: int, dtype: Any) -> int | None:
    axes: tuple[int, ...] = op.eqn.params["axes"]
    if dim not in axes:
        return dim - sum(axis < dim for axis in axes)
    if REDUCTIONS[op.kind] is None:
        raise _NeedsAll(
            f"multiplies along the gathered dimension {dim}",
            "no collective multiplies what the ranks hold",
        )
    if op.kind in ("reduce_and", "reduce_or") and dtype != np.bool_:
        raise _NeedsAll(
            f"combines bits along the gathered dimension {dim}",
            "no collective combines the bits of what the ranks hold",
        )
    return None


def _reshaped(op: Op, dim: int, shape: _Shape, ranks: int) -> int:
    """The dimension whose blocks are the blocks of `dim`: what lies before both is the same."""
    before, new = math.prod(shape[:dim]), op.types[0].shape
    starts = [d for d in range(len(new)) if math.prod(new[:d]) == before]
    # Of several, those before the last have size 1.
    at = starts[-1] if starts else 0
    if not starts or new[at] % ranks or op.eqn.params.get("dimensions") is not None:
        raise _NeedsAll(
            f"reshapes {shape} to {new}, in which the blocks of dimension {dim} do not lie together"
            if not starts
            else f"reshapes {shape} to {new}, whose dimension {at} the {ranks} ranks do not divide",
            "a rank's block would not be a slice of the result",
        )
    return at


def _squeezed(params: Mapping[str, Any], dim: int) -> int:
    dropped: tuple[int, ...] = params["dimensions"]
    if dim in dropped:
        raise _NeedsAll(
            f"drops the gathered dimension {dim}", "what is gathered of one element has no slices"
        )
    return dim - sum(d < dim for d in dropped)


_MOVED: Mapping[str, Callable[[Mapping[str, Any], int], int]] = {
    "broadcast_in_dim": lambda params, dim: params["broadcast_dimensions"][dim],
    "squeeze": _squeezed,
    "transpose": lambda params, dim: tuple(params["permutation"]).index(dim),
}
"""Where the sliced dimension goes when dimensions come, go or change places."""
