"""Random equations for the combinators of `jaxcc.comm`: on all ranks' blocks of a dimension.

At n they are emulated as what they promise: the function of the blocks put together, of which each
rank keeps its own. That the ranks' code does this is for tests that run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.testing._claims import Array, random_relation
from jaxcc.testing._sample import (
    PENDING,
    Rng,
    Run,
    Sample,
    as_it_is,
    mate,
    random_sizes,
    sliced,
)

Sampler = Callable[[Rng], Sample]


def _operand(rng: Rng, whole: tuple[int, ...], sizes: Mapping[str, int], dim: int) -> Relation:
    """A relation to an array of shape `whole`: its blocks along `dim` over the axis tp."""
    x = sliced(whole, dim, "tp", sizes["tp"])
    others = [d for d, size in enumerate(whole) if d != dim and size % sizes.get("dp", 1) == 0]
    if "dp" in sizes and others and rng.random() < 0.5:
        other = sliced(whole, int(rng.choice(others)), "dp", sizes["dp"])
        at = next(iter(other.ranks.values()))[0].dim
        dims = tuple(other.dims[d] if d == at else kept for d, kept in enumerate(x.dims))
        x = replace(x, dims=dims, ranks={**x.ranks, **other.ranks})
    elif "dp" in sizes and rng.random() < 0.5:
        x = replace(x, partial={"dp": PENDING[int(rng.integers(len(PENDING)))]})
    return replace(x, scale=float(rng.choice([1.0, 1.0, 3.0, -2.0])))


def _gathered(a: Array, sizes: Mapping[str, int], dim: int) -> Array:
    """The blocks of dimension `dim` put together along tp, which is left with size 1."""
    at = list(sizes).index("tp")
    return np.concatenate(np.split(a, sizes["tp"], at), len(sizes) + dim)


def _own(a: Array, sizes: Mapping[str, int], dim: int | None) -> Array:
    """Each rank's block of `dim`, or all of it on every rank."""
    at = list(sizes).index("tp")
    if dim is None:
        return np.repeat(a, sizes["tp"], at)
    return np.concatenate(np.split(a, sizes["tp"], len(sizes) + dim), at)


def _together(function: Run, sizes: Mapping[str, int], reads: list[int], makes: list[Any]) -> Run:
    """All ranks' results of `function(arrays, lead)`, where `lead` dimensions come before an
    array's own."""

    def run(*arrays: Array) -> list[Array]:
        whole = [_gathered(a, sizes, dim) for a, dim in zip(arrays, reads, strict=True)]
        made = function(whole, len(sizes))
        return [_own(a, sizes, dim) for a, dim in zip(made, makes, strict=True)]

    return run


def _along(function: Callable[[Array, int], list[Array]], keeps: bool, **params: Any) -> Sampler:
    """Samples of a function along one dimension; its results have that dimension if it `keeps`
    it."""

    def sample(rng: Rng) -> Sample:
        sizes = random_sizes(rng)
        whole = tuple(int(rng.choice([1, 2, 4, 6])) for _ in range(int(rng.integers(1, 4))))
        dim = len(whole) - 1 if "k" in params else int(rng.integers(len(whole)))
        whole = (*whole[:dim], sizes["tp"] * int(rng.choice([1, 2, 3])), *whole[dim + 1 :])
        x = _operand(rng, whole, sizes, dim)
        if rng.random() < 0.3:
            x = random_relation(whole, sizes, rng, pending=PENDING)
        given = {"axis_name": "tp", **params} | ({} if "k" in params else {"dim": dim - len(whole)})
        results = len(function(np.zeros(whole), dim))
        makes = [dim if keeps else None] * results

        def all_ranks(arrays: list[Array], lead: int) -> list[Array]:
            return function(arrays[0], lead + dim)

        run = _together(all_ranks, sizes, [dim], makes)
        return Sample(
            sizes,
            (x,),
            (whole,),
            given,
            given,
            run,
            lambda a: function(a, dim),
            together=True,
        )

    return sample


def _random_bits(rng: Rng) -> Sample:
    """Each rank's block of the numbers that keys of two words give."""
    sizes = random_sizes(rng)
    n, dim = sizes["tp"], -int(rng.integers(1, 3))
    shape = (2, 3 * n) if dim == -1 else (2 * n, 3)
    keys = (2,) if rng.random() < 0.5 else (6, 2)
    x = random_relation(keys, sizes, rng, pending=PENDING)
    if rng.random() < 0.7:
        x = sliced(keys, None, "tp", n)
    x = replace(x, scale=float(rng.choice([1.0, 1.0, 2.0])))

    def drawn(words: Array) -> Array:
        counters = np.arange(6 * n).reshape(shape) + 1
        first, second = (words[..., i, None, None] for i in (0, -1))
        return np.sin(first * counters + second * counters**2)

    def run(words: Array) -> list[Array]:
        at = list(sizes).index("tp")
        ranks = enumerate(np.moveaxis(drawn(words), at, 0))
        return [np.stack([np.split(made, n, dim)[r] for r, made in ranks], at)]

    given = {"axis_name": "tp", "dim": dim}
    return Sample(sizes, (x,), (keys,), given, given, run, lambda a: [drawn(a)], together=True)


