"""Updates written at positions that are data.

A scatter is a sum (maximum, ..) over the updates of those that hit an element, and the operand. So
where ranks hold different updates of one whole operand, what is left is a pending reduction: the
gradient of an embedding whose batch is sliced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, Side, layout_rule
from jaxcc.layout._settle import settled
from jaxcc.layout.rules._combine import (
    additive,
    common_scale,
    measured,
    multiplicative,
    partial_and_sliced,
    partial_refused,
    product,
    result,
    together,
)
from jaxcc.layout.rules._joint import Labels, joint, laid_out, require_full
from jaxcc.layout.rules.columns import one_index
from jaxcc.layout.rules.indexing import chosen, numbered, require_positions
from jaxcc.layout.rules.rank_blocks import owned_updates, rows_refused
from jaxcc.layout.rules.reduce import reduced
from jaxcc.layout.rules.unit_batches import with_unit_batches

ScatterRule = Callable[[Equation, Relation, Relation, Relation], Relation]


@dataclass(frozen=True)
class _ScatterLabels:
    """The joint dimension of each dimension: those of the operand that an update covers in full or
    that belong to a batch, then the others that count updates."""

    operand: Labels
    indices: Labels
    updates: Labels

    @property
    def counted(self) -> range:
        """The joint dimensions that the operand has not."""
        kept = sum(label is not None for label in self.operand)
        named = [label for label in self.indices if label is not None]
        return range(kept, max([kept - 1, *named]) + 1)

    def shape(self, side: Side) -> list[int]:
        """The sizes of the joint dimensions."""
        sizes: dict[int, int] = {}
        reads = (self.operand, self.indices, self.updates)
        for labels, shape in zip(reads, side.shapes, strict=True):
            sizes |= {at: n for at, n in zip(labels, shape, strict=True) if at is not None}
        return [sizes[at] for at in range(len(sizes))]


def _scatter_labels(eqn: Equation, ordered: bool) -> _ScatterLabels:
    """The joint dimensions; if the order of updates matters, none counts them."""
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    ndim, counts = len(eqn.per_rank.shapes[0]), len(eqn.per_rank.shapes[1]) - 1
    paired: dict[int, int] = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    apart = (*numbers.inserted_window_dims, *paired.values())
    windows = [d for d in range(ndim) if d not in apart]
    window_of: dict[int, int] = dict(zip(numbers.update_window_dims, windows, strict=True))
    full = {
        d
        for at, d in window_of.items()
        if all(side.shapes[2][at] == side.shapes[0][d] for side in (eqn.per_rank, eqn.whole))
    }
    operand = numbered([d in full or d in paired.values() for d in range(ndim)])
    kept = sum(label is not None for label in operand)
    indices: list[int | None] = []
    for dim in range(counts):
        new = None if ordered else kept + sum(d not in paired for d in range(dim))
        indices.append(operand[paired[dim]] if dim in paired else new)
    batch = iter(indices)
    updates = [
        operand[window_of[dim]] if dim in window_of else next(batch)
        for dim in range(len(eqn.per_rank.shapes[2]))
    ]
    return _ScatterLabels(operand, [*indices, None], updates)


def _terms(
    eqn: Equation,
    operand: Relation | None,
    indices: Relation,
    updates: Relation,
    op: ReduceOp | None,
) -> Relation:
    """What all updates together contribute to each element of the operand.

    Args:
      eqn: the equation.
      operand: what is updated, unless its dimensions are known to be whole.
      indices: where.
      updates: with what.
      op: how several updates of one element are combined; None if the last one stays, so that every
        rank needs all of them in order.
    """
    labels = _scatter_labels(eqn, ordered=op is None)
    indexed = [dim for dim, label in enumerate(labels.operand) if label is None]
    sliced = [d for d in indexed if eqn.per_rank.shapes[0][d] != eqn.whole.shapes[0][d]]
    for dim in indexed:
        if dim not in sliced and operand is not None:
            require_full(eqn, operand, dim)
    if sliced and op == "sum":

        def of_own_rows(own: Equation, at: Relation, rows: Relation) -> Relation:
            return _terms(own, None, at, rows, op)

        return owned_updates(eqn, indices, updates, sliced, of_own_rows)
    if sliced:
        raise rows_refused(eqn, sliced[0], "writes")
    indices, updates = settled(eqn, 1, indices), settled(eqn, 2, updates)
    require_positions(eqn, {1: indices})
    view = eqn.only(2, 1)
    base = joint(view, [updates, indices], [labels.updates, labels.indices])
    for axis in updates.partial:
        if axis in base.ranks:
            raise partial_and_sliced(view, [updates, indices], axis)
    terms = result(base, base.dims, measured(view, 0, updates), updates.partial)
    if op is not None:
        counted = labels.counted
        terms = reduced(view, terms, op, counted, counted, labels.shape(eqn.whole))
    return laid_out(eqn, terms, labels.operand)


def _scatter_rule(*names: str) -> Callable[[ScatterRule], ScatterRule]:
    """Registers a rule of (equation, operand, positions, updates); positions may come in
    columns."""

    def register(rule: ScatterRule) -> ScatterRule:
        def relate(eqn: Equation, operand: Relation, *others: Relation) -> Relation:
            *columns, updates = others
            (indices,) = columns if len(columns) == 1 else (None,)
            if indices is None:
                eqn, indices = one_index(eqn, columns)
            eqn, indices = with_unit_batches(eqn, indices)
            return rule(eqn, settled(eqn, 0, operand), indices, updates)

        layout_rule(*names, by_rank=True)(relate)
        return rule

    return register


@_scatter_rule("scatter-add", "scatter-sub")
def _summed(eqn: Equation, operand: Relation, indices: Relation, updates: Relation) -> Relation:
    """The operand and a sum of updates: a pending one is added to zeros, or to a pending
    operand."""
    terms = _terms(eqn, operand, indices, updates, "sum")
    view = eqn.only(0, 2)
    base = together(view, [operand, terms])
    scale, partial = additive(view, [operand, terms])
    return result(base, base.dims, scale, partial)


@_scatter_rule("scatter")
def _replaced(eqn: Equation, operand: Relation, indices: Relation, updates: Relation) -> Relation:
    """A choice between operand and update, which `indices` make alike on every rank."""
    if eqn.per_rank.params["update_jaxpr"] is not None:
        raise Refused(
            "LAYOUT_UNSUPPORTED",
            "a scatter that applies a function to the elements has no rule",
            fixes=("read the elements, apply the function, and set them: x.at[i].set(f(x[i]))",),
        )
    terms = _terms(eqn, operand, indices, updates, None)
    view = eqn.only(0, 2)
    base = together(view, [operand, terms])
    scale, partial = chosen(view, [operand, terms])
    return result(base, base.dims, scale, partial)


@_scatter_rule("scatter-max", "scatter-min")
def _extremum(eqn: Equation, operand: Relation, indices: Relation, updates: Relation) -> Relation:
    """The operand is one more value to take the extremum of, so it may be counted n times."""
    op: ReduceOp = "max" if eqn.op == "scatter-max" else "min"
    terms = _terms(eqn, operand, indices, updates, op)
    view = eqn.only(0, 2)
    base = together(view, [operand, terms])
    operands = [operand, terms]
    for index, x in enumerate(operands):
        for axis, held in x.partial.items():
            if held != op:
                why = f"{op} of {held}s is not the {held} of {op}s"
                raise partial_refused(view, index, axis, held, why)
            if axis in base.ranks:
                raise partial_and_sliced(view, operands, axis)
    scales = [measured(view, index, x) for index, x in enumerate(operands)]
    scale = common_scale(view, scales, positive=True)
    return result(base, base.dims, scale, {a: op for x in operands for a in x.partial})


@_scatter_rule("scatter-mul")
def _multiplied(eqn: Equation, operand: Relation, indices: Relation, updates: Relation) -> Relation:
    """A product with factors that are 1 where no update hits, so they may have no scale."""
    factors = _terms(eqn, operand, indices, updates, "prod")
    view = eqn.only(0, 2)
    base = together(view, [operand, factors])
    partial = multiplicative(view, [operand, factors], linear=(0,))
    scale = product(view, measured(view, 0, operand), 1.0)
    return result(base, base.dims, scale, partial)
