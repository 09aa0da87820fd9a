"""Sums, products and extrema: what they do to scales and to pending reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import ANY_SCALE, Relation
from jaxcc.layout._rules import Equation
from jaxcc.layout.rules._by_rank import clipped, shifted
from jaxcc.layout.rules._combine import (
    additive,
    common_scale,
    flipped,
    measured,
    multiplicative,
    partial_refused,
    product,
    require_whole,
    result,
    unit_only,
    unsigned,
)
from jaxcc.layout.rules._masks import weighted
from jaxcc.layout.rules._pointwise import pointwise


@pointwise("add", "sub", "add_any", by_rank=shifted)
def _add(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    shifted = _shifted_extremum(eqn, operands, base)
    if shifted is not None:
        return shifted
    scale, partial = additive(eqn, operands)
    return result(base, base.dims, scale, partial)


def _shifted_extremum(
    eqn: Equation, operands: Sequence[Relation], base: Relation
) -> Relation | None:
    """max over ranks of x plus or minus what every rank holds."""
    pending = [(i, axis) for i, operand in enumerate(operands) for axis in operand.partial]
    ops = {operands[i].partial[axis] for i, axis in pending}
    if unsigned(eqn) or not ops or not ops <= {"max", "min"} or len({i for i, _ in pending}) != 1:
        return None
    index = pending[0][0]
    other = operands[1 - index]
    if any(axis in other.ranks for _, axis in pending):
        return None
    scale = common_scale(
        eqn, [measured(eqn, i, operand) for i, operand in enumerate(operands)], True
    )
    flip = eqn.op == "sub" and index == 1
    partial: dict[str, ReduceOp] = {
        axis: flipped(op) if flip else op for axis, op in operands[index].partial.items()
    }
    return result(base, base.dims, scale, partial)


@pointwise("mul", by_rank=weighted)
def _mul(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    a, b = (measured(eqn, i, operand) for i, operand in enumerate(operands))
    return result(base, base.dims, product(eqn, a, b), multiplicative(eqn, operands))


@pointwise("div")
def _div(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    if kind_of(eqn.per_rank.dtypes[0]) in ("i", "u"):
        return unit_only(eqn, operands, base)
    over, under = (measured(eqn, i, operand) for i, operand in enumerate(operands))
    partial = multiplicative(eqn, operands, linear=(0,))
    inverse = ANY_SCALE if math.isinf(under) else 1 / under
    return result(base, base.dims, product(eqn, over, inverse), partial)


@pointwise("max", "min", by_rank=clipped)
def _extremum(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    partial: dict[str, ReduceOp] = {}
    for index, operand in enumerate(operands):
        for axis, op in operand.partial.items():
            if op != eqn.op or any(axis in other.ranks for other in operands):
                why = f"{eqn.op} of {op}s is not the {op} of {eqn.op}s"
                raise partial_refused(eqn, index, axis, op, why)
            partial[axis] = op
    return result(base, base.dims, common_scale(eqn, scales, positive=True), partial)


@pointwise("clamp", by_rank=clipped)
def _clamp(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    require_whole(eqn, operands, "clamp is not linear")
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    return result(base, base.dims, common_scale(eqn, scales, positive=True), {})
