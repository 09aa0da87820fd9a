"""Access at positions that are data: gather, and windows that are cut out, replaced or padded.

A dimension of which all is taken passes its digits on, whatever the position: JAX moves a window
so that it fits. Every rank has to hold all of the other ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcc.layout._constants import number_text
from jaxcc.layout._digits import Digit, normal
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation, constant
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout._settle import settled
from jaxcc.layout.rules._combine import (
    additive,
    common_scale,
    measured,
    partial_and_sliced,
    partial_refused,
    require_unit,
    require_whole,
    result,
)
from jaxcc.layout.rules._joint import Labels, joint, laid_out
from jaxcc.layout.rules.columns import one_index
from jaxcc.layout.rules.rank_blocks import block_into, block_of, own_part, owned_rows
from jaxcc.layout.rules.unit_batches import with_unit_batches


def require_positions(eqn: Equation, positions: Mapping[int, Relation]) -> None:
    """Refuses positions, by operand number, that are not those of a group of one."""
    view, why = eqn.only(*positions), "positions choose elements"
    require_whole(view, list(positions.values()), why)
    require_unit(view, list(positions.values()), why)


def chosen(eqn: Equation, operands: Sequence[Relation]) -> tuple[float, Mapping[str, ReduceOp]]:
    """Scale and pending reductions of a value whose elements are those of `operands`, taken from
    the same one on every rank.

    As in a sum, but what every rank holds is also its own maximum over the ranks.
    """
    ops = {op for operand in operands for op in operand.partial.values()}
    if ops not in ({"max"}, {"min"}):
        return additive(eqn, operands)
    partial: dict[str, ReduceOp] = {}
    for operand in operands:
        partial |= operand.partial
    for axis in partial:
        if any(axis in operand.ranks for operand in operands):
            raise partial_and_sliced(eqn, operands, axis)
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    return common_scale(eqn, scales), partial


def numbered(kept: Sequence[bool]) -> Labels:
    """Joint numbers for the dimensions that are kept, None for the others."""
    labels: list[int | None] = []
    for is_kept in kept:
        labels.append(sum(label is not None for label in labels) if is_kept else None)
    return labels


# Gather -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GatherLabels:
    """The joint dimension of each dimension: batch dimensions of the indices, and dimensions of the
    operand that are taken in full."""

    operand: Labels
    indices: Labels
    out: Labels


def _gather_labels(eqn: Equation) -> _GatherLabels:
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    ndim, out_ndim = len(eqn.per_rank.shapes[0]), len(eqn.per_rank.out_shapes[0])
    batch = [d for d in range(out_ndim) if d not in numbers.offset_dims]
    apart = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(ndim) if d not in apart]
    placed: dict[int, int] = dict(zip(windows, numbers.offset_dims, strict=True))
    full = [placed[d] for d in windows if _taken_in_full(eqn, d)]
    for dim, paired in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        placed[dim] = batch[paired]
    out = numbered([d in batch or d in full for d in range(out_ndim)])
    return _GatherLabels(
        operand=[out[placed[d]] if d in placed else None for d in range(ndim)],
        indices=[*(out[d] for d in batch), None],
        out=out,
    )


def _taken_in_full(eqn: Equation, dim: int) -> bool:
    """Whether the slices reach over all of `dim`, on n ranks and on one."""
    return all(
        side.params["slice_sizes"][dim] == side.shapes[0][dim] for side in (eqn.per_rank, eqn.whole)
    )


@layout_rule("gather", by_rank=True)
def _gather(eqn: Equation, operand: Relation, *columns: Relation) -> Relation:
    (indices,) = columns if len(columns) == 1 else (None,)
    if indices is None:
        eqn, indices = one_index(eqn, columns)
    eqn, indices = with_unit_batches(eqn, indices)
    labels = _gather_labels(eqn)
    sliced = [dim for dim, label in enumerate(labels.operand) if label is None]
    sliced = [dim for dim in sliced if eqn.per_rank.shapes[0][dim] != eqn.whole.shapes[0][dim]]
    if sliced:
        return owned_rows(eqn, operand, indices, sliced, gathered)
    return gathered(eqn, settled(eqn, 0, operand), settled(eqn, 1, indices))


def gathered(eqn: Equation, operand: Relation, indices: Relation) -> Relation:
    """Slices of `operand` at `indices`; every rank holds the indexed dimensions whole.

    Rows out of bounds may be filled with a number, which then is one more operand to choose from.
    """
    require_positions(eqn, {1: indices})
    labels = _gather_labels(eqn)
    base = joint(eqn, [operand, indices], [labels.operand, labels.indices])
    base = laid_out(eqn, base, labels.out)
    scale, partial = _with_fill(eqn, operand)
    for axis in partial:
        if axis in base.ranks:
            raise partial_and_sliced(eqn, [operand, indices], axis)
    return result(base, base.dims, scale, partial)


def _with_fill(eqn: Equation, operand: Relation) -> tuple[float, Mapping[str, ReduceOp]]:
    """Scale and pending reductions of the slices; a mode that fills nothing has no fill value."""
    at_n, at_1 = (side.params["fill_value"] for side in (eqn.per_rank, eqn.whole))
    if at_n is None and at_1 is None:
        return chosen(eqn, [operand])
    fill = constant(eqn.per_rank.out_shapes[0], (at_n, at_1))

    view = Equation(
        eqn.op,
        eqn.sizes,
        eqn.per_rank,
        eqn.whole,
        name=lambda i: f"the fill value {number_text(at_n)}" if i else eqn.name(0),
        layout=lambda i: "Replicated" if i else eqn.layout(0),
        held=lambda i: None if i else eqn.held(0),
        number=lambda i: None if i else eqn.number(0),
    )
    return chosen(view, [operand, fill])


# Windows ------------------------------------------------------------------------------------------


@layout_rule("dynamic_slice", by_rank=True)
def _dynamic_slice(eqn: Equation, x: Relation, *starts: Relation) -> Relation:
    x = settled(eqn, 0, x)
    sizes, whole_sizes = (side.params["slice_sizes"] for side in (eqn.per_rank, eqn.whole))
    labels = numbered([_taken_in_full(eqn, dim) for dim in range(len(sizes))])
    cut = [dim for dim, label in enumerate(labels) if label is None]
    own = [dim for dim in cut if sizes[dim] != whole_sizes[dim]]
    if own:
        made = block_of(eqn, x, starts, own, _dynamic_slice)
        return made if made is not None else _other_window(eqn, x)
    if len(cut) == 1 and sizes[cut[0]] == 1:
        made = own_part(eqn, x, starts[cut[0]], cut[0])
        if made is not None:
            return made
    at = {1 + dim: settled(eqn, 1 + dim, starts[dim]) for dim in cut}
    require_positions(eqn, at)
    base = joint(eqn.only(0, *at), [x, *at.values()], [labels, *[()] * len(at)])
    base = laid_out(eqn, base, labels)
    scale, partial = chosen(eqn, [x])
    return result(base, base.dims, scale, partial)


def _other_window(eqn: Equation, x: Relation) -> Relation:
    """A window that is smaller on a rank than on a group of one, and not the rank's block of it."""
    for axis, op in x.partial.items():
        raise partial_refused(eqn, 0, axis, op, "a block of one rank's term is none of the sum's")
    sizes, whole_sizes = (side.params["slice_sizes"] for side in (eqn.per_rank, eqn.whole))
    raise Refused(
        "LAYOUT_SLICE",
        f"dynamic_slice takes a window of shape {tuple(sizes)} on n ranks and of shape "
        f"{tuple(whole_sizes)} on one, but {eqn.name(0)} is {eqn.layout(0)}",
        because="the window is not the rank's block of the whole window",
        fixes=(
            f"pass {eqn.name(0)} as a Sliced argument",
            "start at jax.lax.axis_index(axis) * size in an array that every rank holds whole",
        ),
    )


