"""Random collectives, emulated in NumPy over all ranks' arrays at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._relation import Relation
from jaxcc.testing._claims import Array, random_relation
from jaxcc.testing._sample import PENDING, Rng, Run, Sample, as_it_is, random_shape, random_sizes


def collective(make: Callable[..., tuple[Mapping[str, Any], Run]]) -> Callable[[Rng], Sample]:
    """Samples of a collective; `make(x, sizes, axis, at, rng)` gives parameters and the operation
    on all ranks."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = random_sizes(rng), random_shape(rng)
        x = random_relation(whole, sizes, rng, pending=PENDING)
        axes = list(sizes)
        axis = axes[rng.integers(len(axes))]
        if rng.random() < 0.15 and axis not in x.ranks and axis not in x.partial:
            x = replace(x, local=frozenset({axis}), unmeasured=True).scaled(1.0)
        params, run = make(x, sizes, axis, axes.index(axis), rng)
        return Sample(sizes, (x,), (whole,), params, params, run, as_it_is)

    return sample


def all_reduce(function: Run) -> Callable[..., tuple[Mapping[str, Any], Run]]:
    """psum and its kind."""

    def make(
        x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
    ) -> tuple[Mapping[str, Any], Run]:
        axes = tuple(sizes) if rng.random() < 0.3 else (axis,)
        at_axes = tuple(list(sizes).index(a) for a in axes)

        def run(a: Array) -> Array:
            return np.broadcast_to(function(a, axis=at_axes, keepdims=True), a.shape)

        return {"axes": axes}, run

    return make


def reduce_scatter(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """psum_scatter, tiled or not."""
    n, lead = sizes[axis], len(sizes)
    fits = [d for d, k in enumerate(x.shape) if k % n == 0]
    dim = fits[rng.integers(len(fits))] if fits else 0
    tiled = not (fits and x.shape[dim] == n and rng.random() < 0.5)

    def run(a: Array) -> Array:
        total = a.sum(at)
        if total.shape[lead - 1 + dim] % n:
            raise ValueError("does not divide")
        blocks = np.stack(np.split(total, n, lead - 1 + dim), at)
        return blocks if tiled else blocks.squeeze(lead + dim)

    return {"axis_name": (axis,), "scatter_dimension": dim, "tiled": tiled}, run


def all_gather(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """all_gather, tiled or not."""
    tiled = rng.random() < 0.6
    lead = len(sizes)
    dim = int(rng.integers(len(x.shape) + (not tiled)))

    def run(a: Array) -> Array:
        blocks = list(np.moveaxis(a, at, 0))
        join = np.concatenate if tiled else np.stack
        whole = join(blocks, lead - 1 + dim)
        return np.stack([whole] * sizes[axis], at)

    return {"axis_name": (axis,), "all_gather_dimension": dim, "tiled": tiled}, run


def all_to_all(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """all_to_all, tiled."""
    n, lead = sizes[axis], len(sizes)
    fits = [d for d, k in enumerate(x.shape) if k % n == 0]
    split_dim = fits[rng.integers(len(fits))] if fits else 0
    concat = int(rng.integers(len(x.shape)))

    def run(a: Array) -> Array:
        if a.shape[lead + split_dim] % n:
            raise ValueError("does not divide")
        senders = [np.split(s, n, lead - 1 + split_dim) for s in np.moveaxis(a, at, 0)]
        received = [
            np.concatenate([sender[r] for sender in senders], lead - 1 + concat) for r in range(n)
        ]
        return np.stack(received, at)

    params = {"axis_name": axis, "split_axis": split_dim, "concat_axis": concat, "tiled": True}
    return params, run


def permutation(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """ppermute over one axis, or over all of them; sometimes a rank is left out."""
    axes = tuple(sizes) if rng.random() < 0.3 else (axis,)
    n = math.prod(sizes[a] for a in axes)
    perm = [(int(a), int(b)) for a, b in enumerate(rng.permutation(n))]
    if rng.random() < 0.2:
        perm.pop()

    def run(a: Array) -> Array:
        front = [list(sizes).index(axis) for axis in axes]
        moved = np.moveaxis(a, front, range(len(front)))
        flat = moved.reshape(n, *moved.shape[len(front) :])
        out = np.zeros_like(flat)
        for source, to in perm:
            out[to] = flat[source]
        return np.moveaxis(out.reshape(moved.shape), range(len(front)), front)

    return {"axis_name": axes, "perm": tuple(perm)}, run


def broadcast(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """What one rank has, for all."""
    source = int(rng.integers(sizes[axis]))

    def run(a: Array) -> Array:
        return np.broadcast_to(a.take([source], at), a.shape)

    return {"axis_name": (axis,), "source": source}, run


def on_root(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """What one rank has, and zeros on the others."""
    root = int(rng.integers(sizes[axis]))

    def run(a: Array) -> Array:
        ranks = np.arange(sizes[axis]).reshape(-1, *[1] * (a.ndim - at - 1))
        return np.where(ranks == root, a, np.zeros_like(a))

    return {"axis_name": (axis,), "root": root}, run


def unchanged(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """A cast that says what a value is over an axis."""
    return {"axis_name": (axis,)}, as_it_is


def own_slice(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """The rank's block of a value."""
    n, lead = sizes[axis], len(sizes)
    fits = [d for d, k in enumerate(x.shape) if k % n == 0]
    dim = fits[rng.integers(len(fits))] if fits else 0

    def run(a: Array) -> Array:
        return _own_block(a, dim, at, lead)

    return {"axis": axis, "dim": dim}, run


def _own_block(a: Array, dim: int, at: int, lead: int) -> Array:
    """The block of dimension `dim` of every rank along the axis at `at` of `lead`."""
    n = a.shape[at]
    if a.shape[lead + dim] % n:
        raise ValueError("does not divide")
    ranks = [np.split(s, n, lead - 1 + dim)[r] for r, s in enumerate(np.moveaxis(a, at, 0))]
    return np.stack(ranks, at)


def enter(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """Entering a shard_map that slices one dimension over one axis, or over all of them."""
    over = _order(sizes, axis, rng)
    size = math.prod(sizes[a] for a in over)
    fits = [d for d, k in enumerate(x.shape) if k % size == 0]
    dim = fits[rng.integers(len(fits))] if fits else 0

    def run(a: Array) -> Array:
        for one in over:
            a = _own_block(a, dim, list(sizes).index(one), len(sizes))
        return a

    return _spec(x, over, dim), run


def leave(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """Leaving a shard_map that lays one dimension's blocks together, or that names no axis."""
    if rng.random() < 0.2:
        return {"axes": (axis,), "spec": ((),) * len(x.shape)}, as_it_is
    over = _order(sizes, axis, rng)
    dim, lead = int(rng.integers(len(x.shape))), len(sizes)

    def run(a: Array) -> Array:
        for one in reversed(over):
            place = list(sizes).index(one)
            whole = np.concatenate(list(np.moveaxis(a, place, 0)), lead - 1 + dim)
            a = np.stack([whole] * sizes[one], place)
        return a

    return _spec(x, over, dim), run


def _order(sizes: Mapping[str, int], axis: str, rng: Rng) -> tuple[str, ...]:
    """One axis, or all of them in some order, major first."""
    if rng.random() < 0.6:
        return (axis,)
    return tuple(str(one) for one in rng.permutation(list(sizes)))


def _spec(x: Relation, over: tuple[str, ...], dim: int) -> Mapping[str, Any]:
    return {"axes": over, "spec": tuple(over if d == dim else () for d in range(len(x.shape)))}
