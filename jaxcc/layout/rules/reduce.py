"""Reductions: what a rank selects of the reduced dimensions is left as a pending reduction over
ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxcc.layout._digits import count, renumbered, uniform
from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import ANY_SCALE, Relation, constant, in_dtype
from jaxcc.layout._rules import Equation, Refused, Side, layout_rule
from jaxcc.layout.rules._combine import (
    measured,
    partial_refused,
    require_unit,
    result,
)

_OPS: Mapping[str, ReduceOp] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_or": "max",
    "reduce_and": "min",
}


def reduced(
    eqn: Equation,
    x: Relation,
    op: ReduceOp,
    axes: Collection[int],
    whole_axes: Collection[int],
    whole_shape: Sequence[int],
) -> Relation:
    """`x` reduced over the per-rank dimensions `axes`, which are `whole_axes` of the whole value.

    Digits of the reduced dimensions that a rank selects become a Partial over its axis. A sum of a
    value that is uniform along more of the whole dimension than of the per-rank one changes the
    scale by the ratio.
    """
    if 0 in x.shape:
        # 0 and the infinities fit every scale; an empty product is 1.
        dims = [uniform(s) for at, s in enumerate(x.shape) if at not in axes]
        # The maximum of no integers is the smallest of their type.
        neutral = op == "sum" or (op != "prod" and kind_of(eqn.per_rank.dtypes[0]) == "f")
        return Relation(tuple(dims)).scaled(ANY_SCALE if neutral else 1.0)
    _require_same_part(eqn, x, axes, whole_axes)
    partial: dict[str, ReduceOp] = {}
    for axis, held in x.partial.items():
        if held != op:
            raise partial_refused(
                eqn, 0, axis, held, f"a {op} of {held}s is not the {held} of {op}s"
            )
        partial[axis] = held
    ranks = dict(x.ranks)
    copies = count(d for position in axes for d in x.dims[position] if not d.named)
    for axis, digits in x.ranks.items():
        inside = {digit.dim in whole_axes for digit in digits if digit.named}
        if inside == {True}:
            del ranks[axis]
            partial[axis] = op
            copies *= count(digit for digit in digits if not digit.named)
        elif True in inside:
            raise Refused("LAYOUT_MISMATCH", f"{eqn.op} reduces a part of what '{axis}' slices")
    whole_copies = math.prod(whole_shape[dim] for dim in whole_axes) // count(
        digit for digit in x.digits() if digit.dim in whole_axes
    )
    if bool(copies) != bool(whole_copies):
        raise Refused(
            "LAYOUT_STRUCTURE",
            f"{eqn.op} reduces {copies} elements on n ranks and {whole_copies} on one",
            because="the program computes another function on one rank than on n",
            fixes=("let it not depend on the group's size",),
        )
    scale = measured(eqn, 0, x)
    if op == "sum":
        scale *= copies / whole_copies if whole_copies else 1.0
    elif op == "prod" and (copies != whole_copies or partial):
        require_unit(eqn, [x], "a product of scaled factors has a power of the scale")
        if copies != whole_copies:
            raise Refused(
                "LAYOUT_SCALE",
                f"{eqn.op} multiplies {copies} copies on n ranks, {whole_copies} on one",
            )
    if op == "prod":
        require_unit(eqn, [x], "a product of scaled factors has a power of the scale")
    elif op != "sum" and kind_of(eqn.per_rank.dtypes[0]) == "u":
        require_unit(eqn, [x], f"a {op} of unsigned multiples, which wrap around, is another one")
    elif op != "sum" and scale <= 0:
        require_unit(eqn, [x], f"a {op} of negated values is another one")
    kept = [d for d in range(len(whole_shape)) if d not in whole_axes]
    renumber = {old: new for new, old in enumerate(kept)}
    base = replace(x, ranks={axis: renumbered(digits, renumber) for axis, digits in ranks.items()})
    dims = [renumbered(digits, renumber) for at, digits in enumerate(x.dims) if at not in axes]
    return result(base, dims, scale, partial)


def _require_same_part(
    eqn: Equation, x: Relation, axes: Collection[int], whole_axes: Collection[int]
) -> None:
    """The reduced per-rank dimensions walk only reduced whole ones, and the others only others."""
    for position, digits in enumerate(x.dims):
        for digit in digits:
            if digit.named and (digit.dim in whole_axes) != (position in axes):
                raise Refused(
                    "LAYOUT_MISMATCH",
                    f"{eqn.op} over dimension {tuple(axes)} of the per-rank value reduces "
                    f"other elements than "
                    "on a group of one",
                    because=f"dimension {position} walks dimension {digit.dim} of the whole value",
                )


@layout_rule(*_OPS)
def _reduce(eqn: Equation, x: Relation) -> Relation:
    axes, whole_axes = eqn.per_rank.params["axes"], eqn.whole.params["axes"]
    if eqn.op == "reduce_sum" and x.const is not None:
        return _constant_sum(eqn, x)
    made = reduced(eqn, x, _OPS[eqn.op], axes, whole_axes, eqn.whole.shapes[0])
    if eqn.op in ("reduce_or", "reduce_and") and eqn.per_rank.dtypes[0] != np.bool_:
        why = f"{eqn.op} of integers works on their bits"
        require_unit(eqn, [x], why)
        for axis, op in made.partial.items():
            raise partial_refused(eqn, 0, axis, op, why)
    return made


def _constant_sum(eqn: Equation, x: Relation) -> Relation:
    assert x.const is not None
    dtype = eqn.per_rank.out_dtypes[0]
    at_n, at_1 = (
        in_dtype(value * _summands(side), dtype)
        for side, value in zip((eqn.per_rank, eqn.whole), x.const, strict=True)
    )
    return constant(eqn.per_rank.out_shapes[0], (at_n, at_1))


def _summands(side: Side) -> int:
    axes: Sequence[int] = side.params["axes"]
    return math.prod(side.shapes[0][axis] for axis in axes)