@layout_rule("dynamic_update_slice", by_rank=True)
def _dynamic_update_slice(
    eqn: Equation, x: Relation, update: Relation, *starts: Relation
) -> Relation:
    x, update = settled(eqn, 0, x), settled(eqn, 1, update)
    ndim = len(eqn.per_rank.shapes[0])
    labels = numbered([_replaced_in_full(eqn, dim) for dim in range(ndim)])
    cut = [dim for dim, label in enumerate(labels) if label is None]
    if not cut:
        return update
    own = [dim for dim in cut if eqn.per_rank.shapes[1][dim] != eqn.whole.shapes[1][dim]]
    if own:
        made = block_into(eqn, x, update, starts, own, _dynamic_update_slice)
        return made if made is not None else _other_update(eqn)
    at = {2 + dim: settled(eqn, 2 + dim, starts[dim]) for dim in cut}
    require_positions(eqn, at)
    base = joint(eqn.only(0, 1, *at), [x, update, *at.values()], [labels, labels, *[()] * len(at)])
    base = laid_out(eqn, base, labels)
    scale, partial = chosen(eqn, [x, update])
    return result(base, base.dims, scale, partial)


def _replaced_in_full(eqn: Equation, dim: int) -> bool:
    return all(side.shapes[0][dim] == side.shapes[1][dim] for side in (eqn.per_rank, eqn.whole))


