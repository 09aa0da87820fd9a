"""Contractions: both operands in one joint space of batch, free and contracted dimensions, then a
sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcc.layout._dtypes import bits_of, kind_of
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, Side, layout_rule
from jaxcc.layout.rules._combine import (
    measured,
    multiplicative,
    product,
    result,
    together,
    unit_only,
)
from jaxcc.layout.rules._joint import joint, laid_out, lifted
from jaxcc.layout.rules.reduce import reduced


class _Space:
    """Where each operand's dimensions stand in the joint space (batch, lhs free, rhs free,
    contracted)."""

    def __init__(self, side: Side) -> None:
        numbers: Any = side.params["dimension_numbers"]
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
        lhs_shape, rhs_shape = side.shapes
        lhs_free = [d for d in range(len(lhs_shape)) if d not in (*lhs_contract, *lhs_batch)]
        rhs_free = [d for d in range(len(rhs_shape)) if d not in (*rhs_contract, *rhs_batch)]
        order = [*lhs_batch, *lhs_free]
        self.kept = len(order) + len(rhs_free)
        self.shape: list[int] = [
            *(lhs_shape[d] for d in order),
            *(rhs_shape[d] for d in rhs_free),
            *(lhs_shape[d] for d in lhs_contract),
        ]
        contracted = range(self.kept, len(self.shape))
        self.lhs = {d: at for at, d in enumerate(order)}
        self.lhs |= dict(zip(lhs_contract, contracted, strict=True))
        self.rhs = {d: at for at, d in enumerate(rhs_batch)}
        self.rhs |= {d: len(order) + at for at, d in enumerate(rhs_free)}
        self.rhs |= dict(zip(rhs_contract, contracted, strict=True))
        self.contracted = tuple(contracted)


@layout_rule("dot_general")
def _dot_general(eqn: Equation, lhs: Relation, rhs: Relation) -> Relation:
    space, whole = _Space(eqn.per_rank), _Space(eqn.whole)
    operands = [
        lifted(lhs, space.lhs, whole.lhs, space.shape),
        lifted(rhs, space.rhs, whole.rhs, space.shape),
    ]
    base = together(eqn, operands)
    scale = product(eqn, measured(eqn, 0, lhs), measured(eqn, 1, rhs))
    terms = result(base, base.dims, scale, multiplicative(eqn, operands))
    # A product of booleans is whether any pair is true.
    op = "max" if kind_of(eqn.per_rank.out_dtypes[0]) == "b" else "sum"
    made = reduced(eqn, terms, op, space.contracted, whole.contracted, whole.shape)
    out = np.dtype(eqn.per_rank.out_dtypes[0])
    if made.partial and kind_of(out) == "f" and bits_of(out) < 16:
        raise Refused(
            "LAYOUT_PARTIAL_NONLINEAR",
            f"{eqn.op} makes terms of a sum over {', '.join(made.partial)} in {out.name}",
            because=f"what {out.name} leaves of a term of the sum is little",
            fixes=("make them with preferred_element_type=jnp.float32, and cast after the sum",),
        )
    return made


@layout_rule("scaled_matmul_wrapper")
def _scaled_product(eqn: Equation, *operands: Relation) -> Relation:
    """Rows of a and of b, and their scales, one for each block of the contracted dimension; where
    the blocks are depends on all of it."""
    batch, row, column = range(3)
    left, right = (batch, row, None), (batch, column, None)
    base = laid_out(eqn, joint(eqn, operands, [left, right, left, right]), (batch, row, column))
    return unit_only(eqn, operands, base)
