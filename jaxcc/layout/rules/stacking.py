"""Arrays laid side by side along a new dimension, taken apart along one, or repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcc.layout._digits import Digits, normal, uniform
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, layout_rule, shape_rule
from jaxcc.layout.rules._combine import additive, result
from jaxcc.layout.rules._joint import joint, laid_out
from jaxcc.layout.rules.along import labels


@layout_rule("stack")
def _stack(eqn: Equation, *operands: Relation) -> Relation:
    names = range(len(operands[0].dims))
    base = joint(eqn, operands, [names] * len(operands))
    made = laid_out(eqn, base, labels(len(names) + 1, {eqn.per_rank.params["axis"]}))
    scale, partial = additive(eqn, operands)
    return result(made, made.dims, scale, partial)


@layout_rule("unstack")
def _unstack(eqn: Equation, x: Relation) -> Sequence[Relation]:
    base = joint(eqn, [x], [labels(len(x.dims), {eqn.per_rank.params["axis"]})])
    return [result(base, base.dims, x.scale, x.partial)] * len(eqn.per_rank.out_shapes)


@shape_rule("tile")
def _tile(
    params: Mapping[str, Any], dims: Sequence[Digits], out_shape: Sequence[int]
) -> Sequence[Digits]:
    return [
        normal((*uniform(times), *digits))
        for times, digits in zip(params["reps"], dims, strict=True)
    ]
