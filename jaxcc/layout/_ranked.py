"""Numbers that differ from rank to rank, sets of integers, and the blocks that ranks take."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcc.layout._digits import Digit, Digits, normal


@dataclass(frozen=True)
class Ranked:
    """A number for every rank of a mesh, in the order of its axes, the last one fastest."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        shown = ", ".join(str(value) for value in self.values[:4])
        return f"({shown}{', ...' if len(self.values) > 4 else ''} by rank)"


def ranked(values: Iterable[Any]) -> Any:
    """A number for every rank; a plain one if all ranks have the same."""
    known = tuple(values)
    same = all(value == known[0] or (value != value and known[0] != known[0]) for value in known)
    return known[0] if same else Ranked(known)


def each_rank(number: Any, count: int) -> tuple[Any, ...]:
    """The number that each of `count` ranks has."""
    return number.values if isinstance(number, Ranked) else (number,) * count


def mapped(function: Callable[..., Any], *numbers: Any) -> Any:
    """`function` of numbers, rank by rank where one of them differs between ranks."""
    counts = {len(number.values) for number in numbers if isinstance(number, Ranked)}
    if not counts:
        return function(*numbers)
    (count,) = counts
    return ranked(map(function, *(each_rank(number, count) for number in numbers)))


def minus(left: Any, right: Any) -> Any:
    """The difference of two numbers, rank by rank where one of them differs between ranks."""
    return mapped(operator.sub, left, right)


def rank_along(axes: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """Every rank's index along `axes`, the first one major: what `axis_index` gives."""
    index = np.zeros(tuple(sizes.values()), int)
    grid = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))
    for axis in axes:
        index = index * sizes[axis] + grid[axis]
    return ranked(int(k) for k in index.ravel())


def varies_over(values: Sequence[Any], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the ranks' values change."""
    table = np.empty(len(values), object)
    table[:] = list(values)
    table = table.reshape(tuple(sizes.values()))
    first = {axis: table.take([0], at) for at, axis in enumerate(sizes)}
    return tuple(axis for axis in sizes if not np.all(first[axis] == table))


def one_of_each(values: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """The ranks' values, once for each group of ranks among which they do not change."""
    table = np.empty(len(values), object)
    table[:] = list(values)
    table = table.reshape(tuple(sizes.values()))
    varying = varies_over(values, sizes)
    for at, axis in enumerate(sizes):
        if axis not in varying:
            table = table.take([0], at)
    return list(table.ravel())


def block_digits(
    numbers: Any, dim: int, block: int, sizes: Mapping[str, int]
) -> tuple[Mapping[str, Digits], int] | None:
    """How ranks select blocks of `dim` if rank r takes block `numbers[r]`, each of size `block`.

    Returns the digits for each axis and the number of blocks, or None if the ranks do not take
    each block in the order of their index along some axes.
    """
    count = math.prod(sizes.values())
    table = np.array(each_rank(numbers, count)).reshape(tuple(sizes.values()))
    if table.flat[0] != 0:
        return None
    steps: list[tuple[int, str]] = []
    for at, axis in enumerate(sizes):
        if sizes[axis] > 1:
            second = np.moveaxis(table, at, 0)[1]
            step = int(second.flat[0])
            if step:
                steps.append((step, axis))
    blocks, digits = 1, dict[str, Digits]()
    expected = np.zeros_like(table)
    grid = dict(zip(sizes, np.indices(table.shape), strict=True))
    for step, axis in sorted(steps):
        if step != blocks:
            return None
        digits[axis] = normal([Digit(dim, block * step, sizes[axis])])
        expected = expected + grid[axis] * step
        blocks *= sizes[axis]
    return (digits, blocks) if (expected == table).all() else None


Interval = tuple[float, float]


@dataclass(frozen=True)
class IntSet:
    """A set of integers: disjoint half-open intervals in order, infinite ones included."""

    intervals: tuple[Interval, ...]

    def __and__(self, other: IntSet) -> IntSet:
        return _set((max(a, c), min(b, d)) for a, b in self.intervals for c, d in other.intervals)

    def __invert__(self) -> IntSet:
        edges = [-math.inf, *(edge for pair in self.intervals for edge in pair), math.inf]
        return _set(zip(edges[::2], edges[1::2], strict=True))

    def __or__(self, other: IntSet) -> IntSet:
        return ~(~self & ~other)

    def within(self, other: IntSet) -> bool:
        """Whether all of it lies in `other`."""
        return self & other == self

    def __bool__(self) -> bool:
        return bool(self.intervals)


def _set(intervals: Iterable[Interval]) -> IntSet:
    joined: list[Interval] = []
    for low, high in sorted(pair for pair in intervals if pair[0] < pair[1]):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return IntSet(tuple(joined))


ALL = IntSet(((-math.inf, math.inf),))
NONE = IntSet(())


def between(low: float, high: float) -> IntSet:
    """The integers from `low` up to, but without, `high`."""
    return _set([(low, high)])


def satisfying(op: str, limit: Any) -> IntSet:
    """The integers x with `x op limit`; `limit` is an integer or an infinity."""
    if op in ("lt", "ge"):
        below = between(-math.inf, limit)
        return below if op == "lt" else ~below
    if op in ("le", "gt"):
        below = between(-math.inf, limit + 1)
        return below if op == "le" else ~below
    return between(limit, limit + 1) if op == "eq" else ~between(limit, limit + 1)
