"""Positions that are given a dimension at a time: `x[jnp.arange(rows), labels]`.

JAX puts the columns side by side in one array; the walk sees them apart. A column that counts a
dimension of the batch itself says that row i is read at row i, which holds within a rank's block as
in the whole: then that dimension is a batch dimension of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._digits import count, whole_dim
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Side
from jaxcc.layout._settle import settled
from jaxcc.layout._tie import FIRST, Ramp
from jaxcc.layout.rules._combine import require_unit, require_whole, together

# What gather and scatter call the same things.
_NAMES = {
    "map": ("start_index_map", "scatter_dims_to_operand_dims"),
    "dropped": ("collapsed_slice_dims", "inserted_window_dims"),
    "batch": ("start_indices_batching_dims", "scatter_indices_batching_dims"),
    "windows": ("offset_dims", "update_window_dims"),
}


def names_of(numbers: Any) -> dict[str, str]:
    """What the fields of these dimension numbers are called."""
    return {key: next(n for n in names if hasattr(numbers, n)) for key, names in _NAMES.items()}


def one_index(eqn: Equation, columns: Sequence[Relation]) -> tuple[Equation, Relation]:
    """The equation, and its positions, as if these were one operand."""
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    name = names_of(numbers)
    dims: Sequence[int] = getattr(numbers, name["map"])
    batches = {
        at: batch
        for at, (column, dim) in enumerate(zip(columns, dims, strict=True))
        if dim in getattr(numbers, name["dropped"])
        and (batch := _counted(eqn, column, at, dim)) is not None
    }
    rest = [at for at in range(len(columns)) if at not in batches]
    if not rest or len(set(batches.values())) < len(batches):
        batches, rest = {}, list(range(len(columns)))
    taken = [dims[at] for at in batches]
    pairs = sorted(
        [
            *zip(numbers.operand_batching_dims, getattr(numbers, name["batch"]), strict=True),
            *((dims[at], batch) for at, batch in batches.items()),
        ]
    )
    changed = numbers._replace(
        **{
            name["map"]: tuple(dims[at] for at in rest),
            name["dropped"]: tuple(d for d in getattr(numbers, name["dropped"]) if d not in taken),
            name["batch"]: tuple(batch for _, batch in pairs),
            "operand_batching_dims": tuple(dim for dim, _ in pairs),
        }
    )
    after = 1 + len(columns)

    def place(index: int) -> int:
        return index if index == 0 else 1 + rest[0] if index == 1 else index - 2 + after

    def side(of: Side) -> Side:
        indices = (*of.shapes[1][:-1], len(rest))
        return replace(
            of,
            params={**of.params, "dimension_numbers": changed},
            shapes=(of.shapes[0], indices, *of.shapes[after:]),
            dtypes=(of.dtypes[0], of.dtypes[1], *of.dtypes[after:]),
        )

    view = replace(eqn.renumbered(place), per_rank=side(eqn.per_rank), whole=side(eqn.whole))
    if len(rest) == 1:
        return view, columns[rest[0]]
    known = [settled(eqn, 1 + at, columns[at]) for at in rest]
    return view, _side_by_side(eqn.only(*(1 + at for at in rest)), known)


def _counted(eqn: Equation, column: Relation, at: int, dim: int) -> int | None:
    """The batch dimension that a column counts, if that is as long as dimension `dim`."""
    tie = column.tie
    if tie is None or tie.shift != (0, 0) or tie.within is not None or column.const is not None:
        return None
    here, whole = eqn.per_rank.shapes[1 + at], eqn.whole.shapes[1 + at]
    size, length = eqn.per_rank.shapes[0][dim], eqn.whole.shapes[0][dim]
    walked = [d for d, digits in enumerate(tie.view) if any(digit.named for digit in digits)]
    if tie.root != Ramp(length) or len(walked) != 1:
        return None
    (batch,) = walked
    if (here[batch], whole[batch]) != (size, length) or tie.view[batch] != whole_dim(0, length):
        return None
    first = column.ranks.get(FIRST, ())
    blocks = whole_dim(batch, length) == column.dims[batch] and not column.ranks
    starts = column.dims[batch] == whole_dim(batch, size) and set(column.ranks) == {FIRST}
    starts = starts and count(first) * size == length and all(d.dim == batch for d in first)
    return batch if blocks or starts else None


def _side_by_side(eqn: Equation, columns: Sequence[Relation]) -> Relation:
    """Several columns as one array of positions."""
    require_whole(eqn, columns, "positions choose elements")
    require_unit(eqn, columns, "positions choose elements")
    base = together(eqn, columns)
    last = len(base.dims) - 1
    return replace(base, dims=(*base.dims[:-1], whole_dim(last, len(columns)))).scaled(1.0)
