"""The largest elements along a dimension that the ranks of an axis hold in blocks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from jaxcc.comm._combinators import gathered, looked_up, operand, sliced_over
from jaxcc.comm._combinators_primitive import primitive
from jaxcc.layout import LayoutError

# JAX has types for some of its functions only.
_jax: Any = jax
_lax: Any = lax
_jnp: Any = jnp
_ad: Any = ad


def argmax(x: Any, axis_name: str, *, axis: int = -1) -> jax.Array:
    """`jax.numpy.argmax(x, axis)` of an array whose dimension `axis` is sliced over `axis_name`:
    the first position of the largest element in the whole dimension, the same on every rank."""
    return _position("argmax", x, axis_name, axis)


def argmin(x: Any, axis_name: str, *, axis: int = -1) -> jax.Array:
    """`jax.numpy.argmin(x, axis)`, as `argmax`."""
    return _position("argmin", x, axis_name, axis)


def top_k(x: Any, k: int, axis_name: str) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k(x, k)` of an array whose last dimension is sliced over `axis_name`: the `k`
    largest elements of each whole row, and their positions in it, the same on every rank.

    Each rank sends the `k` largest of its own block. Only the elements have a gradient.
    """
    array, dim = operand("top_k", x, axis_name)
    size = array.shape[dim] * _lax.axis_size(axis_name)
    try:
        count = operator.index(k)
    except TypeError:
        count = -1
    if not 0 <= count <= size:
        raise LayoutError("LAYOUT_ARGUMENT", f"top_k takes 0 to {size} elements here, not {k!r}")
    (array,) = sliced_over(axis_name, array)
    values, positions = _top_k_p.bind(array, axis_name=axis_name, k=count)
    return values, positions


def _position(name: str, x: Any, axis_name: str, axis: int) -> jax.Array:
    array, dim = operand(name, x, axis_name, axis)
    if not array.shape[dim]:
        raise LayoutError("LAYOUT_ARGUMENT", f"{name} of an empty dimension")
    (array,) = sliced_over(axis_name, lax.stop_gradient(array))
    (result,) = _position_p[name].bind(array, axis_name=axis_name, dim=dim)
    return result


def _run_position(
    choose: Callable[..., jax.Array], x: jax.Array, *, axis_name: str, dim: int
) -> Sequence[jax.Array]:
    """The position in the first of the blocks that has an element as large as any other."""
    here = choose(x, axis=dim, keepdims=True)
    own = jnp.take_along_axis(x, here, axis=dim)
    first = _lax.axis_index(axis_name) * x.shape[dim]
    rank = choose(gathered(own, axis_name), axis=0, keepdims=True)
    found = jnp.take_along_axis(gathered(first + here, axis_name), rank, axis=0)
    return [found.squeeze((0, found.ndim + dim))]


def _run_top_k(x: jax.Array, *, axis_name: str, k: int) -> Sequence[jax.Array]:
    """The largest of what the ranks send: of equal ones the first, as the blocks are in order."""
    block = x.shape[-1]
    values, here = _lax.top_k(x, min(k, block))
    positions = here + _lax.axis_index(axis_name) * block
    candidates = [_side_by_side(gathered(part, axis_name)) for part in (values, positions)]
    best, chosen = _lax.top_k(candidates[0], k)
    return [best, jnp.take_along_axis(candidates[1], chosen, axis=-1)]


def _side_by_side(parts: jax.Array) -> jax.Array:
    """Parts along the first dimension, one after the other along the last."""
    moved = jnp.moveaxis(parts, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def _top_k_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axis_name: str, k: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    values, positions = _top_k_p.bind(*primals, axis_name=axis_name, k=k)
    moved = looked_up(tangents[0], positions, axis_name, -1)
    return [values, positions], [moved, _ad.Zero(_jax.typeof(positions).to_tangent_aval())]


_position_p = {
    name: primitive(name, functools.partial(_run_position, choose))
    for name, choose in (("argmax", jnp.argmax), ("argmin", jnp.argmin))
}
_top_k_p = primitive("top_k", _run_top_k, jvp=_top_k_jvp)
