"""Integers that are shifted by the rank's number: sums, comparisons, bounds and casts of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._digits import Digit, count
from jaxcc.layout._dtypes import bits_of, holds_all_to, kind_of
from jaxcc.layout._ranked import (
    ALL,
    IntSet,
    Ranked,
    between,
    each_rank,
    mapped,
    minus,
    satisfying,
)
from jaxcc.layout._relation import Relation, constant, same_scale
from jaxcc.layout._rules import Equation
from jaxcc.layout._settle import placed
from jaxcc.layout._tie import FIRST, Ramp, Tie, through
from jaxcc.layout.rules._combine import together

Operands = Sequence[Relation]
Sets = tuple[tuple[IntSet, ...], IntSet]
"""A set for each rank at n, and one at 1."""

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def ranks_of(eqn: Equation) -> int:
    """How many ranks the mesh has."""
    return math.prod(eqn.sizes.values())


def movable(x: Relation) -> Tie | None:
    """The tie of a whole integer that is another one and a number."""
    tie = x.tie
    if tie is None or tie.shift is None or x.partial or x.local or x.const is not None:
        return None
    return tie if math.isinf(x.scale) or same_scale(x.scale, 1.0, int) else None


def bare(operands: Operands) -> list[Relation]:
    """The relations without ties and numbers."""
    return [replace(x, tie=None, const=None) for x in operands]


def related(eqn: Equation, operands: Operands, tie: Tie) -> Relation:
    """The pointwise result of whole integers or booleans, with `tie`."""
    return replace(together(eqn, bare(operands)).scaled(1.0), tie=tie)


def _is_integer(eqn: Equation, index: int) -> bool:
    """Whether an operand is of signed integers; ramps may be floating, and unsigned ones wrap."""
    return kind_of(eqn.per_rank.dtypes[index]) == "i"


def _with_number(eqn: Equation, operands: Operands) -> list[tuple[int, Tie, tuple[Any, Any]]]:
    """The operand that is a movable integer where the other one is a number: index, tie, number.

    A floating ramp of which every rank has the first block may be shifted, and no more.
    """
    found: list[tuple[int, Tie, tuple[Any, Any]]] = []
    for index in (0, 1):
        tie, number = movable(operands[index]), operands[1 - index].const
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
        return related(eqn, operands, replace(tie, shift=shift, outside=None, inside=ALL))
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
        sets = tuple(satisfying(op, bound) for bound in each_rank(bounds, ranks_of(eqn)))
        mask = (sets, satisfying(op, limit_1 - tie.shift[1]))
        known = _decided(operands[index], tie, mask)
        if known is not None:
            return constant(eqn.per_rank.out_shapes[0], (known, known))
        if FIRST in operands[index].ranks:
            continue
        made = Tie(tie.root, tie.view, mask=mask, within=tie.within, outside=False)
        return related(eqn, operands, made)
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
    ties = [movable(x) for x in operands]
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
    return together(eqn, bare([left, right])).scaled(1.0)


def clipped(eqn: Equation, operands: Operands) -> Relation | None:
    """An integer held to bounds: it stays what it is where they do not bite."""
    if eqn.op == "clamp":
        low, x, high = operands
        if not _is_integer(eqn, 1):
            return None
        bounds = [("ge", low.const), ("le", high.const)]
        tie = movable(x)
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
    within = tie.within or (ALL,) * ranks_of(eqn)
    for op, (limit, limit_1) in known:
        at_1 = satisfying(op, limit_1 - tie.shift[1])
        ends = minus(limit, tie.shift[0])
        within = tuple(
            one & at_1 & satisfying(op, end)
            for one, end in zip(within, each_rank(ends, ranks_of(eqn)), strict=True)
        )
    return related(eqn, operands, replace(tie, within=within, outside=None, inside=ALL))


def converted(eqn: Equation, operands: Operands) -> Relation | None:
    """A cast that leaves small integers, or booleans, what they are."""
    (x,) = operands
    old, new = eqn.per_rank.dtypes[0], eqn.per_rank.out_dtypes[0]
    if x.tie is None or x.const is not None:
        return None
    if x.tie.mask is not None and x.tie.within is None:
        return related(eqn, operands, replace(x.tie, outside=0))
    tie = movable(x)
    if tie is None or kind_of(old) != "i":
        return None
    wider = kind_of(new) == "i" and bits_of(new) >= bits_of(old)
    ramp = isinstance(tie.root, Ramp) and holds_all_to(new, tie.root.length)
    floating = kind_of(new) == "f" and FIRST in x.ranks and ramp
    return related(eqn, operands, tie) if wider or floating else None
