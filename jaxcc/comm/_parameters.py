"""Parameters that collectives share, as users give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jaxcc.layout import LayoutError


def integer_of(value: Any) -> int | None:
    """`value` as an integer; None if it is none, such as a boolean or a value that is traced."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def dim_of(name: str, x: Any, dim: Any, *, new: bool = False) -> int:
    """The dimension `dim` of `x`, or a new one of the result, counted from the last.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    ndim = len(x.shape) + new
    place = integer_of(dim)
    if place is None or not -ndim <= place < ndim:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: an array of shape {tuple(x.shape)} has no dimension {dim!r}"
            + (" in its result" if new else ""),
            fixes=(f"pass a dimension from {-ndim} to {ndim - 1}",)
            if ndim
            else ("give the array a dimension, as x[None] does",),
        )
    return place if place < 0 else place - ndim


def divided(name: str, x: Any, dim: int, ranks: int, *, tiled: bool = True) -> None:
    """Refuses a dimension that has no block for each rank; untiled, a block is one element.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    size = x.shape[dim]
    if size % ranks if tiled else size != ranks:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: dimension {dim + len(x.shape)} of {tuple(x.shape)} has {size} elements, "
            + (f"not a multiple of {ranks}" if tiled else f"not {ranks}"),
            because=f"each of the {ranks} ranks gets " + ("one block of it" if tiled else "one"),
            fixes=("pad the dimension", f"use {name}_v, which takes a count for each rank")
            if tiled
            else ("pass tiled=True to cut it into blocks",),
        )


def root_of(name: str, root: Any, ranks: int) -> int:
    """The rank `root`; in a group of one, which a checked program is also traced for, rank 0.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    place = integer_of(root)
    if place is None or place < 0 or (place >= ranks and ranks > 1):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: there is no rank {root!r} in a group of {ranks}",
            because="a checked program is traced for smaller groups, too",
            fixes=(f"pass a number from 0 to {ranks - 1}, the same on every rank",),
        )
    return place if ranks > 1 else 0


def counts_of(name: str, counts: Any, ranks: int) -> tuple[int, ...]:
    """A count of elements for each rank.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    known = isinstance(counts, Sequence) or hasattr(counts, "tolist")
    places = [integer_of(count) for count in counts] if known else []
    if not known or len(places) != ranks or any(p is None or p < 0 for p in places):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: counts is {counts!r}, not {ranks} numbers of elements",
            because="each rank of the group has a count, known while the program is traced",
            fixes=(f"pass a tuple of {ranks} integers, the same on every rank",),
        )
    return tuple(place for place in places if place is not None)


def sized(name: str, x: Any, dim: int, least: int, *, exact: bool = False) -> None:
    """Refuses a dimension that has not what the counts say.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    size = x.shape[dim]
    if size < least or (exact and size != least):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: dimension {dim + len(x.shape)} of {tuple(x.shape)} has {size} elements, and "
            f"the counts say {least}",
            fixes=("give it as many elements as the counts say",),
        )


def begins_of(counts: Sequence[int]) -> list[int]:
    """Where each rank's part begins, one after another."""
    return [sum(counts[:r]) for r in range(len(counts))]
