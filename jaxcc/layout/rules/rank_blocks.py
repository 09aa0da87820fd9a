"""Access to a rank's own block at positions that its number gives: the rows of a sliced table, the
block of an array that all ranks hold.

Ids less `axis_index * block` are rows of the rank's block for the ids that it owns; see `_tie`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.lax import GatherScatterMode

from jaxcc.layout._digits import Digits, uniform, whole_dim
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._ranked import (
    ALL,
    IntSet,
    Ranked,
    between,
    block_digits,
    each_rank,
    minus,
    ranked,
    varies_over,
)
from jaxcc.layout._relation import Relation, constant
from jaxcc.layout._rules import Equation, Refused, Side
from jaxcc.layout._settle import settled
from jaxcc.layout._tie import FIRST, Tie

VOCABULARY = (
    "for a table whose rows are sliced: mine = ids - jax.lax.axis_index(axis) * rows; own = "
    "(mine >= 0) & (mine < rows); take the rows at jax.numpy.where(own, mine, 0), put 0 where not "
    "own, and psum",
)


def taking_size(of: Side, operand: int, dim: int, size: int) -> Side:
    """The side of an equation whose operand had another size along a dimension."""
    shapes = list(of.shapes)
    shape = list(shapes[operand])
    shape[dim] = size
    shapes[operand] = tuple(shape)
    return replace(of, shapes=tuple(shapes))


def with_dim(x: Relation, dim: int, digits: Digits, drop: Sequence[str] = ()) -> Relation:
    """The relation with other digits along a dimension, and without what `drop` axes select."""
    ranks = {axis: held for axis, held in x.ranks.items() if axis not in drop}
    return replace(x, dims=(*x.dims[:dim], digits, *x.dims[dim + 1 :]), ranks=ranks, const=None)


def index_tie(indices: Relation) -> Tie | None:
    """The tie of positions that are an integer and a number."""
    tie = indices.tie
    known = tie is not None and tie.shift is not None and FIRST not in indices.ranks
    return tie if known and not indices.partial and not indices.local else None


def own_rows(
    eqn: Equation, tie: Tie, dim: int, operand: int = 0
) -> tuple[Mapping[str, Digits], tuple[IntSet, ...]] | None:
    """Which blocks of `dim` the ranks hold if their positions are right, and for which integers a
    position lies in the rank's block and is right.

    None if the positions are not those of a group of one less the start of the rank's block.
    """
    assert tie.shift is not None
    at_n, at_1 = tie.shift
    block, whole = eqn.per_rank.shapes[operand][dim], eqn.whole.shapes[operand][dim]
    ranks = math.prod(eqn.sizes.values())
    offsets = each_rank(minus(at_1, at_n), ranks)
    if any(offset % block for offset in offsets):
        return None
    found = block_digits(ranked(o // block for o in offsets), dim, block, eqn.sizes)
    if found is None or found[1] * block != whole:
        return None
    within = tie.within or (ALL,) * ranks
    inside = tuple(
        one & between(-at, block - at)
        for one, at in zip(within, each_rank(at_n, ranks), strict=True)
    )
    return found[0], inside


def one_position(
    indices: Relation, map_: Sequence[int], dims: Sequence[int], single: Sequence[int]
) -> bool:
    """Whether the positions count single elements of one dimension, the only one that is sliced.

    A window of more than one element, which dimensions in `single` have not, could reach into the
    next rank's block.
    """
    one = len(dims) == 1 and tuple(map_) == tuple(dims) and dims[0] in single
    return one and bool(indices.dims)


def batch_view(tie: Tie, out: Sequence[int], windows: Sequence[int]) -> tuple[Digits, ...]:
    """The view of an array of shape `out` whose dimensions but `windows` are those of the
    positions, in order."""
    batch = iter(tie.view[:-1])
    return tuple(uniform(size) if dim in windows else next(batch) for dim, size in enumerate(out))


def rows_refused(eqn: Equation, dim: int, what: str) -> Refused:
    """The error for positions along a sliced dimension that are not the rank's own."""
    return Refused(
        "LAYOUT_RANK_INDEX",
        f"{eqn.op} {what} at {eqn.name(1)} along dimension {dim} of {eqn.name(0)}, which is "
        f"{eqn.layout(0)}: a rank holds a block of it",
        because="the indices count the whole dimension, and every rank counts its block from 0",
        fixes=(f"all_gather dimension {dim} of {eqn.name(0)} first", *VOCABULARY),
    )


