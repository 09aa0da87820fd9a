"""Mixed-radix digits of an array index: which part of the whole index a per-rank dimension walks.

A digit `(dim, stride, size)` is `index[dim] // stride % size`. A list of digits, major first, is
one number; dimension 3 of `f32[8, 4, 16]` seen as a whole is the single digit `(2, 1, 16)`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

UNIFORM = -1
"""The `dim` of a digit along which the value does not change."""

PER_RANK = -2
"""The `dim` of a digit that counts ranks whose own values lie side by side: no whole index walks
it."""


class Digit(NamedTuple):
    """`index[dim] // stride % size`; with `dim == UNIFORM`, `size` equal copies."""

    dim: int
    stride: int
    size: int

    @property
    def named(self) -> bool:
        """Whether it is a digit of the whole index."""
        return self.dim >= 0

    @property
    def end(self) -> int:
        """The stride of the next digit up."""
        return self.stride * self.size


Digits = tuple[Digit, ...]


class CutError(Exception):
    """An operation would cut a digit into parts that are no digits."""


def whole_dim(dim: int, size: int) -> Digits:
    """All of a dimension."""
    return normal([Digit(dim, 1, size)])


@functools.lru_cache(4096)
def whole_dims(shape: tuple[int, ...]) -> tuple[Digits, ...]:
    """All of every dimension of an array of this shape."""
    return tuple(whole_dim(dim, size) for dim, size in enumerate(shape))


def uniform(size: int) -> Digits:
    """`size` equal copies."""
    return normal([Digit(UNIFORM, 1, size)])


def count(digits: Iterable[Digit]) -> int:
    """How many values the digits take together."""
    return math.prod([digit.size for digit in digits])


def normal(digits: Iterable[Digit]) -> Digits:
    """The same number in the fewest digits: contiguous ones merged, digits of size 1 dropped."""
    out: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        if not digit.named and digit.stride != 1:
            digit = Digit(digit.dim, 1, digit.size)
        last = out[-1] if out else None
        if last is not None and last.dim == digit.dim:
            if not digit.named:
                out[-1] = Digit(digit.dim, 1, last.size * digit.size)
                continue
            if last.stride == digit.end:
                out[-1] = Digit(digit.dim, digit.stride, last.size * digit.size)
                continue
        out.append(digit)
    return tuple(out)


def renumbered(digits: Digits, place: Mapping[int, int]) -> Digits:
    """The digits where each dimension has the number that `place` gives it."""
    return tuple(
        Digit(place[digit.dim], digit.stride, digit.size) if digit.named else digit
        for digit in digits
    )


def cut(digit: Digit, size: int) -> tuple[Digit, Digit]:
    """The leading `size` values' digit and the rest: `(d, s, 12)` cut at 3 is `(d, 4s, 3), (d, s,
    4)`."""
    if size == 0 or digit.size % size:
        raise CutError
    rest = digit.size // size
    stride = 1 if not digit.named else digit.stride * rest
    return Digit(digit.dim, stride, size), Digit(digit.dim, digit.stride, rest)


def take(digits: Sequence[Digit], size: int) -> tuple[Digits, Digits]:
    """The leading digits that make `size` values, and the rest."""
    if size == 0:
        return uniform(0), ()
    front: list[Digit] = []
    rest = list(digits)
    while size > 1:
        if not rest:
            raise CutError
        digit = rest.pop(0)
        if digit.size <= size:
            if digit.size == 0 or size % digit.size:
                raise CutError
            front.append(digit)
            size //= digit.size
        else:
            lead, tail = cut(digit, size)
            front.append(lead)
            rest.insert(0, tail)
            size = 1
    return normal(front), normal(rest)


def regroup(dims: Sequence[Digits], shape: Sequence[int]) -> tuple[Digits, ...]:
    """The digits of a row-major reshape of `dims` to `shape`."""
    rest: Digits = tuple(digit for digits in dims for digit in digits)
    out: list[Digits] = []
    for size in shape:
        front, rest = take(rest, size)
        out.append(front)
    return tuple(out)


def unify(a: Digits, b: Digits) -> Digits:
    """The digits of both, of equal count; uniform gives way. CutError if they differ."""
    if a == b:
        return a
    left, right, out = list(a), list(b), list[Digit]()
    while left or right:
        if not left or not right:
            raise CutError
        x, y = left.pop(0), right.pop(0)
        if x.size > y.size:
            x, rest = cut(x, y.size)
            left.insert(0, rest)
        elif y.size > x.size:
            y, rest = cut(y, x.size)
            right.insert(0, rest)
        if x.dim == UNIFORM:
            x = y
        elif y.dim not in (UNIFORM, x.dim) or (y.dim == x.dim and y.stride != x.stride):
            raise CutError
        out.append(x)
    return normal(out)


def in_place(digits: Digits, dim: int, size: int) -> bool:
    """Whether an index of `size` that walks `digits` is, where it matters, that of `dim` itself."""
    try:
        return unify(digits, whole_dim(dim, size)) == whole_dim(dim, size)
    except CutError:
        return False


def distinct(digits: Iterable[Digit]) -> bool:
    """Whether no part of an index is named twice, so that some whole index has any given digits."""
    named = sorted(digit for digit in digits if digit.named)
    return all(
        low.dim != high.dim or low.end == 0 or high.stride % low.end == 0
        for low, high in zip(named, named[1:], strict=False)
    )


def rebase(digits: Digits, view: Sequence[Digits]) -> Digits:
    """`digits` of an array's index as digits of the index of a reshaped or transposed view of
    it."""
    out: list[Digit] = []
    for digit in digits:
        out += [digit] if not digit.named else _rebase_one(digit, view)
    return normal(out)


def _rebase_one(digit: Digit, view: Sequence[Digits]) -> list[Digit]:
    parts: list[tuple[int, Digit]] = []
    for position, items in enumerate(view):
        flat = 1
        for item in reversed(items):
            if item.dim == digit.dim:
                low, high = max(digit.stride, item.stride), min(digit.end, item.end)
                if low < high:
                    if low % item.stride or high % low or low % digit.stride:
                        raise CutError
                    part = Digit(position, flat * (low // item.stride), high // low)
                    parts.append((low, part))
            flat *= item.size
    if count(part for _, part in parts) != digit.size:
        raise CutError
    return [part for _, part in sorted(parts, reverse=True)]
