"""A global array and the parts of it that the ranks hold, stacked; and how results compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcc.layout._dtypes import is_key
from jaxcc.layout._layouts import LayoutMap, Local, Partial, ReduceOp, Replicated, Sliced

# JAX and NumPy have types for some of their parameters only.
_jax: Any = jax
_jnp: Any = jax.numpy
_np: Any = np


def on_host(x: Any) -> Any:
    """The array away from the mesh that it was made on; NumPy cannot hold keys, which stay."""
    return x if is_key(x) else np.asarray(x)


def split(x: Any, layout: LayoutMap, sizes: Mapping[str, int]) -> Any:
    """All ranks' parts of a global array: a leading dimension per axis, in the mesh's order.

    A global array starts with a dimension for the ranks of each Local or Partial axis.
    """
    # What is on the host stays there.
    xp = _np if type(x) is np.ndarray else _jnp
    made = list(layout.stacked_axes())
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            dim = len(made) + one.dim % (x.ndim - len(made))
            shape = x.shape[:dim] + (sizes[axis], x.shape[dim] // sizes[axis]) + x.shape[dim + 1 :]
            x = xp.moveaxis(x.reshape(shape), dim, len(made))
        elif one == Replicated:
            shape = x.shape[: len(made)] + (sizes[axis],) + x.shape[len(made) :]
            x = xp.broadcast_to(xp.expand_dims(x, len(made)), shape)
        else:
            continue
        made.append(axis)
    return xp.moveaxis(x, [made.index(axis) for axis in sizes], range(len(made)))


def join(x: Any, layout: LayoutMap, sizes: Mapping[str, int]) -> Any:
    """The global array of which `x` holds all ranks' parts; the inverse of `split`."""
    left = list(sizes)
    for axis, one in reversed(layout.items_):
        index = left.index(axis)
        if isinstance(one, Sliced):
            dim = len(left) + one.dim % (x.ndim - len(left))
            x = _jnp.moveaxis(x, index, dim - 1)
            x = x.reshape(x.shape[: dim - 1] + (-1,) + x.shape[dim + 1 :])
        elif one == Replicated:
            x = _jnp.take(x, 0, axis=index)
        else:
            continue
        left.remove(axis)
    stacked = layout.stacked_axes()
    return _jnp.moveaxis(x, [left.index(axis) for axis in stacked], range(len(stacked)))


def global_array(
    whole: Any, layout: LayoutMap, sizes: Mapping[str, int], rng: np.random.Generator
) -> Any:
    """A global array with `layout` for a whole one.

    Over a Partial axis the ranks' terms are random and reduce to `whole`; over a Local one every
    rank has the elements of `whole` in an order of its own (a key: a key of its own).
    """
    x = whole
    for axis in reversed(layout.stacked_axes()):
        one, n = layout[axis], sizes[axis]
        if isinstance(one, Partial):
            x = _terms(np.asarray(x), one.op, n, rng)
        elif n == 1:
            x = x[None]
        elif is_key(x):
            x = _own_keys(x, n)
        else:
            x = np.asarray(x)
            x = np.stack([rng.permutation(x.ravel()).reshape(x.shape) for _ in range(n)])
    return x


def _terms(whole: Any, op: ReduceOp, n: int, rng: np.random.Generator) -> Any:
    """n random arrays, stacked, that reduce to `whole`."""
    inexact = _jnp.issubdtype(whole.dtype, _jnp.inexact)
    # Of the widest type while terms are made, so that their sum rounds once.
    noise = (
        rng.standard_normal((n, *whole.shape)) if inexact else rng.integers(0, 9, (n, *whole.shape))
    )
    owner = rng.integers(0, n, whole.shape)
    owned = np.arange(n).reshape(n, *[1] * whole.ndim) == owner
    if op == "sum" and whole.dtype != bool:
        noise = noise.astype(whole.dtype)
        noise[-1] = whole - noise[:-1].sum(0, dtype=whole.dtype)
        return noise
    if op == "prod" and inexact:
        noise = (1 + abs(noise)).astype(whole.dtype)
        noise[-1] = whole / noise[:-1].prod(0, dtype=whole.dtype)
        return noise
    # Every element is held by one rank; to the others' the reduction is indifferent.
    noise = noise.astype(whole.dtype)
    others: Mapping[ReduceOp, Any] = {
        "sum": np.zeros_like(noise),
        "prod": np.ones_like(noise),
        "max": np.minimum(whole, noise),
        "min": np.maximum(whole, noise),
    }
    return _np.where(owned, whole, others[op])


