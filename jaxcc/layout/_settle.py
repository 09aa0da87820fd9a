"""What a value that depends on the rank's number comes to: a slice, a pending reduction or nothing.

Ramps that start at the rank's block are Sliced. What is right where an integer lies in the rank's
interval, and 0 elsewhere, is a pending sum if the ranks' intervals make up the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._ranked import (
    NONE,
    IntSet,
    Ranked,
    block_digits,
    each_rank,
    minus,
    one_of_each,
    ranked,
    varies_over,
)
from jaxcc.layout._relation import Relation, same_scale
from jaxcc.layout._rules import Equation, Refused
from jaxcc.layout._tie import FIRST, through

RANK_WHY = "each rank has another number there, and a group of one has only that of rank 0"
_OWN_PART = (
    "what each rank adds for its own part: jax.numpy.where(mine, x, 0), then psum, where the "
    "ranks' parts make up the whole"
)
_POSITIONS = (
    "positions of a rank's block: jax.lax.axis_index(axis) * block + jax.numpy.arange(block), or "
    "pass them as a Sliced argument"
)
_ONE_RANK = "for what one rank alone adds to a sum: add it after the sum"
RANK_FIXES = (_OWN_PART, _POSITIONS, _ONE_RANK)


def settle(x: Relation, sizes: Mapping[str, int]) -> Relation | None:
    """The relation without ties; None if it depends on the rank in another way."""
    if not x.by_rank:
        return x if x.tie is None else replace(x, tie=None)
    if x.const is not None and isinstance(x.const[0], Ranked):
        return None
    if FIRST in x.ranks:
        return placed(x, sizes)
    assert x.tie is not None
    tie = x.tie.owned
    if tie.mask is not None or tie.within is None or not tie.offset_free:
        return None
    return _owned(x, tie.within, tie.inside, tie.outside, sizes)


def settled(eqn: Equation, index: int, x: Relation) -> Relation:
    """The relation of operand `index` without ties.

    Raises:
      Refused: LAYOUT_RANK_INDEX if it depends on the rank in a way that no layout says.
    """
    return settled_value(x, eqn.name(index), eqn.sizes)


def settled_value(x: Relation, name: str, sizes: Mapping[str, int]) -> Relation:
    """The same for a value that messages call `name`."""
    plain = settle(x, sizes)
    if plain is None:
        what = _what(name, x, sizes)
        raise Refused("LAYOUT_RANK_INDEX", what, because=RANK_WHY, fixes=_fixes(x, sizes))
    return plain


def _fixes(x: Relation, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """What to do about it, where the value tells what it is, and else what there is."""
    if x.const is not None:
        return RANK_FIXES
    if FIRST not in x.ranks:
        return _OWN_PART, _ONE_RANK
    digit, *others = x.ranks[FIRST]
    block = digit.stride
    axes = [axis for axis, n in sizes.items() if n == digit.size]
    if others or len(axes) != 1 or block not in x.shape:
        return (_POSITIONS,)
    return (
        f"positions of the rank's block: jax.lax.axis_index('{axes[0]}') * {block} + "
        f"jax.numpy.arange({block}), with the size of the block for {block}; or pass them as an "
        "argument that is Sliced as the block is",
    )


def placed(x: Relation, sizes: Mapping[str, int], shift: Any = 0) -> Relation | None:
    """A ramp whose ranks' copies start at their own blocks as a Sliced one.

    With `shift`, by rank, the copies are those less `shift`.
    """
    tie, first = x.tie, x.ranks[FIRST]
    if tie is None or tie.shift is None or tie.within is not None or len(first) != 1:
        return None
    (digit,) = first
    own = through(first, tie.view)
    if len(own) != 1 or own[0].size != digit.size:
        return None
    step = own[0].stride
    moved = each_rank(minus(minus(tie.shift[0], tie.shift[1]), shift), math.prod(sizes.values()))
    if any(number % step for number in moved):
        return None
    numbers = ranked(int(number // step) for number in moved)
    found = block_digits(numbers, digit.dim, digit.stride, sizes)
    if found is None or found[1] != digit.size or any(axis in x.ranks for axis in found[0]):
        return None
    ranks = {axis: digits for axis, digits in x.ranks.items() if axis != FIRST}
    return replace(x, ranks=ranks | dict(found[0]), tie=None)


def _owned(
    x: Relation, within: Sequence[IntSet], inside: IntSet, outside: Any, sizes: Mapping[str, int]
) -> Relation | None:
    """A pending reduction of parts that the ranks own."""
    axes = varies_over(within, sizes)
    union = NONE
    for one in one_of_each(within, sizes):
        if union & one:
            return None
        union = union | one
    if outside is None or not inside.within(union):
        return None
    if not axes:
        return replace(x, tie=None)
    op = _reduction(outside)
    if op is None or not all(x.plain_over(axis) for axis in axes):
        return None
    if any(held != op for held in x.partial.values()):
        return None
    if op != "sum" and not (math.isinf(x.scale) or same_scale(x.scale, 1.0)):
        return None
    partial: dict[str, ReduceOp] = {**x.partial, **dict.fromkeys(axes, op)}
    return replace(x, partial=partial, tie=None)


def _reduction(neutral: Any) -> ReduceOp | None:
    """The reduction that `neutral` leaves as it is."""
    if isinstance(neutral, bool):
        return "min" if neutral else "max"
    return {0: "sum", -math.inf: "max", math.inf: "min"}.get(neutral)  # pyright: ignore[reportReturnType]


def _what(name: str, x: Relation, sizes: Mapping[str, int]) -> str:
    """One sentence on a value that depends on the rank's number."""
    if x.const is not None:
        return f"{name} is another number on every rank"
    if FIRST in x.ranks:
        return f"{name} counts from 0 on every rank, but over the whole on a group of one"
    tie = x.tie.owned if x.tie is not None else None
    if tie is None or tie.within is None:
        return f"{name} is shifted by another number on every rank than on a group of one"
    if tie.outside is None:
        return f"{name} is right only for the part that a rank owns, and unknown elsewhere"
    union, clash = NONE, False
    for one in one_of_each(tie.within, sizes):
        clash = clash or bool(union & one)
        union = union | one
    fault = "overlap" if clash else "do not make up the whole"
    return f"{name} is right for the part that a rank owns, but the ranks' parts {fault}"
