"""What one random equation for a rule is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import Digit, normal, uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation, constant
from jaxcc.testing._claims import Array

Rng = np.random.Generator
Run = Callable[..., Any]


@dataclass(frozen=True)
class Sample:
    """One equation: what it does at n (`run`) and at 1 (`run_whole`), on operands with these
    relations.

    A collective, and what is `together`, gets all ranks' arrays at once, with leading dimensions
    for the axes; everything else one rank's.
    """

    sizes: Mapping[str, int]
    relations: tuple[Relation, ...]
    wholes: tuple[tuple[int, ...], ...]
    params: Mapping[str, Any]
    whole_params: Mapping[str, Any]
    run: Run
    run_whole: Run
    positive: bool = False
    boolean: tuple[bool, ...] = ()
    integers: tuple[range | None, ...] = ()
    out_shape: tuple[int, ...] | None = None
    dtypes: tuple[Any, ...] = ()
    together: bool = False


def random_sizes(rng: Rng) -> dict[str, int]:
    """One or two mesh axes."""
    if rng.random() < 0.7:
        return {"tp": int(rng.choice([2, 3, 4]))}
    return {"dp": 2, "tp": int(rng.choice([2, 3]))}


def random_shape(rng: Rng, ndim: int | None = None) -> tuple[int, ...]:
    """A whole shape whose dimensions have many divisors."""
    ndim = int(rng.integers(1, 4)) if ndim is None else ndim
    choices = [2, 3, 4, 6, 8, 12]
    return tuple(int(rng.choice(choices if ndim < 3 else choices[:4])) for _ in range(ndim))


PENDING: tuple[ReduceOp, ...] = ("sum", "sum", "sum", "max", "min")


def mate(base: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
    """Another operand of one per-rank shape: like `base`, uniform where it is not, or something
    else."""
    if rng.random() < 0.15:
        values = [
            (0.0, 0.0),
            (2.0, 2.0),
            (-3.0, -3.0),
            (1.0, 2.0),
            (3.0, 0.0),
            (math.inf, math.inf),
        ]
        return constant(base.shape, values[rng.integers(len(values))])
    partial = dict(base.partial)
    ops: list[ReduceOp] = [*partial.values(), PENDING[int(rng.integers(len(PENDING)))]]
    for axis in sizes:
        if rng.random() < 0.4:
            partial.pop(axis, None)
        elif axis not in base.ranks and rng.random() < 0.2:
            partial[axis] = ops[0]
    ranks = {axis: digits for axis, digits in base.ranks.items() if rng.random() < 0.85}
    if len(ranks) == 2 and rng.random() < 0.3:
        ranks = dict(zip(ranks, reversed(ranks.values()), strict=True))
    dims = [
        uniform(math.prod(d.size for d in digits)) if rng.random() < 0.15 else digits
        for digits in base.dims
    ]
    if rng.random() < 0.1:
        dims = [normal(reversed(digits)) for digits in dims]
    n = math.prod(sizes.values())
    scale = base.scale * float(rng.choice([1.0, 1.0, 1.0, n, 1 / n, 2.0]))
    if rng.random() < 0.6:
        extra = [n for axis, n in sizes.items() if axis in base.partial and axis not in partial]
        scale = base.scale / math.prod(extra)
    return replace(base, dims=tuple(dims), ranks=ranks, partial=partial, scale=scale)


def sliced(whole: Sequence[int], dim: int | None, axis: str, n: int) -> Relation:
    """A whole array, or its blocks along `dim` over `axis`."""
    dims = [normal([Digit(d, 1, size // n if d == dim else size)]) for d, size in enumerate(whole)]
    ranks = {} if dim is None else {axis: (Digit(dim, whole[dim] // n, n),)}
    return Relation(tuple(dims), ranks)


def as_it_is(array: Array) -> Array:
    """What an operation that moves nothing on a group of one does."""
    return array
