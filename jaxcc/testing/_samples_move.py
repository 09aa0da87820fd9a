"""Random equations that move elements of one rank: reshapes, slices, operations along a dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.testing._claims import Array, random_relation
from jaxcc.testing._sample import (
    PENDING,
    Rng,
    Run,
    Sample,
    as_it_is,
    mate,
    random_shape,
    random_sizes,
)


def along(function: Run, key: str) -> Callable[[Rng], Sample]:
    """Samples of an operation along one dimension (a scan, a sort, a reversal)."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = random_sizes(rng), random_shape(rng)
        x = random_relation(whole, sizes, rng, pending=PENDING)
        if rng.random() < 0.3:
            x = replace(x, scale=1.0)
        dim = int(rng.integers(len(whole)))
        value = (dim,) if key in ("dimensions", "axes") else dim
        params = {key: value, "reverse": False}

        def run(array: Array) -> Array:
            return function(array, dim)

        return Sample(sizes, (x,), (whole,), params, params, run, run)

    return sample


def reshape(rng: Rng) -> Sample:
    """A reshape at n only."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng)
    shape = _another_shape(math.prod(x.shape), rng)
    return Sample(
        sizes, (x,), (whole,), {}, {}, lambda a: a.reshape(shape), as_it_is, out_shape=shape
    )


def _another_shape(size: int, rng: Rng) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        divisors = [k for k in range(2, size + 1) if size % k == 0]
        shape.append(int(rng.choice(divisors)))
        size //= shape[-1]
    return (*shape, size) if size > 1 or not shape else tuple(shape)


def transpose(rng: Rng) -> Sample:
    """A transpose at n only."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng)
    order = tuple(int(k) for k in rng.permutation(len(x.shape)))
    shape = tuple(x.shape[k] for k in order)
    params = {"permutation": order}
    return Sample(
        sizes,
        (x,),
        (whole,),
        params,
        params,
        lambda a: a.transpose(order),
        as_it_is,
        out_shape=shape,
    )


def broadcast(rng: Rng) -> Sample:
    """A broadcast at n only."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng)
    at = int(rng.integers(len(x.shape) + 1))
    shape = (*x.shape[:at], int(rng.choice([1, 3])), *x.shape[at:])
    kept = tuple(d for d in range(len(shape)) if d != at)
    shape = tuple(int(rng.choice([1, 4])) if n == 1 and d != at else n for d, n in enumerate(shape))

    def run(a: Array) -> Array:
        return np.broadcast_to(np.expand_dims(a, at), shape)

    params = {"broadcast_dimensions": kept, "shape": shape}
    return Sample(sizes, (x,), (whole,), params, params, run, as_it_is, out_shape=shape)


def same(rng: Rng) -> Sample:
    """An operation that changes nothing."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng, pending=PENDING)
    return Sample(sizes, (x,), (whole,), {}, {}, as_it_is, as_it_is, out_shape=x.shape)


def iota(rng: Rng) -> Sample:
    """A ramp; sometimes of another length at n."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    dim = int(rng.integers(len(whole)))
    shape = [int(rng.choice([k, k, 1])) for k in whole]
    if rng.random() < 0.8:
        shape[dim] = whole[dim]

    def ramp(of: Sequence[int]) -> Run:
        line = np.arange(of[dim]).reshape(-1, *[1] * (len(of) - dim - 1))
        return lambda: np.broadcast_to(line, of)

    params = {"dimension": dim}
    return Sample(sizes, (), (), params, params, ramp(shape), ramp(whole), out_shape=tuple(shape))


def cut(rng: Rng) -> Sample:
    """A slice, with positions that fit the part that a rank holds, or not."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng)
    parts = int(rng.choice([1, 2, 2, 3]))
    dim = int(rng.integers(len(whole)))
    index = int(rng.integers(parts))
    spans = [(0, size) for size in x.shape]
    whole_spans = [(0, size) for size in whole]
    if x.shape[dim] >= parts and whole[dim] >= parts:
        spans[dim] = _block(x.shape[dim], parts, index)
        whole_spans[dim] = _block(whole[dim], parts, index)
    strides = None

    def taking(of: Sequence[tuple[int, int]]) -> Run:
        return lambda a: a[tuple(slice(*span) for span in of)]

    def params(of: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
        starts, limits = zip(*of, strict=True)
        return {"start_indices": starts, "limit_indices": limits, "strides": strides}

    return Sample(
        sizes,
        (x,),
        (whole,),
        params(spans),
        params(whole_spans),
        taking(spans),
        taking(whole_spans),
    )


def _block(size: int, parts: int, index: int) -> tuple[int, int]:
    step = max(1, size // parts)
    return (min(index * step, size - 1), min((index + 1) * step, size))


def concatenate(rng: Rng) -> Sample:
    """Two or three arrays side by side."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    first = replace(random_relation(whole, sizes, rng, plain=0.8), scale=1.0)
    many = int(rng.choice([2, 3]))
    others = [first if rng.random() < 0.5 else mate(first, sizes, rng) for _ in range(many - 1)]
    dim = int(rng.integers(len(whole)))

    def run(*arrays: Array) -> Array:
        return np.concatenate(arrays, dim)

    params = {"dimension": dim}
    return Sample(sizes, (first, *others), (whole,) * many, params, params, run, run)
