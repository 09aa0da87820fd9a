"""Flat slices: of an array each of n ranks has a block of its elements, of which fewer may count on
the last ranks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc import _compat
from jaxcc.program import extreme, own_slice

# Elements that fill a line of the cache, of any dtype from two bytes on.
_LINE = 32


def block_size(size: int, ranks: int) -> int:
    """Elements of a flat tensor that one rank owns; the last ranks may own fewer.

    Where a slice and its part of the whole array begin at different places in a line, a kernel that
    streams through both takes a tenth longer; so large tensors that are padded are so to whole
    lines. What the ranks divide is not: the checker holds its slices to every size of groups.
    """
    even = -(-size // ranks)
    whole = size % ranks == 0 or even < 32 * _LINE
    return even if whole else -(-even // _LINE) * _LINE


def padded(x: Any, ranks: int) -> jax.Array:
    """The array flat, with zeros up to `ranks` equal blocks."""
    return jnp.pad(jnp.reshape(x, -1), (0, block_size(x.size, ranks) * ranks - x.size))


def own_block(x: Any, axis: str) -> jax.Array:
    """This rank's block of an array that is equal on all ranks of `axis`."""
    if x.size == 0:
        return _varying(jnp.reshape(x, -1), axis)
    return _varying(own_slice(padded(x, lax.axis_size(axis)), axis, 0), axis)


def reduced_block(x: Any, axis: str) -> jax.Array:
    """This rank's block of the sum over the ranks."""
    flat = _varying(padded(x, lax.axis_size(axis)), axis)
    return flat if x.size == 0 else lax.psum_scatter(flat, axis, tiled=True)


def gathered(block: Any, axis: str, size: int) -> jax.Array:
    """The flat array of all blocks, equal on all ranks."""
    if size == 0:
        return jnp.zeros((0,), block.dtype)
    return lax.all_gather(_varying(block, axis), axis, tiled=True, to="invarying")[:size]


def _varying(x: Any, axis: str) -> jax.Array:
    (x,) = _compat.unify_varying([x], (axis,))
    return x


def local_reduction(kind: str, block: Any, size: int, axis: str) -> jax.Array:
    """One number from the elements of this rank's block that count, of an array of `size`."""
    ranks = lax.axis_size(axis)
    reduce, neutral = _REDUCE[kind], _neutral(kind, block.dtype)
    if size < block.size * ranks:
        mine = lax.axis_index(axis) * block.size + jnp.arange(block.size) < size
        block = jnp.where(mine, block, neutral)
    return reduce(block)


def reduction(kind: str, x: Any) -> jax.Array:
    """The number that a whole array, or every rank's number, is reduced to."""
    return _REDUCE[kind](x)


COLLECTIVES: Any = {
    "sum": lax.psum,
    "max": functools.partial(extreme, "maximum"),
    "min": functools.partial(extreme, "minimum"),
    "and": lax.pmin,
    "or": lax.pmax,
}
"""What makes the number of the whole array of each rank's, by kind of reduction, where there is a
collective for it; of booleans as integers."""


def total(kind: str, block: Any, size: int, axis: str) -> jax.Array:
    """The number of an array of `size`, of which this is a rank's block, on every rank; of a kind
    that has a collective.
    """
    return COLLECTIVES[kind](local_reduction(kind, block, size, axis), axis)


_REDUCE: Any = {
    "sum": lambda x: jnp.sum(x, dtype=x.dtype),
    "prod": lambda x: jnp.prod(x, dtype=x.dtype),
    "max": lambda x: jnp.max(x) if x.size else jnp.asarray(_neutral("max", x.dtype), x.dtype),
    "min": lambda x: jnp.min(x) if x.size else jnp.asarray(_neutral("min", x.dtype), x.dtype),
    "and": jnp.all,
    "or": jnp.any,
}


def _neutral(kind: str, dtype: Any) -> Any:
    if kind in ("max", "min"):
        sign = 1 if kind == "min" else -1
        if jnp.issubdtype(dtype, jnp.floating):
            return dtype.type(sign * jnp.inf)
        info = jnp.iinfo(dtype)
        return info.max if kind == "min" else info.min
    return {"sum": 0, "prod": 1, "and": True, "or": False}[kind]
