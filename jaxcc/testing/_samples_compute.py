"""Random equations that compute: pointwise, choices, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import uniform
from jaxcc.layout._relation import constant
from jaxcc.testing._claims import Array, random_relation
from jaxcc.testing._sample import (
    PENDING,
    Rng,
    Run,
    Sample,
    mate,
    random_shape,
    random_sizes,
    sliced,
)


def pointwise(
    function: Run, arity: int, *, positive: bool = False, boolean: bool = False
) -> Callable[[Rng], Sample]:
    """Samples of a pointwise operation of `arity` operands."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = random_sizes(rng), random_shape(rng)
        first = random_relation(whole, sizes, rng, pending=PENDING)
        if boolean:
            first = replace(first, partial={}, scale=1.0)
        if rng.random() < 0.2:
            first = replace(first, scale=1.0)
        relations = [first, *(mate(first, sizes, rng) for _ in range(arity - 1))]
        if boolean:
            relations = [replace(r, partial={}, scale=1.0) for r in relations if r.const is None]
            relations += [first] * (arity - len(relations))
        return Sample(
            sizes,
            tuple(relations),
            (whole,) * arity,
            {},
            {},
            function,
            function,
            positive,
            (boolean,) * arity,
        )

    return sample


def with_params(
    inner: Callable[[Rng], Sample], params: Mapping[str, Any]
) -> Callable[[Rng], Sample]:
    """The same samples, of an equation with parameters."""
    return lambda rng: replace(inner(rng), params=params, whole_params=params)


def select(rng: Rng) -> Sample:
    """A choice between two cases by a boolean."""
    sample = pointwise(np.add, 3)(rng)
    which, *cases = sample.relations
    which = replace(which, scale=1.0, const=None, partial={})
    if rng.random() < 0.2:
        which = constant(which.shape, (True, True))

    def run(which: Array, no: Array, yes: Array) -> Array:
        return np.where(which, yes, no)

    return replace(
        sample, relations=(which, *cases), boolean=(True, False, False), run=run, run_whole=run
    )


def reduction(function: Run, *, boolean: bool = False) -> Callable[[Rng], Sample]:
    """Samples of a reduction over some dimensions."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = random_sizes(rng), random_shape(rng)
        x = random_relation(whole, sizes, rng, pending=PENDING)
        if boolean:
            x = replace(x, partial={}, scale=1.0)
        elif rng.random() < 0.4:
            x = replace(x, scale=1.0)
        if rng.random() < 0.1 and not boolean:
            x = constant(x.shape, (2.0, 3.0))
        axes = tuple(d for d in range(len(whole)) if rng.random() < 0.6) or (0,)

        def run(array: Array) -> Array:
            return function(array, axis=axes)

        params = {"axes": axes}
        return Sample(
            sizes,
            (x,),
            (whole,),
            params,
            params,
            run,
            run,
            positive=function is np.prod,
            boolean=(boolean,),
        )

    return sample


def dot(rng: Rng) -> Sample:
    """A contraction with perhaps a batch dimension, its operands sliced along matching or other
    dimensions."""
    sizes = random_sizes(rng)
    n = list(sizes.values())[-1]
    batch = rng.random() < 0.4
    lead = int(rng.choice([2, n])) * n
    rows, columns, inner = (n * int(rng.choice([1, 2, n])) for _ in range(3))
    lhs_whole = (*([lead] if batch else []), rows, inner)
    rhs_whole = (*([lead] if batch else []), inner, columns)
    b = int(batch)
    lhs = random_relation(lhs_whole, sizes, rng, plain=0.9)
    options = {
        "contract": (b + 1, b),
        "batch": (0, 0),
        "rows": (b, None),
        "columns": (None, b + 1),
        "both": (b, b + 1),
    }
    axis = list(sizes)[-1]
    name = str(rng.choice(list(options)))
    left, right = options[name]
    if name == "batch" and not batch:
        left, right = options["contract"]
    lhs = sliced(lhs_whole, left, axis, n)
    rhs = sliced(rhs_whole, right, axis, n)
    if rng.random() < 0.3:
        lhs = replace(lhs, partial={a: "sum" for a in sizes if a not in lhs.ranks})
    if rng.random() < 0.2:
        rhs = replace(rhs, partial={a: "sum" for a in sizes if a not in rhs.ranks})
    lhs = replace(lhs, scale=float(rng.choice([1.0, n, 1 / n])))
    if rng.random() < 0.3:
        k = lhs.dims[-1]
        lhs = replace(lhs, dims=(*lhs.dims[:-1], uniform(math.prod(d.size for d in k))))
        if rng.random() < 0.5:
            k = rhs.dims[b]
            dims = (*rhs.dims[:b], uniform(math.prod(d.size for d in k)), *rhs.dims[b + 1 :])
            rhs = replace(rhs, dims=dims)

    def run(a: Array, c: Array) -> Array:
        return a @ c

    params = {"dimension_numbers": (((b + 1,), (b,)), (tuple(range(b)), tuple(range(b))))}
    return Sample(sizes, (lhs, rhs), (lhs_whole, rhs_whole), params, params, run, run)
