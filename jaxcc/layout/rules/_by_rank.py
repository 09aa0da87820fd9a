"""Integers shifted by the rank's number, masks of them, and values that the masks choose."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import Digit, count, uniform
from jaxcc.layout._dtypes import bits_of, holds_all_to, kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._ranked import (
    ALL,
    NONE,
    IntSet,
    Ranked,
    between,
    each_rank,
    mapped,
    minus,
    one_of_each,
    satisfying,
    varies_over,
)
from jaxcc.layout._relation import ANY_SCALE, Relation, constant, same_scale
from jaxcc.layout._rules import Equation
from jaxcc.layout._settle import placed, settled
from jaxcc.layout._tie import FIRST, NO_INTEGER, Ramp, Tie, one_integer, through
from jaxcc.layout.rules._combine import measured, partial_refused, together
from jaxcc.layout.rules._pointwise import neutral_number, other_integers

Operands = Sequence[Relation]
Sets = tuple[tuple[IntSet, ...], IntSet]
"""A set for each rank at n, and one at 1."""

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _ranks(eqn: Equation) -> int:
    return math.prod(eqn.sizes.values())


def _movable(x: Relation) -> Tie | None:
    """The tie of a whole integer that is another one and a number."""
    tie = x.tie
    if tie is None or tie.shift is None or x.partial or x.local or x.const is not None:
        return None
    return tie if math.isinf(x.scale) or same_scale(x.scale, 1.0, int) else None


def _bare(operands: Operands) -> list[Relation]:
    return [replace(x, tie=None, const=None) for x in operands]


def _related(eqn: Equation, operands: Operands, tie: Tie) -> Relation:
    """The pointwise result of whole integers or booleans, with `tie`."""
    return replace(together(eqn, _bare(operands)).scaled(1.0), tie=tie)


def _is_integer(eqn: Equation, index: int) -> bool:
    """Whether an operand is of signed integers; ramps may be floating, and unsigned ones wrap."""
    return kind_of(eqn.per_rank.dtypes[index]) == "i"


def _with_number(eqn: Equation, operands: Operands) -> list[tuple[int, Tie, tuple[Any, Any]]]:
    """The operand that is a movable integer where the other one is a number: index, tie, number.

    A floating ramp of which every rank has the first block may be shifted, and no more.
    """
    found: list[tuple[int, Tie, tuple[Any, Any]]] = []
    for index in (0, 1):
        tie, number = _movable(operands[index]), operands[1 - index].const
        floating = eqn.op in ("add", "sub") and FIRST in operands[index].ranks
        if not (_is_integer(eqn, index) or floating):
            continue
        if tie is not None and number is not None:
            found.append((index, tie, number))
    return found


def shifted(eqn: Equation, operands: Operands) -> Relation | None:
    """A sum or difference of an integer and a number, perhaps another one on every rank."""
    for index, tie, number in _with_number(eqn, operands):
        if eqn.op == "sub" and index == 1:
            continue
        assert tie.shift is not None
        move = operator.sub if eqn.op == "sub" else operator.add
        at_n, at_1 = (mapped(move, *pair) for pair in zip(tie.shift, number, strict=True))
        shift = (at_n, at_1)
        return _related(eqn, operands, replace(tie, shift=shift, outside=None, inside=ALL))
    return shifted_alike(eqn, operands) if eqn.op == "sub" else None


def compared(eqn: Equation, operands: Operands) -> Relation | None:
    """A mask of an integer and a number, or a comparison of two integers shifted alike."""
    if eqn.op not in _MIRRORED:
        return None
    for index, tie, (limit, limit_1) in _with_number(eqn, operands):
        assert tie.shift is not None
        if not operands[index].by_rank and not isinstance(limit, Ranked) and limit != limit_1:
            # A number that depends on the size of the group alone; the rule has its own words.
            continue
        op = eqn.op if index == 0 else _MIRRORED[eqn.op]
        bounds = minus(limit, tie.shift[0])
        sets = tuple(satisfying(op, bound) for bound in each_rank(bounds, _ranks(eqn)))
        mask = (sets, satisfying(op, limit_1 - tie.shift[1]))
        known = _decided(operands[index], tie, mask)
        if known is not None:
            return constant(eqn.per_rank.out_shapes[0], (known, known))
        if FIRST in operands[index].ranks:
            continue
        made = Tie(tie.root, tie.view, mask=mask, within=tie.within, outside=False)
        return _related(eqn, operands, made)
    return shifted_alike(eqn, operands)


def _decided(x: Relation, tie: Tie, mask: Sets) -> bool | None:
    """Whether a ramp lies in the sets on all ranks and on one, or in none of them, if so."""
    if not isinstance(tie.root, Ramp) or tie.within is not None:
        return None
    here = length = tie.root.length
    if FIRST in x.ranks:
        blocks = count(x.ranks[FIRST])
        here = length // blocks
        if through(x.ranks[FIRST], tie.view) != (Digit(0, here, blocks),):
            return None
    each = [(one, between(0, here)) for one in mask[0]] + [(mask[1], between(0, length))]
    if all(not (one & domain) for one, domain in each):
        return False
    return True if all(domain.within(one) for one, domain in each) else None


def shifted_alike(eqn: Equation, operands: Operands) -> Relation | None:
    """A comparison, or a difference, of two integers whose shifts by rank are one: they cancel."""
    if not any(x.by_rank for x in operands):
        return None
    ties = [_movable(x) for x in operands]
    if any(tie is None or tie.within is not None for tie in ties):
        return None
    offsets = [minus(*tie.shift) for tie in ties if tie is not None and tie.shift is not None]
    plain: list[Relation | None] = list(operands)
    ramps = [index for index in (0, 1) if FIRST in operands[index].ranks]
    if len(ramps) == 1:
        plain[ramps[0]] = placed(operands[ramps[0]], eqn.sizes, offsets[1 - ramps[0]])
    elif ramps or offsets[0] != offsets[1]:
        return None
    left, right = plain
    if left is None or right is None:
        return None
    return together(eqn, _bare([left, right])).scaled(1.0)


def clipped(eqn: Equation, operands: Operands) -> Relation | None:
    """An integer held to bounds: it stays what it is where they do not bite."""
    if eqn.op == "clamp":
        low, x, high = operands
        if not _is_integer(eqn, 1):
            return None
        bounds = [("ge", low.const), ("le", high.const)]
        tie = _movable(x)
    else:
        found = _with_number(eqn, operands)
        if not found:
            return None
        index, tie, number = found[0]
        x, bounds = operands[index], [("ge" if eqn.op == "max" else "le", number)]
    if tie is None or tie.shift is None or FIRST in x.ranks:
        return None
    known = [(op, number) for op, number in bounds if number is not None]
    if len(known) != len(bounds):
        return None
    if not x.by_rank and all(number[0] == number[1] for _, number in known):
        return None
    within = tie.within or (ALL,) * _ranks(eqn)
    for op, (limit, limit_1) in known:
        at_1 = satisfying(op, limit_1 - tie.shift[1])
        ends = minus(limit, tie.shift[0])
        within = tuple(
            one & at_1 & satisfying(op, end)
            for one, end in zip(within, each_rank(ends, _ranks(eqn)), strict=True)
        )
    return _related(eqn, operands, replace(tie, within=within, outside=None, inside=ALL))


# Masks ------------------------------------------------------------------------------------------


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
    sets = tuple(ALL if one else NONE for one in each_rank(at_n, _ranks(eqn)))
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
    return _related(eqn, operands, Tie(*integer, mask=mask, outside=False))


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


def converted(eqn: Equation, operands: Operands) -> Relation | None:
    """A cast that leaves small integers, or booleans, what they are."""
    (x,) = operands
    old, new = eqn.per_rank.dtypes[0], eqn.per_rank.out_dtypes[0]
    if x.tie is None or x.const is not None:
        return None
    if x.tie.mask is not None and x.tie.within is None:
        return _related(eqn, operands, replace(x.tie, outside=0))
    tie = _movable(x)
    if tie is None or kind_of(old) != "i":
        return None
    wider = kind_of(new) == "i" and bits_of(new) >= bits_of(old)
    ramp = isinstance(tie.root, Ramp) and holds_all_to(new, tie.root.length)
    floating = kind_of(new) == "f" and FIRST in x.ranks and ramp
    return _related(eqn, operands, tie) if wider or floating else None


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
    moved = [index for index, case in enumerate(cases) if case.by_rank and _movable(case)]
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
    return _related(eqn, [which, *known], Tie(tie.root, tie.view, within=agreed))


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
    ties = {index: tie for index in moved if (tie := _movable(cases[index])) is not None}
    integer = one_integer([mask, *ties.values()])
    if integer is None:
        raise other_integers(eqn)
    _, index = min((abs(tie.shift[1]), at) for at, tie in ties.items() if tie.shift is not None)
    tie, region = ties[index], regions[index]
    anywhere = (ALL,) * len(region)
    sets = (tie.within or anywhere, mask.within or anywhere, region)
    within = tuple(a & b & c for a, b, c in zip(*sets, strict=True))
    tie = replace(tie, within=within, outside=None, inside=ALL, view=integer[1])
    return _related(eqn, [which, *cases], tie)


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
    values = each_rank(numbers, _ranks(eqn))
    if any(isinstance(number, complex) for number in (*values, number_1)):
        return None
    axes = varies_over(values, eqn.sizes)
    total = sum(one_of_each(values, eqn.sizes))
    x = settled(eqn, at, x)
    if set(axes) <= x.local:
        return together(eqn, _bare([factor, x]))
    pending: Mapping[str, ReduceOp] = {**x.partial, **dict.fromkeys(axes, "sum")}
    summed = all(op == "sum" for op in pending.values())
    if number_1 == 0 or not summed or not math.isfinite(total) or total == 0:
        return None
    if not all(x.plain_over(axis) for axis in axes):
        return None
    base = together(eqn, _bare([factor, x]))
    scale = measured(eqn, at, x)
    ratio = float(total) / float(number_1)
    if math.isinf(scale):
        return replace(base, partial=pending).scaled(ANY_SCALE) if ratio > 0 else None
    return replace(base, partial=pending).scaled(scale * ratio)
