"""Masks of integers by the rank's interval, and the values that they choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._ranked import ALL, NONE, IntSet, Ranked, each_rank, one_of_each, varies_over
from jaxcc.layout._relation import ANY_SCALE, Relation, same_scale
from jaxcc.layout._rules import Equation
from jaxcc.layout._settle import settled
from jaxcc.layout._tie import FIRST, NO_INTEGER, Tie, one_integer
from jaxcc.layout.rules._by_rank import Operands, Sets, bare, movable, ranks_of, related
from jaxcc.layout.rules._combine import measured, partial_refused, together
from jaxcc.layout.rules._pointwise import neutral_number, other_integers


def mask_of(eqn: Equation, x: Relation) -> Tie | None:
    """A boolean, or 0 and 1, as a mask of an integer; one by rank alone is a mask of none.

    Of an integer that is right only somewhere the mask is so too.
    """
    if x.local or x.partial:
        return None
    if x.tie is not None and x.tie.mask is not None:
        return x.tie
    if x.const is None:
        return None
    view = tuple(uniform(size) for size in eqn.whole.out_shapes[0])
    at_n, at_1 = x.const
    sets = tuple(ALL if one else NONE for one in each_rank(at_n, ranks_of(eqn)))
    mask = (sets, ALL if at_1 else NONE)
    return Tie(NO_INTEGER, view, mask=mask, outside=False)


def combined(eqn: Equation, operands: Operands) -> Relation | None:
    """`and`, `or`, `xor` and `not` of masks."""
    if any(dtype != np.bool_ for dtype in eqn.per_rank.dtypes):
        return None
    found = [mask_of(eqn, x) for x in operands]
    masks = [tie for tie in found if tie is not None and tie.mask is not None]
    if not masks or any(tie.within is not None for tie in masks):
        return None
    if len(masks) != len(operands):
        return _mask_and_boolean(eqn, operands, found)
    integer = one_integer(masks)
    if integer is None:
        return None
    each = [tie.mask for tie in masks if tie.mask is not None]
    sets = tuple(_logic(eqn.op, ranks) for ranks in zip(*(mask[0] for mask in each), strict=True))
    mask = (sets, _logic(eqn.op, [mask[1] for mask in each]))
    return related(eqn, operands, Tie(*integer, mask=mask, outside=False))


def _logic(op: str, sets: Sequence[IntSet]) -> IntSet:
    if op == "not":
        return ~sets[0]
    a, b = sets
    return {"and": a & b, "or": a | b, "xor": (a | b) & ~(a & b)}[op]


def _mask_and_boolean(
    eqn: Equation, operands: Operands, found: Sequence[Tie | None]
) -> Relation | None:
    """`and` of a mask and a boolean that every rank holds: the boolean where the mask is set."""
    index = next(i for i, tie in enumerate(found) if tie is not None)
    tie = found[index]
    assert tie is not None and tie.mask is not None
    if eqn.op != "and" or tie.everywhere:
        return None
    return owned(eqn, operands[index], tie, tie.mask, operands[1 - index], False, at=1 - index)


def chosen(eqn: Equation, operands: Operands) -> Relation | None:
    """A choice by a mask."""
    which, *cases = operands
    tie = mask_of(eqn, which)
    if tie is None or tie.mask is None or len(cases) != 2:
        return None
    sets, at_1 = tie.mask
    unset: Sets = tuple(~one for one in sets), ~at_1
    both_set = tuple(one & at_1 for one in sets)
    both_unset = tuple(one & unset[1] for one in unset[0])
    moved = [index for index, case in enumerate(cases) if case.by_rank and movable(case)]
    if tie.within is not None or all(one == at_1 for one in sets):
        regions = (both_unset, both_set)
        return _one_shift(eqn, which, tie, cases, regions, moved) if moved else None
    for case, neutral, mask in ((1, 0, tie.mask), (0, 1, unset)):
        number = neutral_number(cases[neutral])
        if number is not None and neutral_number(cases[case]) is None:
            return owned(eqn, which, tie, mask, cases[case], number, at=case + 1)
    if moved:
        return _one_shift(eqn, which, tie, cases, (both_unset, both_set), moved)
    agreed = tuple(a | b for a, b in zip(both_set, both_unset, strict=True))
    known = [settled(eqn, index, case) for index, case in enumerate(cases, 1)]
    if any(x.partial for x in known) or not all(
        math.isinf(x.scale) or same_scale(x.scale, 1.0) for x in known
    ):
        return None
    return related(eqn, [which, *known], Tie(tie.root, tie.view, within=agreed))


def _one_shift(
    eqn: Equation,
    which: Relation,
    mask: Tie,
    cases: Operands,
    regions: tuple[tuple[IntSet, ...], tuple[IntSet, ...]],
    moved: Sequence[int],
) -> Relation:
    """Of shifted copies of an integer (the cases `moved`) the least shifted, where it is chosen.

    An index that counts from the end when it is negative is such a choice.
    """
    ties = {index: tie for index in moved if (tie := movable(cases[index])) is not None}
    integer = one_integer([mask, *ties.values()])
    if integer is None:
        raise other_integers(eqn)
    _, index = min((abs(tie.shift[1]), at) for at, tie in ties.items() if tie.shift is not None)
    tie, region = ties[index], regions[index]
    anywhere = (ALL,) * len(region)
    sets = (tie.within or anywhere, mask.within or anywhere, region)
    within = tuple(a & b & c for a, b, c in zip(*sets, strict=True))
    tie = replace(tie, within=within, outside=None, inside=ALL, view=integer[1])
    return related(eqn, [which, *cases], tie)


def owned(
    eqn: Equation,
    which: Relation,
    mask: Tie,
    sets: Sets,
    x: Relation,
    neutral: Any,
    at: int = 1,
) -> Relation | None:
    """`x` (operand `at`) where an integer lies in the rank's set, else a neutral number."""
    chosen_n, chosen_1 = sets
    if x.const is not None or FIRST in x.ranks or (x.tie is not None and x.tie.mask is not None):
        x = settled(eqn, at, x)
    tie = x.tie if x.by_rank else None
    integer = one_integer([mask] if tie is None else [mask, tie])
    if integer is None:
        raise other_integers(eqn)
    right = tie.within if tie is not None and tie.within is not None else (ALL,) * len(chosen_n)
    elsewhere = tie is not None and tie.outside is not None and tie.outside == neutral
    within = tuple(a & b & chosen_1 for a, b in zip(right, chosen_n, strict=True))
    exact = all(
        (elsewhere or own.within(ok)) and (own & ok).within(chosen_1)
        for own, ok in zip(chosen_n, right, strict=True)
    )
    axes = varies_over(within, eqn.sizes)
    for axis, op in x.partial.items():
        if axis in axes or axis in which.ranks or op != "sum" or neutral != 0:
            raise partial_refused(eqn, at, axis, op, "each rank would choose other terms")
    base = together(eqn, [replace(which, tie=None, const=None), replace(x, tie=None)])
    scale = measured(eqn, at, x)
    made = replace(base, partial=dict(x.partial)).scaled(scale)
    if axes and set(axes) <= base.local:
        return made
    root, view = integer
    same = x.tie is not None and (x.tie.root, x.tie.view) == (root, view)
    shift = x.tie.shift if same and x.tie is not None else None
    inside = chosen_1 & (tie.inside if tie is not None else ALL)
    outside = neutral if exact else None
    # What is chosen and not right may be NaN; what is not chosen is the neutral number.
    covered = all(own.within(ok) for own, ok in zip(chosen_n, right, strict=True))
    return replace(
        made,
        tie=Tie(
            root,
            view,
            shift=shift,
            within=within,
            outside=outside,
            inside=inside,
            finite=covered or tie is None or tie.finite,
        ),
    )