def owned_rows(
    eqn: Equation, table: Relation, indices: Relation, dims: Sequence[int], gathered: Any
) -> Relation:
    """Rows of a table whose rows are sliced: right for the ids that the rank owns.

    `gathered` relates rows of a table that every rank holds whole.
    """
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    table, tie = settled(eqn, 0, table), index_tie(indices)
    single = [d for d, size in enumerate(eqn.per_rank.params["slice_sizes"]) if size == 1]
    if tie is None or not one_position(indices, numbers.start_index_map, dims, single):
        raise rows_refused(eqn, dims[0], "takes elements")
    (dim,) = dims
    rows = own_rows(eqn, tie, dim)
    if rows is None or not _holds_blocks(eqn, table, dim, rows[0]):
        raise rows_refused(eqn, dim, "takes elements")
    whole = eqn.whole.shapes[0][dim]
    view = replace(eqn, per_rank=taking_size(eqn.per_rank, 0, dim, whole))
    complete = with_dim(table, dim, whole_dim(dim, whole), drop=tuple(rows[0]))
    made: Relation = gathered(view, complete, replace(indices, tie=None))
    if set(varies_over(rows[1], eqn.sizes)) & {*made.partial, *made.ranks, *made.local}:
        raise rows_refused(eqn, dim, "takes elements")
    out = batch_view(tie, eqn.whole.out_shapes[0], numbers.offset_dims)
    finite = eqn.per_rank.params["mode"] != GatherScatterMode.FILL_OR_DROP
    return replace(made, const=None, tie=Tie(tie.root, out, within=rows[1], finite=finite))


def _holds_blocks(eqn: Equation, x: Relation, dim: int, ranks: Mapping[str, Digits]) -> bool:
    """Whether each rank holds the block of `dim` that `ranks` says, in order."""
    block = eqn.per_rank.shapes[0][dim]
    selected = {axis: held for axis, held in x.ranks.items() if any(d.dim == dim for d in held)}
    return selected == dict(ranks) and x.dims[dim] == whole_dim(dim, block)


def owned_updates(
    eqn: Equation, indices: Relation, updates: Relation, dims: Sequence[int], terms: Any
) -> Relation:
    """The block of a sum of updates, of which each rank has those for the rows that it owns.

    `terms` relates the sum of updates into an array that every rank holds whole.
    """
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    tie = index_tie(indices)
    map_, single = numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims
    if tie is None or not one_position(indices, map_, dims, single):
        raise rows_refused(eqn, dims[0], "writes")
    (dim,) = dims
    rows = own_rows(eqn, tie, dim)
    drops = eqn.per_rank.params["mode"] == GatherScatterMode.FILL_OR_DROP
    if rows is None or not _adds_own(eqn, tie, rows[1], updates, numbers, drops):
        raise rows_refused(eqn, dim, "writes")
    whole = eqn.whole.shapes[0][dim]
    side = taking_size(eqn.per_rank, 0, dim, whole)
    view = replace(eqn, per_rank=replace(side, out_shapes=(side.shapes[0],)))
    bare = updates if not updates.by_rank else replace(updates, tie=None)
    made: Relation = terms(view, replace(indices, tie=None), bare)
    if {*rows[0]} & {*made.partial, *made.ranks, *made.local}:
        raise rows_refused(eqn, dim, "writes")
    block = eqn.per_rank.shapes[0][dim]
    mine = with_dim(made, dim, whole_dim(dim, block))
    return replace(mine, ranks={**mine.ranks, **rows[0]})


def _adds_own(
    eqn: Equation,
    tie: Tie,
    rows: Sequence[IntSet],
    updates: Relation,
    numbers: Any,
    drops: bool,
) -> bool:
    """Whether each rank adds just the updates that fall into its block."""
    if not updates.by_rank:
        return drops and tie.within is None
    other = updates.tie.owned if updates.tie is not None else None
    if other is None or other.within is None or other.mask is not None or not other.offset_free:
        return False
    view = batch_view(tie, eqn.whole.shapes[2], numbers.update_window_dims)
    if other.root != tie.root or other.view != view or other.outside != 0:
        return False
    return all(
        own.within(right) and (other.inside & right).within(own)
        for own, right in zip(other.within, rows, strict=True)
    )


