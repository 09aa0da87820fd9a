"""The types of values: shapes, dtypes, and the axes over which ranks differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import core as _core


def type_of(x: Any) -> tuple[tuple[int, ...], Any]:
    """The shape and dtype that `x` has, or will have as a JAX array."""
    if not isinstance(x, jax.Array):
        return np.shape(x), jax.dtypes.canonicalize_dtype(jax.numpy.result_type(x))
    return x.shape, x.dtype


def result_type(f: Callable[[Any], Any], x: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `f(x)`, one array, and over which axes JAX takes it to differ.

    Of a mesh some of whose axes `shard_map` leaves to the compiler, what `jax.eval_shape` gives
    says the axes without the mesh, which JAX refuses.
    """
    traced: Any = jax.make_jaxpr(f)(x)
    return traced.out_avals[0]


def is_tracer(x: Any) -> bool:
    """Whether `x` stands for a value in a trace."""
    return isinstance(x, _core.Tracer)


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes over which JAX takes a value or a type `x` to differ between ranks."""
    aval = x if isinstance(x, _core.ShapedArray) else jax.typeof(x)
    return frozenset(aval.manual_axis_type.varying)


def unify_varying(values: list[Any], axes: tuple[str, ...] = ()) -> list[Any]:
    """The values cast so that JAX takes all of them to vary over the same axes, `axes` included.

    JAX's own functions do this; binding a primitive by hand does not.
    """
    wanted = frozenset(axes).union(*(varying_axes(x) for x in values))
    return [_vary_over(x, wanted) for x in values]


def as_varying_as(values: list[Any], types: list[Any]) -> list[Any]:
    """The values cast so that each varies at least over the axes that its type does."""
    return [_vary_over(x, varying_axes(t)) for x, t in zip(values, types, strict=True)]


def _vary_over(x: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def varying_type(t: jax.ShapeDtypeStruct, axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
    """The type with JAX told that it differs between the ranks of `axes`; inside `shard_map`."""
    if not axes:
        return t
    # Only a value's own type carries all that JAX wants; the zero is never computed.
    zero = lax.pcast(jax.numpy.zeros(t.shape, t.dtype), axes, to="varying")
    return jax.ShapeDtypeStruct.like(zero)
