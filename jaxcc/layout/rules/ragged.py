"""Ragged products: rows of one matrix in groups, each with a matrix of its own."""

from __future__ import annotations

from typing import Any

from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout.rules._combine import (
    measured,
    multiplicative,
    product,
    require_unit,
    result,
)
from jaxcc.layout.rules._joint import joint, laid_out
from jaxcc.layout.rules.reduce import reduced

_COLUMN, _INNER = range(2)


@layout_rule("ragged_dot_general")
def _ragged_dot(eqn: Equation, rows: Relation, groups: Relation, sizes: Relation) -> Relation:
    """Rows and groups have to be whole, since a row's number decides its group; the contraction
    and the columns may be sliced."""
    numbers: Any = eqn.per_rank.params["ragged_dot_dimension_numbers"]
    (contracted, batch) = numbers.dot_dimension_numbers
    plain = (
        tuple(numbers.lhs_ragged_dimensions) == (0,)
        and tuple(numbers.rhs_group_dimensions) == (0,)
        and [tuple(dims) for dims in contracted] == [(1,), (1,)]
        and not any(batch)
    )
    if not plain:
        raise Refused(
            "LAYOUT_UNSUPPORTED",
            "ragged_dot_general of other dimensions than those of ragged_dot",
            because="its rule covers rows (m, k), groups (g, k, n) and one row of group sizes",
            fixes=("bring the operands to the form of jax.lax.ragged_dot",),
        )
    require_unit(eqn.only(2), [sizes], "group sizes choose")
    operands = [rows, groups, sizes]
    reads = [[None, _INNER], [None, _INNER, _COLUMN], [None]]
    base = joint(eqn, operands, reads)
    scale = product(eqn, measured(eqn, 0, rows), measured(eqn, 1, groups))
    terms = result(base, base.dims, scale, multiplicative(eqn, operands, linear=(0, 1)))
    whole = (eqn.whole.shapes[1][2], eqn.whole.shapes[1][1])
    made = reduced(eqn, terms, "sum", (_INNER,), (_INNER,), whole)
    return laid_out(eqn, made, [None, _COLUMN])
