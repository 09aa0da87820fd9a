"""Distributions over a sliced dimension: `jax.random`'s own code, on the block's random bits.

Each takes a key that every rank holds and the shape of the rank's block, and gives the block that a
rank has of the array that `jax.random` makes of the key for the whole shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat
from jaxcc.comm._combinators import require_axis
from jaxcc.layout import LayoutError
from jaxcc.random._bits import sliced_bits

# JAX has types for some of its functions only.
_jax: Any = jax


def bits(
    key: Any, shape: Sequence[int], dtype: Any = None, *, axis_name: str, dim: int = 0
) -> jax.Array:
    """The rank's block of `jax.random.bits(key, whole_shape, dtype)`.

    Args:
      key: a key that every rank holds.
      shape: of the block; the whole shape has as many times `dim` as there are ranks.
      dtype: of the elements, as `jax.random.bits` takes it.
      axis_name: mesh axis over which `dim` is sliced.
      dim: array dimension.

    Raises:
      LayoutError: LAYOUT_AXIS, LAYOUT_ARGUMENT.
    """
    return _drawn(lambda k, s: _jax.random.bits(k, s, dtype), key, shape, axis_name, dim)


def uniform(
    key: Any,
    shape: Sequence[int],
    dtype: Any = None,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    *,
    axis_name: str,
    dim: int = 0,
) -> jax.Array:
    """The rank's block of `jax.random.uniform(key, whole_shape, ...)`; see `bits`.

    `minval` and `maxval` are numbers, or arrays that broadcast to the block's shape.
    """

    def draw(key: Any, shape: Sequence[int], low: Any, high: Any) -> Any:
        return _jax.random.uniform(key, shape, dtype, low, high)

    return _drawn(draw, key, shape, axis_name, dim, minval, maxval)


def normal(
    key: Any, shape: Sequence[int], dtype: Any = None, *, axis_name: str, dim: int = 0
) -> jax.Array:
    """The rank's block of `jax.random.normal(key, whole_shape, dtype)`; see `bits`.

    The bits are those of the whole array; the function that makes normal numbers of them, XLA's
    inverse error function, may round the last bits otherwise in a block.
    """
    return _drawn(lambda k, s: _jax.random.normal(k, s, dtype), key, shape, axis_name, dim)


def bernoulli(
    key: Any, p: Any = 0.5, shape: Sequence[int] = (), *, axis_name: str, dim: int = 0
) -> jax.Array:
    """The rank's block of `jax.random.bernoulli(key, p, whole_shape)`; see `bits`.

    `p` is a number, or an array that broadcasts to the block's shape.
    """

    def draw(key: Any, shape: Sequence[int], p: Any) -> Any:
        return _jax.random.bernoulli(key, p, shape)

    return _drawn(draw, key, shape, axis_name, dim, p)


def _drawn(
    draw: Callable[..., Any],
    key: Any,
    shape: Sequence[int],
    axis_name: str,
    dim: int,
    *parameters: Any,
) -> jax.Array:
    """`draw(key, shape, *parameters)` with the block's bits for those that it asks for."""
    require_axis("jaxcc.random", axis_name)
    block = tuple(map(operator.index, shape))
    if not -len(block) <= dim < len(block):
        raise LayoutError(
            "LAYOUT_ARGUMENT", f"jaxcc.random: an array of shape {block} has no dimension {dim}"
        )
    given = [jnp.asarray(one) if not hasattr(one, "dtype") else one for one in parameters]
    closed = _jax.make_jaxpr(lambda key, *rest: draw(key, block, *rest))(key, *given)
    place = dim if dim < 0 else dim - len(block)
    (result,) = _evaluated(closed, [key, *given], axis_name, place)
    return result


def _evaluated(closed: Any, args: Sequence[Any], axis_name: str, dim: int) -> list[Any]:
    jaxpr = _compat.open_jaxpr(closed)
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, _compat.jaxpr_consts(closed), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        given = [_read(values, atom) for atom in eqn.invars]
        if _compat.op_name(eqn) == "random_bits":
            params = eqn.params
            with _compat.at_line_of(eqn):
                results = [
                    sliced_bits(given[0], params["shape"], params["bit_width"], axis_name, dim)
                ]
        elif _compat.op_name(eqn) in _compat.CALLS:
            inner = next(_compat.inner_jaxprs(eqn))
            results = _evaluated(inner, given, axis_name, dim)
        else:
            results = _compat.bind(eqn, *_compat.unify_varying(given))
        values.update(zip(eqn.outvars, results, strict=True))
    return [_read(values, atom) for atom in jaxpr.outvars]


def _read(values: Mapping[Any, Any], atom: Any) -> Any:
    return _compat.literal_value(atom) if isinstance(atom, _compat.Literal) else values[atom]
