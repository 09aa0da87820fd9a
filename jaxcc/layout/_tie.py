"""Values that hang on an array of integers: shifted copies of it, masks over it, and what is right
only where it lies in a rank's interval.

`ids - rank * block`, `ids >= rank * block` and the rows that a rank's slice of a table has for them
are no blocks of anything, but together they are a Partial sum: each element belongs to one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcc.layout._digits import UNIFORM, CutError, Digit, Digits, count, normal, uniform
from jaxcc.layout._ranked import ALL, IntSet

FIRST = "<first block>"
"""In the place of an axis in `Relation.ranks`: every rank holds the first block of a ramp."""

NO_INTEGER = object()
"""The root of masks that depend on the rank alone."""


@dataclass(frozen=True)
class Ramp:
    """The array 0, 1, .. of a length: all ramps of one length are one array of integers."""

    length: int


@dataclass(frozen=True)
class Tie:
    """How a value depends on X, an array of integers of the group of one.

    Attributes:
      root: which array X is.
      view: for each dimension of the whole value, the digits of X's index that it walks.
      shift: the value is an integer, X plus one number at n (perhaps another on every rank) and
        plus another at 1.
      mask: the value is a boolean, or 0 and 1: whether X lies in a set, for each rank and at 1.
      within: for each rank, where X has to lie for the value's relation to hold; None is anywhere.
      outside: what the value is where X does not lie in `within` (at 1: in `inside`), if known; of
        a mask, what it is where X does not lie in the set.
      inside: where X has to lie at 1 for the value not to be `outside`.
      finite: no element is NaN where the relation does not hold.
    """

    root: Any
    view: tuple[Digits, ...]
    shift: tuple[Any, Any] | None = None
    mask: tuple[tuple[IntSet, ...], IntSet] | None = None
    within: tuple[IntSet, ...] | None = None
    outside: Any = None
    inside: IntSet = ALL
    finite: bool = True

    @property
    def offset_free(self) -> bool:
        """Whether the value is no shifted copy, or shifted alike at n and at 1."""
        return self.shift is None or self.shift[0] == self.shift[1]

    @property
    def owned(self) -> Tie:
        """A mask as a value that is 1, or true, for the integers that a rank owns."""
        if self.mask is None or self.within is not None:
            return self
        sets, at_1 = self.mask
        exact = all(one.within(at_1) for one in sets)
        right = tuple(one & at_1 for one in sets)
        outside = self.outside if exact else None
        return replace(self, mask=None, within=right, outside=outside, inside=at_1)

    @property
    def everywhere(self) -> bool:
        """Whether the value is related as the relation says, wherever X lies."""
        mask = self.mask is None or all(one == self.mask[1] for one in self.mask[0])
        return mask and self.offset_free and self.within is None


def seen_tie(tie: Tie | None, view: Sequence[Digits]) -> Tie | None:
    """The tie of a reshaped, transposed or broadcast view of the whole value.

    Raises CutError if the view cuts X's digits and the tie says more than the relation.
    """
    if tie is None:
        return None
    try:
        return replace(tie, view=tuple(through(digits, tie.view) for digits in view))
    except CutError:
        if tie.everywhere:
            return None
        raise


def through(digits: Digits, view: Sequence[Digits]) -> Digits:
    """The digits of X that an index walks which walks `digits` of a value that `view` describes."""
    out: list[Digit] = []
    for digit in digits:
        out += [digit] if not digit.named else _part(view[digit.dim], digit)
    return normal(out)


def _part(items: Digits, wanted: Digit) -> Sequence[Digit]:
    """The part of a dimension's digits that one digit of its index stands for."""
    parts: list[Digit] = []
    low = 1
    for item in reversed(items):
        start, end = max(low, wanted.stride), min(low * item.size, wanted.end)
        if start < end:
            if start % low or end % start or wanted.stride > start:
                raise CutError
            stride = item.stride * (start // low) if item.named else 1
            parts.insert(0, Digit(item.dim, stride, end // start))
        low *= item.size
    if count(parts) != wanted.size:
        raise CutError
    return parts


def one_integer(ties: Sequence[Tie]) -> tuple[Any, tuple[Digits, ...]] | None:
    """The X of all these values of one shape, and their common view of it; None if it differs."""
    known = [tie for tie in ties if tie.root is not NO_INTEGER]
    if not known:
        return NO_INTEGER, tuple(uniform(count(digits)) for digits in ties[0].view)
    first = known[0]
    if any(tie.root != first.root or tie.view != first.view for tie in known):
        return None
    return first.root, first.view


def repeated(tie: Tie | None, sizes: Sequence[int], shape: Sequence[int]) -> Tie | None:
    """The tie of a value that is repeated along dimensions of size 1, or as a scalar."""
    if tie is None or tuple(sizes) == tuple(shape):
        return tie
    view = tie.view if sizes else ((),) * len(shape)
    old = sizes or (1,) * len(shape)
    wide = (
        (Digit(UNIFORM, 1, size),) if was == 1 and size != 1 else digits
        for digits, was, size in zip(view, old, shape, strict=True)
    )
    return replace(tie, view=tuple(wide))
