"""Blocks of arrays: as places in a buffer, and as the part that belongs to a rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import lax

from jaxcc._compat import varying_axes
from jaxcc.comm._call import Group, checks_varying, varying
from jaxcc.comm._parameters import begins_of
from jaxcc.runtime import ZEROS, Move, Side

# JAX has types for some of its functions only.
_lax: Any = lax


def whole(shape: Sequence[int]) -> Side:
    """All of an array."""
    return Side(0, math.prod(shape), math.prod(shape))


def block(shape: Sequence[int], dim: int, begin: int, size: int) -> Side:
    """Elements [begin, begin + size) of dimension `dim`, in the order of the array."""
    if size == shape[dim]:
        return whole(shape)
    after = math.prod(shape[dim + 1 :]) if dim != -1 else 1
    return Side(begin * after, size * after, shape[dim] * after)


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """`shape` with another size of `dim`."""
    sizes = list(shape)
    sizes[dim] = size
    return tuple(sizes)


def with_new(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    """`shape` with a new dimension of size 1 at `dim` of the result, counted from the last."""
    place = len(shape) + 1 + dim
    return (*shape[:place], 1, *shape[place:])


def move(source: int, target: int, shape: Sequence[int], at: Side, to: Side) -> Iterator[Move]:
    """A block of `shape`; nothing if it is empty."""
    count = math.prod(shape)
    if count:
        yield Move(source, target, count, at, to)


def zeros(
    target: int, shape: Sequence[int], dim: int | None = None, begin: int = 0
) -> Iterator[Move]:
    """Zeros in the result of `target`: everywhere, or from `begin` of `dim` on."""
    if dim is None:
        yield from move(ZEROS, target, shape, whole(shape), whole(shape))
    else:
        size = shape[dim] - begin
        place = block(shape, dim, begin, size)
        yield from move(ZEROS, target, resized(shape, dim, size), place, place)


def scattered(shape: Sequence[int], counts: Sequence[int], dim: int, source: int) -> list[Move]:
    """Each rank's part of dimension `dim` of what `source` has, and zeros up to the largest."""
    made = resized(shape, dim, max(counts))
    found: list[Move] = []
    for r, (begin, size) in enumerate(zip(begins_of(counts), counts, strict=True)):
        at, to = block(shape, dim, begin, size), block(made, dim, 0, size)
        found += move(source, r, resized(shape, dim, size), at, to)
        found += zeros(r, made, dim, size)
    return found


def own_block(x: jax.Array, dim: int, tiled: bool, group: Group) -> jax.Array:
    """The rank's block of dimension `dim` of what all ranks hold; the block is one element, and the
    result does not have the dimension, unless `tiled`."""
    size = x.shape[dim] // group.ranks
    if checks_varying(group.axes):
        x = varying(x, group.axes)
    begin = _lax.axis_index(group.axes) * size
    mine = _lax.dynamic_slice_in_dim(x, begin, size, axis=dim % x.ndim)
    return mine if tiled else mine.squeeze(dim)


def same_on_all(group: Group) -> str:
    """The argument `to` of `jax.lax.all_gather` for what has the type of a replicated value."""
    return "invarying" if checks_varying(group.axes) else "varying"


def is_replicated(x: jax.Array, group: Group) -> bool:
    """Whether JAX knows that all ranks of the group hold the same `x`."""
    return checks_varying(group.axes) and not varying_axes(x) & set(group.axes)
