"""Running sums, products and extrema along a dimension that the ranks of an axis hold in blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from jaxcc.comm._combinators import gathered, operand, sliced_over
from jaxcc.comm._combinators_primitive import primitive
from jaxcc.layout import LayoutError

# JAX has types for some of its functions only.
_jax: Any = jax
_lax: Any = lax
_ad: Any = ad


@dataclass(frozen=True)
class _Operation:
    """What is accumulated.

    Attributes:
      along: its running values along one dimension.
      over: its value over the first dimension.
      combine: its value for two arrays.
      start: its value for nothing, for a dtype.
    """

    along: Callable[..., jax.Array]
    over: Callable[..., jax.Array]
    combine: Callable[[jax.Array, jax.Array], jax.Array]
    start: Callable[[Any], Any]


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


_OPERATIONS = {
    "cumsum": _Operation(_lax.cumsum, jnp.sum, jnp.add, lambda _: 0),
    "cumprod": _Operation(_lax.cumprod, jnp.prod, jnp.multiply, lambda _: 1),
    "cummax": _Operation(_lax.cummax, jnp.max, jnp.maximum, _lowest),
    "cummin": _Operation(_lax.cummin, jnp.min, jnp.minimum, _highest),
}


def cumsum(x: Any, axis_name: str, *, axis: int = 0, reverse: bool = False) -> jax.Array:
    """`jax.numpy.cumsum(x, axis)` of an array whose dimension `axis` is sliced over `axis_name`;
    sliced as `x` is.

    Args:
      x: the rank's block.
      axis_name: mesh axis.
      axis: the dimension, which has to be sliced.
      reverse: add up from the end.
    """
    return _running("cumsum", x, axis_name, axis, reverse)


def cumprod(x: Any, axis_name: str, *, axis: int = 0, reverse: bool = False) -> jax.Array:
    """`jax.numpy.cumprod(x, axis)`, as `cumsum`; it has no gradient."""
    return _running("cumprod", x, axis_name, axis, reverse)


def cummax(x: Any, axis_name: str, *, axis: int = 0, reverse: bool = False) -> jax.Array:
    """`jax.lax.cummax(x, axis)`, as `cumsum`; it has no gradient."""
    return _running("cummax", x, axis_name, axis, reverse)


def cummin(x: Any, axis_name: str, *, axis: int = 0, reverse: bool = False) -> jax.Array:
    """`jax.lax.cummin(x, axis)`, as `cumsum`; it has no gradient."""
    return _running("cummin", x, axis_name, axis, reverse)


def _running(name: str, x: Any, axis_name: str, axis: int, reverse: bool) -> jax.Array:
    extremum = name in ("cummax", "cummin")
    array, dim = operand(name, x, axis_name, axis, ordered=extremum)
    if not extremum:
        array = array.astype(_jax.eval_shape(getattr(jnp, name), array).dtype)
    elif array.dtype == jnp.bool_:
        raise LayoutError(
            "LAYOUT_REDUCE_OP",
            f"{name} of bool: jax.lax.{name} has none either",
            fixes=("convert the operand to an integer first",),
        )
    (array,) = sliced_over(axis_name, array)
    (result,) = _primitives[name].bind(array, axis_name=axis_name, dim=dim, reverse=bool(reverse))
    return result


def _run(
    operation: _Operation, x: jax.Array, *, axis_name: str, dim: int, reverse: bool
) -> Sequence[jax.Array]:
    """The block's own running values, after those of the blocks before it."""
    at = x.ndim + dim
    own = operation.along(x, axis=at, reverse=reverse)
    if not x.shape[at]:
        return [own]
    end = 0 if reverse else x.shape[at] - 1
    totals = gathered(_lax.slice_in_dim(own, end, end + 1, axis=at), axis_name)
    ranks = _lax.axis_index(axis_name), jnp.arange(totals.shape[0])
    before = ranks[1] > ranks[0] if reverse else ranks[1] < ranks[0]
    start = jnp.asarray(operation.start(x.dtype), x.dtype)
    counted = jnp.where(before.reshape(-1, *[1] * x.ndim), totals, start)
    return [operation.combine(operation.over(counted, axis=0).astype(x.dtype), own)]


def _back(
    cotangents: Sequence[Any], x: Any, *, axis_name: str, dim: int, reverse: bool
) -> Sequence[Any]:
    """An element counts in every sum that comes after it."""
    (cotangent,) = cotangents
    if type(cotangent) is _ad.Zero:
        return [_ad.Zero(x.aval)]
    return _primitives["cumsum"].bind(cotangent, axis_name=axis_name, dim=dim, reverse=not reverse)


_primitives = {
    name: primitive(
        name, functools.partial(_run, operation), transpose=_back if name == "cumsum" else None
    )
    for name, operation in _OPERATIONS.items()
}