def _other_update(eqn: Equation) -> Relation:
    """A window that is replaced by a smaller update on a rank than on a group of one."""
    raise Refused(
        "LAYOUT_SLICE",
        f"dynamic_update_slice replaces a window of shape {eqn.per_rank.shapes[1]} on n ranks and "
        f"of shape {eqn.whole.shapes[1]} on one: {eqn.name(1)} is {eqn.layout(1)}, and "
        f"{eqn.name(0)} is {eqn.layout(0)}",
        because="a rank's block would be written where another rank's belongs",
        fixes=(f"all_gather {eqn.name(1)} first",),
    )


# Padding ------------------------------------------------------------------------------------------


@layout_rule("pad")
def _pad(eqn: Equation, x: Relation, value: Relation) -> Relation:
    blocks = [_blocks(eqn, dim) for dim in range(len(eqn.per_rank.shapes[0]))]
    labels = numbered([count is not None for count in blocks])
    before = "pad before the array is sliced"
    base = joint(eqn, [x, value], [labels, ()], fixes=(before,))
    base = laid_out(eqn, base, labels)
    dims = [
        normal((Digit(dim, eqn.whole.shapes[0][dim], count or 1), *digits))
        for dim, (count, digits) in enumerate(zip(blocks, base.dims, strict=True))
    ]
    scale, partial = chosen(eqn, [x, value])
    return result(base, dims, scale, partial)


def _blocks(eqn: Equation, dim: int) -> int | None:
    """As how many blocks of the operand's size a padded dimension is seen.

    One if it is not padded, None if every rank has to hold it whole. The gradient of a split along
    a sliced dimension pads it by whole blocks, of another size on n ranks than on one.
    """
    n, whole = eqn.per_rank.shapes[0][dim], eqn.whole.shapes[0][dim]
    configs = [tuple(map(int, s.params["padding_config"][dim])) for s in (eqn.per_rank, eqn.whole)]
    (low, high, gap), (whole_low, whole_high, whole_gap) = configs
    if configs == [(0, 0, 0)] * 2:
        return 1
    if n == whole and configs[0] == configs[1]:
        return None
    if not gap and not whole_gap and n and low >= 0 and high >= 0 and not (low % n or high % n):
        before, after = low // n, high // n
        if (whole_low, whole_high) == (before * whole, after * whole):
            return before + 1 + after
    raise Refused(
        "LAYOUT_NEEDS_WHOLE_DIM",
        f"pad of dimension {dim} needs all of it, but {eqn.name(0)} is {eqn.layout(0)}",
        because="every rank would pad its own block, and the padding would stand between them",
        fixes=(
            "pad before the array is sliced",
            "for a halo: exchange the edges of the blocks with the neighbours (ppermute)",
        ),
    )
