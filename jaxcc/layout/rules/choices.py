"""Comparisons, logic and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused
from jaxcc.layout.rules._by_rank import compared
from jaxcc.layout.rules._combine import (
    COMPARES,
    additive,
    common_scale,
    flipped,
    measured,
    partial_and_sliced,
    require_unit,
    require_whole,
    result,
    unit_only,
)
from jaxcc.layout.rules._masks import chosen, combined
from jaxcc.layout.rules._pointwise import pointwise

# The pending reductions of booleans that logic commutes with.
_KEPT: Mapping[str, Set[ReduceOp]] = {
    "not": {"max", "min"},
    "and": {"min"},
    "or": {"max"},
    "xor": set(),
}


@pointwise(*COMPARES, "rem", by_rank=compared)
def _compare(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    require_whole(eqn, operands, f"{eqn.op} of sums is not the sum of {eqn.op}s")
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    scale = common_scale(eqn, scales, positive=True)
    return result(base, base.dims, scale if eqn.op == "rem" else 1.0, {})


def _picked(eqn: Equation, operands: Sequence[Relation]) -> Relation | None:
    """The case that a predicate picks which is known, or which depends on the rank."""
    which, *cases = operands
    if which.const is not None and which.const[0] == which.const[1]:
        return cases[int(which.const[0])]
    return chosen(eqn, operands)


@pointwise("select_n", by_rank=_picked)
def select(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    """A choice by a predicate that is whole; one that is sliced chooses among slices."""
    which, *cases = operands
    require_unit(eqn, [which], "the predicate chooses")
    require_whole(eqn, [which], "the predicate chooses")
    scale, partial = additive(eqn.only(*range(1, len(operands))), cases)
    for axis in partial:
        if axis in which.ranks:
            raise Refused(
                "LAYOUT_MISMATCH",
                f"the predicate of select is sliced over '{axis}', and its cases are "
                f"Partial over '{axis}'",
            )
    return result(base, base.dims, scale, partial)


@pointwise(*_KEPT, by_rank=combined)
def _logic(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    """Of booleans, `and` is a minimum, `or` a maximum, and `not` makes one of the other."""
    ops = {op for x in operands for op in x.partial.values()}
    if not ops or eqn.per_rank.dtypes[0] != np.bool_ or not ops <= _KEPT[eqn.op]:
        return unit_only(eqn, operands, base)
    require_unit(eqn, operands, f"{eqn.op} is not homogeneous")
    partial: dict[str, ReduceOp] = {}
    for x in operands:
        for axis, op in x.partial.items():
            if axis in base.ranks:
                raise partial_and_sliced(eqn, operands, axis)
            partial[axis] = flipped(op) if eqn.op == "not" else op
    return result(base, base.dims, 1.0, partial)
