"""Groups of ranks, by mesh axis: how messages name them, and which a program is held against."""

from __future__ import annotations

import math
from collections.abc import Mapping


def group_text(sizes: Mapping[str, int]) -> str:
    """`dp=2, tp=4`."""
    return ", ".join(f"{axis}={n}" for axis, n in sizes.items())


def group_sizes(sizes: Mapping[str, int]) -> list[Mapping[str, int]]:
    """The mesh's own sizes, and their smallest prime factors.

    Axes that have one size in all of these are told apart by groups in which some of them have one
    rank: a factor of one axis would else pass for that of another.
    """
    groups: list[Mapping[str, int]] = [dict(sizes)]
    smallest = smallest_group(sizes)
    if smallest != dict(sizes):
        groups.append(smallest)
    alike: dict[int, list[str]] = {}
    for axis, n in sizes.items():
        if n > 1:
            alike.setdefault(n, []).append(axis)
    for bit in range(max(map(len, alike.values()), default=1).bit_length()):
        alone = {axis for axes in alike.values() for k, axis in enumerate(axes) if k >> bit & 1}
        if alone:
            groups.append({axis: 1 if axis in alone else smallest[axis] for axis in sizes})
    return groups


def smallest_group(sizes: Mapping[str, int]) -> dict[str, int]:
    """The smallest prime factor of each axis's size."""
    return {axis: _smallest_factor(n) for axis, n in sizes.items()}


def _smallest_factor(n: int) -> int:
    return next((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), n)
