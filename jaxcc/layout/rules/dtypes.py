"""Bits seen as another type, numbers made of parts, and special functions of several numbers."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, layout_rule
from jaxcc.layout.rules._combine import additive, result, unit_only
from jaxcc.layout.rules._joint import batched
from jaxcc.layout.rules._pointwise import pointwise


@layout_rule("bitcast_convert_type")
def _bitcast(eqn: Equation, x: Relation) -> Relation:
    """A type of another width has the parts of a number along a trailing dimension."""
    parts = len(x.dims) - len(eqn.per_rank.out_shapes[0])
    (base,) = batched(eqn, [x], (max(parts, 0),))
    return unit_only(eqn, [x], base)


@pointwise("complex")
def _complex(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    scale, partial = additive(eqn, operands)
    return result(base, base.dims, scale, partial)


pointwise(
    "igamma_grad_a",
    "mulhi",
    "polygamma",
    "polynomial",
    "random_gamma_grad",
    "regularized_incomplete_beta",
    "zeta",
)(unit_only)
