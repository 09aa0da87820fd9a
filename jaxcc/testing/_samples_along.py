"""Random equations along one dimension, and those that stack or repeat arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._relation import Relation
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

Sampler = Callable[[Rng], Sample]


def one(rng: Rng) -> tuple[dict[str, int], tuple[int, ...], Relation]:
    """Mesh axes, a whole shape, and a relation to an array of it, often one of scale 1."""
    sizes, whole = random_sizes(rng), random_shape(rng)
    x = random_relation(whole, sizes, rng, pending=PENDING if rng.random() < 0.5 else ())
    return sizes, whole, replace(x, scale=1.0) if rng.random() < 0.4 else x


def along(function: Run, key: str, **params: Any) -> Sampler:
    """Samples of a function along one dimension, whose parameter is called `key`."""

    def sample(rng: Rng) -> Sample:
        sizes, whole, x = one(rng)
        dim = int(rng.integers(len(whole)))
        given = {key: (dim,) if key in ("axes", "dimensions") else dim, **params}

        def run(array: Array) -> Any:
            return function(array, dim)

        return Sample(sizes, (x,), (whole,), given, given, run, run)

    return sample


def several(function: Run, key: str, **params: Any) -> Sampler:
    """The same of two or three arrays."""

    def sample(rng: Rng) -> Sample:
        sizes, whole, first = one(rng)
        count = int(rng.choice([2, 3]))
        others = [
            first if rng.random() < 0.5 else mate(first, sizes, rng) for _ in range(count - 1)
        ]
        dim = int(rng.integers(len(whole)))

        def run(*arrays: Array) -> Any:
            return function(arrays, dim)

        given = {key: dim, **params}
        return Sample(sizes, (first, *others), (whole,) * count, given, given, run, run)

    return sample


def _sorted(arrays: tuple[Array, ...], dim: int) -> list[Array]:
    """By the first array, then by the second."""
    order = np.lexsort(arrays[1::-1], dim)
    return [np.take_along_axis(array, order, dim) for array in arrays]


def _sort(rng: Rng) -> Sample:
    if rng.random() < 0.3:
        return along(lambda a, dim: [np.sort(a, dim)], "dimension", num_keys=1)(rng)
    return several(_sorted, "dimension", num_keys=2)(rng)


def _top(array: Array, dim: int) -> list[Array]:
    """The largest value and its first position, along `dim`."""
    at = np.expand_dims(np.argmax(array, dim), dim)
    return [np.take_along_axis(array, at, dim), at]


def _with_start(function: Run, key: str) -> Sampler:
    """Samples of a reduction by the function of a user, from an initial value."""

    def sample(rng: Rng) -> Sample:
        inner = along(function, key, jaxpr="logaddexp")(rng)
        start = Relation((), scale=float(rng.choice([1.0, 1.0, 1.0, 2.0])))

        def run(array: Array, initial: Array) -> list[Array]:
            return [np.logaddexp(initial, inner.run(array))]

        return replace(
            inner,
            relations=(*inner.relations, start),
            wholes=(*inner.wholes, ()),
            run=run,
            run_whole=run,
        )

    return sample


def _bits(array: Array, dim: int) -> Array:
    """Exclusive or of the floats' bits."""
    return np.bitwise_xor.reduce(np.ascontiguousarray(array).view(np.int64), dim) >> 40


def _unstacked(rng: Rng) -> Sample:
    return along(lambda a, dim: list(np.moveaxis(a, dim, 0)), "axis")(rng)


def _tile(rng: Rng) -> Sample:
    """Repetition at n only."""
    sizes, whole, x = one(rng)
    reps = tuple(int(rng.choice([1, 1, 2, 3])) for _ in whole)
    shape = tuple(k * n for k, n in zip(reps, x.shape, strict=True))
    return Sample(
        sizes,
        (x,),
        (whole,),
        {"reps": reps},
        {"reps": reps},
        lambda a: np.tile(a, reps),
        as_it_is,
        out_shape=shape,
    )


SAMPLERS: Mapping[str, Sampler] = {
    "argmax": along(np.argmax, "axes"),
    "cumsum": along(np.cumsum, "axis"),
    "cumprod": along(np.cumprod, "axis"),
    "cumlogsumexp": along(np.logaddexp.accumulate, "axis"),
    "cummax": along(np.maximum.accumulate, "axis"),
    "cummin": along(np.minimum.accumulate, "axis"),
    "rev": along(np.flip, "dimensions"),
    "sort": _sort,
    "top_k": along(_top, "axis"),
    "approx_top_k": along(_top, "reduction_dimension"),
    "reduce": _with_start(np.logaddexp.reduce, "dimensions"),
    "reduce_xor": along(_bits, "axes"),
    "stack": several(lambda arrays, dim: np.stack(arrays, dim), "axis"),
    "unstack": _unstacked,
    "tile": _tile,
}