def _largest(array: Array, dim: int) -> list[Array]:
    """The two largest along `dim`, and where they stand."""
    order = np.flip(np.argsort(array, dim, kind="stable"), dim).take([0, 1], dim)
    return [np.take_along_axis(array, order, dim), order]


def _attention(arrays: list[Array], lead: int = 0) -> list[Array]:
    q, k, v = arrays
    logits = np.einsum("...qhd,...khd->...qhk", q, k)
    logs = np.log(np.exp(logits).sum(-1))
    return [np.einsum("...qhk,...khd->...qhd", np.exp(logits - logs[..., None]), v), logs]


def _attention_back(arrays: list[Array], lead: int = 0) -> list[Array]:
    q, k, v, out, logs, given = arrays
    weights = np.exp(np.einsum("...qhd,...khd->...qhk", q, k) - logs[..., None])
    slopes = np.einsum("...qhd,...khd->...qhk", given, v) - (given * out).sum(-1)[..., None]
    slopes = weights * slopes
    return [
        np.einsum("...qhk,...khd->...qhd", slopes, k),
        np.einsum("...qhk,...qhd->...khd", slopes, q),
        np.einsum("...qhk,...qhd->...khd", weights, given),
    ]


def _attending(function: Run, operands: int) -> Sampler:
    """Samples of attention over heads and a batch: the first three operands are queries, keys and
    values; the fourth to sixth are results and a cotangent."""

    def sample(rng: Rng) -> Sample:
        sizes = random_sizes(rng)
        batch = (4,) if rng.random() < 0.6 else ()
        length = sizes["tp"] * int(rng.choice([1, 2]))
        full = (*batch, length, int(rng.choice([2, 4])), 3)
        wholes = [full[:-1] if index == 4 else full for index in range(operands)]
        at = len(batch)
        first = _operand(rng, full, sizes, at)
        if rng.random() < 0.8:
            first = replace(first, scale=1.0, partial={})
        relations = [first if len(whole) == len(full) else _without_last(first) for whole in wholes]
        if rng.random() < 0.4:
            changed = int(rng.integers(operands))
            relations[changed] = mate(relations[changed], sizes, rng)
        if relations[-1].const is None and rng.random() < 0.4:
            pending: dict[str, ReduceOp] = {
                axis: "sum" for axis in sizes if axis not in first.ranks
            }
            relations[-1] = replace(relations[-1], partial=pending, scale=2.0)
        results = len(function([np.zeros(whole) for whole in wholes]))
        run = _together(function, sizes, [at] * operands, [at] * results)
        params = {"axis_name": "tp", "causal": False, "scale": 1.0}
        return Sample(
            sizes,
            tuple(relations),
            tuple(wholes),
            params,
            params,
            run,
            lambda *arrays: function(list(arrays)),
            together=True,
        )

    return sample


def _without_last(x: Relation) -> Relation:
    """A relation like `x` to an array without the last dimension."""
    last = len(x.dims) - 1
    ranks = {axis: digits for axis, digits in x.ranks.items() if digits[0].dim != last}
    return replace(x, dims=x.dims[:-1], ranks=ranks)


def _ring(rng: Rng) -> Sample:
    """Blocks that go round an axis, which may have one rank only."""
    sizes = {"tp": int(rng.choice([1, 1, 2]))}
    whole = (4, 6)
    x = random_relation(whole, sizes, rng)
    params = {"axis_name": "tp"}
    return Sample(sizes, (x,), (whole,), params, params, as_it_is, as_it_is)


SAMPLERS: Mapping[str, Sampler] = {
    "jaxcc_cumsum": _along(lambda a, dim: [np.cumsum(a, dim)], True, reverse=False),
    "jaxcc_cumprod": _along(lambda a, dim: [np.cumprod(a, dim)], True, reverse=False),
    "jaxcc_cummax": _along(lambda a, dim: [np.maximum.accumulate(a, dim)], True, reverse=False),
    "jaxcc_cummin": _along(lambda a, dim: [np.minimum.accumulate(a, dim)], True, reverse=False),
    "jaxcc_argmax": _along(lambda a, dim: [np.argmax(a, dim)], False),
    "jaxcc_argmin": _along(lambda a, dim: [np.argmin(a, dim)], False),
    "jaxcc_top_k": _along(_largest, False, k=2),
    "jaxcc_ring_attention": _attending(_attention, 3),
    "jaxcc_ring_attention_back": _attending(_attention_back, 6),
    "jaxcc_ring": _ring,
    "jaxcc_random_bits": _random_bits,
}