def rank_window(
    eqn: Equation, start: Relation, dim: int, size: int, whole: int, length: int
) -> Mapping[str, Digits] | None:
    """Which block of a window of `whole` elements the rank's window of `size` is, by axis.

    `length` is that of the dimension, by which JAX clamps the start.
    """
    if start.const is None or size == 0 or whole % size:
        return None
    at_n, at_1 = start.const
    first = min(max(at_1, 0), length - whole)
    starts = each_rank(at_n, math.prod(eqn.sizes.values()))
    offsets = [min(max(at, 0), length - size) - first for at in starts]
    if any(offset % size for offset in offsets):
        return None
    found = block_digits(ranked(o // size for o in offsets), dim, size, eqn.sizes)
    return found[0] if found is not None and found[1] * size == whole else None


def block_of(
    eqn: Equation, x: Relation, starts: Sequence[Relation], dims: Sequence[int], cut: Any
) -> Relation | None:
    """The rank's block of a window of a value that every rank holds whole; None if it is none.

    `cut` relates a window that is the same on n ranks and on one.
    """
    if len(dims) != 1:
        return None
    (dim,) = dims
    (size, whole), (length, whole_length) = (
        [side.params["slice_sizes"][dim] for side in (eqn.per_rank, eqn.whole)],
        [side.shapes[0][dim] for side in (eqn.per_rank, eqn.whole)],
    )
    if length != whole_length:
        return None
    ranks = rank_window(eqn, starts[dim], dim, size, whole, length)
    if ranks is None or any(not x.plain_over(axis) for axis in ranks):
        return None
    sizes = list(eqn.per_rank.params["slice_sizes"])
    sizes[dim] = whole
    side = replace(
        eqn.per_rank,
        params={**eqn.per_rank.params, "slice_sizes": tuple(sizes)},
        out_shapes=(tuple(sizes),),
    )
    fixed = [constant((), (0, 0)) if d == dim else start for d, start in enumerate(starts)]
    made: Relation = cut(replace(eqn, per_rank=side), x, *fixed)
    if made.dims[dim] == uniform(whole):
        return with_dim(made, dim, uniform(size))
    if made.dims[dim] != whole_dim(dim, whole):
        return None
    return replace(with_dim(made, dim, whole_dim(dim, size)), ranks={**made.ranks, **ranks})


def own_part(eqn: Equation, x: Relation, start: Relation, dim: int) -> Relation | None:
    """What the rank's number picks from a dimension that counts the blocks of a whole one.

    `x.reshape(n, -1)[axis_index]` is the rank's block of `x`, and all of it on one rank.
    """
    digits = x.dims[dim]
    if start.const is None or eqn.whole.shapes[0][dim] != 1 or len(digits) != 1:
        return None
    at_n, _ = start.const
    (digit,) = digits
    found = block_digits(at_n, digit.dim, digit.stride, eqn.sizes) if digit.named else None
    if found is None or found[1] != digit.size:
        return None
    if any(not x.plain_over(axis) for axis in found[0]):
        return None
    made = with_dim(x, dim, ())
    return replace(made, ranks={**made.ranks, **found[0]})


def block_into(
    eqn: Equation,
    x: Relation,
    update: Relation,
    starts: Sequence[Relation],
    dims: Sequence[int],
    replaced: Any,
) -> Relation | None:
    """Zeros with the rank's block of an update: a pending sum of the whole update.

    `replaced` relates an update that every rank holds whole.
    """
    if len(dims) != 1 or x.const is None or x.const[0] != x.const[1] or update.const is not None:
        return None
    (dim,) = dims
    op: ReduceOp | None = {0: "sum", -math.inf: "max", math.inf: "min"}.get(x.const[0])  # pyright: ignore[reportAssignmentType]
    size, whole = (side.shapes[1][dim] for side in (eqn.per_rank, eqn.whole))
    length, whole_length = (side.shapes[0][dim] for side in (eqn.per_rank, eqn.whole))
    if op is None or isinstance(x.const[0], Ranked) or length != whole_length:
        return None
    ranks = rank_window(eqn, starts[dim], dim, size, whole, length)
    selected = {a: held for a, held in update.ranks.items() if any(d.dim == dim for d in held)}
    if ranks is None or selected != dict(ranks) or update.dims[dim] != whole_dim(dim, size):
        return None
    if any(held != op for held in update.partial.values()):
        return None
    view = replace(eqn, per_rank=taking_size(eqn.per_rank, 1, dim, whole))
    complete = with_dim(update, dim, whole_dim(dim, whole), drop=tuple(ranks))
    fixed = [constant((), (0, 0)) if d == dim else start for d, start in enumerate(starts)]
    made: Relation = replaced(view, x, complete, *fixed)
    if op != "sum" and not (math.isinf(made.scale) or made.scale > 0):
        return None
    return replace(made, partial={**made.partial, **dict.fromkeys(ranks, op)}, const=None)