def weighted(eqn: Equation, operands: Operands) -> Relation | None:
    """A product with a mask, or with a number of each rank's own."""
    for index in (0, 1):
        factor, x = operands[index], operands[1 - index]
        if factor.const is not None and isinstance(factor.const[0], Ranked):
            return _by_numbers(eqn, factor, 1 - index, x)
        mask = factor.tie if factor.by_rank else None
        if mask is None or mask.mask is None or mask.within is not None:
            continue
        if x.tie is None or not x.by_rank or x.tie.finite:
            return owned(eqn, factor, mask, mask.mask, x, 0, at=1 - index)
    return None


def _by_numbers(eqn: Equation, factor: Relation, at: int, x: Relation) -> Relation | None:
    """What each rank multiplies by a number of its own: their sum is a multiple of the whole."""
    assert factor.const is not None
    numbers, number_1 = factor.const
    values = each_rank(numbers, ranks_of(eqn))
    if any(isinstance(number, complex) for number in (*values, number_1)):
        return None
    axes = varies_over(values, eqn.sizes)
    total = sum(one_of_each(values, eqn.sizes))
    x = settled(eqn, at, x)
    if set(axes) <= x.local:
        return together(eqn, bare([factor, x]))
    pending: Mapping[str, ReduceOp] = {**x.partial, **dict.fromkeys(axes, "sum")}
    summed = all(op == "sum" for op in pending.values())
    if number_1 == 0 or not summed or not math.isfinite(total) or total == 0:
        return None
    if not all(x.plain_over(axis) for axis in axes):
        return None
    base = together(eqn, bare([factor, x]))
    scale = measured(eqn, at, x)
    ratio = float(total) / float(number_1)
    if math.isinf(scale):
        return replace(base, partial=pending).scaled(ANY_SCALE) if ratio > 0 else None
    return replace(base, partial=pending).scaled(scale * ratio)
