"""Functions along some dimensions: scans, sorts, reversals, selections and reductions without a
pending form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxcc import _compat
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout.rules._combine import (
    measured,
    partial_and_sliced,
    partial_refused,
    require_whole,
    result,
    unit_only,
)
from jaxcc.layout.rules._joint import (
    Labels,
    joint,
    laid_out,
    linear_in,
    ordered_scale,
)

_EXTREMA: Mapping[str, ReduceOp] = {
    "cummax": "max",
    "cummin": "min",
}


def labels(ndim: int, dims: Collection[int]) -> list[int | None]:
    """The dimensions in order, but None for those in `dims`."""
    kept = iter(range(ndim))
    return [None if dim in dims else next(kept) for dim in range(ndim)]


def along(eqn: Equation, operands: Sequence[Relation], dims: Collection[int]) -> Relation:
    """Operands of one shape, all of `dims` held whole; the result has the same shape."""
    names: Labels = labels(len(operands[0].dims), dims)
    return laid_out(eqn, joint(eqn, operands, [names] * len(operands)), names)


@layout_rule("cumsum")
def _cumulative_sum(eqn: Equation, x: Relation) -> Relation:
    return linear_in(eqn, [x], 0, along(eqn, [x], {eqn.per_rank.params["axis"]}))


@layout_rule("cumprod", "cumlogsumexp")
def _cumulative(eqn: Equation, x: Relation) -> Relation:
    return unit_only(eqn, [x], along(eqn, [x], {eqn.per_rank.params["axis"]}))


@layout_rule(*_EXTREMA)
def _cumulative_extremum(eqn: Equation, x: Relation) -> Relation:
    base = along(eqn, [x], {eqn.per_rank.params["axis"]})
    return extremum(eqn, x, base, _EXTREMA[eqn.op])


def extremum(eqn: Equation, x: Relation, base: Relation, op: ReduceOp) -> Relation:
    """The result of taking maxima (or minima) of some elements, which a pending one survives."""
    for axis, held in x.partial.items():
        if held != op:
            why = f"a {op} of {held}s is not the {held} of {op}s"
            raise partial_refused(eqn, 0, axis, held, why)
    return result(base, base.dims, ordered_scale(eqn, 0, x), dict(x.partial))


@layout_rule("rev")
def _reversed(eqn: Equation, x: Relation) -> Relation:
    base = along(eqn, [x], eqn.per_rank.params["dimensions"])
    return result(base, base.dims, x.scale, x.partial)


@layout_rule("argmax", "argmin")
def _arg_extremum(eqn: Equation, x: Relation) -> Relation:
    require_whole(eqn, [x], f"{eqn.op} needs every value")
    ordered_scale(eqn, 0, x)
    base = joint(eqn, [x], [labels(len(x.dims), eqn.per_rank.params["axes"])])
    return result(base, base.dims, 1.0, {})


@layout_rule("sort")
def _sort(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """The first operands are the keys; the others follow them, also pending ones if every rank
    sorts by the same keys."""
    base = along(eqn, operands, {eqn.per_rank.params["dimension"]})
    keys: int = eqn.per_rank.params["num_keys"]
    require_whole(eqn, operands[:keys], "sort is not linear")
    made = [result(base, base.dims, ordered_scale(eqn, i, operands[i]), {}) for i in range(keys)]
    for i, x in enumerate(operands[keys:], keys):
        for axis in x.partial:
            if axis in base.ranks:
                raise partial_and_sliced(eqn, operands, axis)
        made.append(result(base, base.dims, measured(eqn, i, x), x.partial))
    return made


@layout_rule("top_k", "approx_top_k")
def _top_k(eqn: Equation, x: Relation) -> Sequence[Relation]:
    """The largest values, and their positions."""
    require_whole(eqn, [x], f"{eqn.op} needs every value")
    params = eqn.per_rank.params
    dim: int = params["axis"] if eqn.op == "top_k" else params["reduction_dimension"]
    base = along(eqn, [x], {dim % len(x.dims)})
    scales = (ordered_scale(eqn, 0, x), 1.0)
    return [result(base, base.dims, scale, {}) for scale in scales]


@layout_rule("reduce_xor")
def _bitwise(eqn: Equation, x: Relation) -> Relation:
    return _without_pending(eqn, [x], eqn.per_rank.params["axes"])[0]


@layout_rule("reduce")
def _reduce(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """A reduction by a function of the user's: operands, then as many initial values."""
    require_same_function(eqn, "jaxpr")
    return _without_pending(eqn, operands, eqn.per_rank.params["dimensions"])


def _without_pending(
    eqn: Equation, operands: Sequence[Relation], dims: Collection[int]
) -> Sequence[Relation]:
    reads = [labels(len(x.dims), dims) if x.dims else [] for x in operands]
    base = joint(eqn, operands, reads)
    return [unit_only(eqn, operands, base)] * len(eqn.per_rank.out_shapes)


def require_same_function(eqn: Equation, *names: str) -> None:
    """Refuses a primitive whose own function, a jaxpr in its parameters, differs on n and 1."""
    for name in names:
        at_n, at_1 = (side.params[name] for side in (eqn.per_rank, eqn.whole))
        consts = [_compat.jaxpr_consts(jaxpr) for jaxpr in (at_n, at_1)]
        same = str(_compat.open_jaxpr(at_n)) == str(_compat.open_jaxpr(at_1))
        if not same or not _equal(*consts):
            raise Refused(
                "LAYOUT_STRUCTURE",
                f"the function of {eqn.op} is another one on n ranks than on one",
                because="the program computes another function on one rank than on n",
                fixes=("let it not depend on the group's size",),
            )


def _equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
