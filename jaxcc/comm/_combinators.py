"""What the combinators share: their operands, and the part of a dimension that a rank holds.

A combinator is what a function of `jax.numpy` is on the whole array, computed on the ranks' blocks
of it. Those that are not provable by the checker step by step are primitives with a rule of their
own.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc._compat import unify_varying, varying_axes
from jaxcc.layout import BackendError, LayoutError

# JAX has types for some of its functions only.
_lax: Any = lax


def operand(
    name: str, x: Any, axis_name: str, dim: int = -1, *, ordered: bool = True
) -> tuple[jax.Array, int]:
    """The array and its sliced dimension, counted from the last one.

    Args:
      name: of the combinator, for messages.
      x: what the user passed.
      axis_name: the mesh axis over which `dim` is sliced.
      dim: as the user counts it.
      ordered: whether the combinator compares elements, which complex numbers do not allow.

    Raises:
      LayoutError: LAYOUT_AXIS, LAYOUT_ARGUMENT, LAYOUT_REDUCE_OP.
      BackendError: BACKEND_ARGUMENT if `x` holds no numbers.
    """
    require_axis(name, axis_name)
    array = numbers(name, x)
    if ordered and jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise LayoutError(
            "LAYOUT_REDUCE_OP", f"{name} of {array.dtype}: complex numbers have no order"
        )
    return array, counted_from_last(name, array, dim)


def require_axis(name: str, axis_name: Any) -> None:
    """Refuses what is not the name of one axis that is bound here."""
    if not isinstance(axis_name, str):
        raise LayoutError(
            "LAYOUT_AXIS",
            f"{name} runs over one axis, and axis_name is {axis_name!r}",
            fixes=("pass the name of the mesh axis that slices the dimension",),
        )
    try:
        _lax.axis_size(axis_name)
    except NameError:
        raise LayoutError(
            "LAYOUT_AXIS",
            f"{name} runs over {axis_name!r}, which is no mesh axis here",
            fixes=("call it inside jax.shard_map over a mesh that has the axis",),
        ) from None


def numbers(name: str, x: Any) -> jax.Array:
    """`x` as an array of numbers or bools."""
    try:
        array = jnp.asarray(x)
    except (TypeError, ValueError):
        array = None
    if array is None or not (
        jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(array.dtype, jnp.bool_)
    ):
        kind = type(x).__name__ if array is None else f"an array of {array.dtype}"
        raise BackendError("BACKEND_ARGUMENT", f"{name} needs an array of numbers, not {kind}")
    return array


def counted_from_last(name: str, array: jax.Array, dim: int) -> int:
    """The dimension that `dim` names, as a negative number."""
    try:
        place = operator.index(dim)
    except TypeError:
        place = array.ndim
    if not -array.ndim <= place < array.ndim:
        raise LayoutError(
            "LAYOUT_ARGUMENT", f"{name}: an array of shape {array.shape} has no dimension {dim!r}"
        )
    return place if place < 0 else place - array.ndim


def owned(positions: jax.Array, block: int, axis_name: str) -> tuple[jax.Array, jax.Array]:
    """Whether positions in the whole dimension lie in the rank's block, and where in it."""
    here = positions - _lax.axis_index(axis_name) * block
    return (here >= 0) & (here < block), jnp.clip(here, 0, block - 1)


def looked_up(x: jax.Array, positions: jax.Array, axis_name: str, dim: int) -> jax.Array:
    """What stands at `positions` of the whole dimension, on every rank; 0 outside of it.

    As `jax.numpy.take_along_axis` on the whole array.
    """
    mine, here = owned(positions, x.shape[dim], axis_name)
    found = jnp.take_along_axis(x, here, axis=dim)
    return _lax.psum(jnp.where(mine, found, jnp.zeros_like(found)), axis_name)


def gathered(x: jax.Array, axis_name: str) -> jax.Array:
    """Every rank's `x` along a new first dimension, typed as the same on all ranks."""
    if axis_name in varying_axes(x):
        return _lax.all_gather(x, axis_name, to="invarying")
    return _lax.all_gather(x, axis_name)


def sliced_over(axis_name: str, *operands: jax.Array) -> list[Any]:
    """Operands that JAX takes to differ between the ranks, where it follows that."""
    known = all(axis_name in varying_axes(x) for x in operands)
    if not known and not varying_axes(_lax.axis_index(axis_name)):
        return list(operands)
    return unify_varying(list(operands), (axis_name,))