def _own_keys(keys: Any, n: int) -> Any:
    flat = keys.reshape(-1)
    made = [_jax.vmap(_jax.random.fold_in, (0, None))(flat, r) for r in range(n)]
    return _jnp.stack(made).reshape(n, *keys.shape)


@dataclass(frozen=True)
class Difference:
    """Where a result on the ranks is not what its layout says.

    Attributes:
      rank: the rank, by axis, whose copy is furthest off.
      index: the element of its part.
      found: the element.
      expected: what it should be.
      largest: the difference there, the largest of all.
    """

    rank: Mapping[str, int]
    index: tuple[int, ...]
    found: Any
    expected: Any
    largest: float

    def __str__(self) -> str:
        rank = ", ".join(f"{axis}={r}" for axis, r in self.rank.items())
        return (
            f"rank {rank} has {self.found} at index {list(self.index)}, not {self.expected}; "
            f"largest difference {self.largest:.3g}"
        )


def difference(
    parts: Any,
    whole: Any,
    layout: LayoutMap,
    sizes: Mapping[str, int],
    *,
    rtol: float,
    atol: float,
) -> Difference | None:
    """Compares every rank's part with the whole result of a group of one.

    Args:
      parts: the ranks' parts, stacked along a leading dimension per axis of `sizes`.
      whole: the result of a group of one; None holds the parts only against one another: what is
        Replicated must be equal on all ranks.
      layout: what the result is. A Local axis claims nothing.
      sizes: ranks along each axis.
      rtol, atol: what is taken for rounding.
    """
    found = _numbers(parts)
    for at, axis in enumerate(sizes):
        one = layout[axis]
        if isinstance(one, Partial):
            total = getattr(_np, one.op)(found, axis=at, keepdims=True)
            found = np.broadcast_to(total.astype(found.dtype), found.shape)
    local = [axis for axis in layout.axes_with(type(Local)) if sizes[axis] > 1]
    if whole is None or local:
        expected = found
        for at, axis in enumerate(sizes):
            if layout[axis] == Replicated:
                expected = np.broadcast_to(expected.take([0], at), found.shape)
    else:
        expected = split(_numbers(whole), _reduced(layout, sizes), sizes)
        if expected.shape != found.shape:
            own, due = (shape[len(sizes) :] for shape in (found.shape, expected.shape))
            return Difference({axis: 0 for axis in sizes}, (), f"shape {own}", f"{due}", math.inf)
    return _largest(found, expected, sizes, rtol, atol)


def _reduced(layout: LayoutMap, sizes: Mapping[str, int]) -> LayoutMap:
    """The layout once what is pending is reduced, for every axis."""
    axes = [*layout, *(axis for axis in sizes if axis not in layout)]
    return LayoutMap(
        tuple((a, layout[a] if isinstance(layout[a], Sliced) else Replicated) for a in axes)
    )


def _numbers(x: Any) -> Any:
    """Comparable numbers: keys as their words, floats in double precision."""
    if is_key(x):
        return np.asarray(_jax.random.key_data(x))
    if _jnp.issubdtype(x.dtype, _jnp.complexfloating):
        return np.asarray(x).astype(np.complex128)
    if _jnp.issubdtype(x.dtype, _jnp.floating):
        return np.asarray(x).astype(np.float64)
    return np.asarray(x)


def _largest(
    found: Any, expected: Any, sizes: Mapping[str, int], rtol: float, atol: float
) -> Difference | None:
    if found.dtype.kind in "biu":
        found, expected = found.astype(object), expected.astype(object)
        off = np.asarray(abs(found * 1 - expected * 1), np.float64)
    else:
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        with np.errstate(invalid="ignore"):
            off = np.where(same, 0.0, abs(found - expected))
            off = np.where(np.isnan(off), np.inf, off)
            allowed = atol + rtol * np.where(np.isfinite(expected), abs(expected), 0.0)
        if np.all(off <= allowed):
            return None
    if not off.any():
        return None
    at = np.unravel_index(int(off.argmax()), off.shape)
    ranks = len(sizes)
    return Difference(
        rank={axis: int(r) for axis, r in zip(sizes, at[:ranks], strict=True)},
        index=tuple(int(i) for i in at[ranks:]),
        found=found[at],
        expected=expected[at],
        largest=float(off[at]),
    )
