"""Random equations for each family of rules: relations of the operands, parameters, and the
operation in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import Digit, normal, uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation, constant
from jaxcc.testing._claims import Array, random_relation

Rng = np.random.Generator
Run = Callable[..., Any]


@dataclass(frozen=True)
class Sample:
    """One equation: what it does at n (`run`) and at 1 (`run_whole`), on operands with these
    relations.

    A collective gets all ranks' arrays at once, with leading dimensions for the axes; everything
    else one rank's.
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
    out_shape: tuple[int, ...] | None = None


def _sizes(rng: Rng) -> dict[str, int]:
    if rng.random() < 0.7:
        return {"tp": int(rng.choice([2, 3, 4]))}
    return {"dp": 2, "tp": int(rng.choice([2, 3]))}


def _whole(rng: Rng, ndim: int | None = None) -> tuple[int, ...]:
    ndim = int(rng.integers(1, 4)) if ndim is None else ndim
    choices = [2, 3, 4, 6, 8, 12]
    return tuple(int(rng.choice(choices if ndim < 3 else choices[:4])) for _ in range(ndim))


_PENDING: tuple[ReduceOp, ...] = ("sum", "sum", "sum", "max", "min")


def _mate(base: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
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
    mate = base
    partial = dict(base.partial)
    ops: list[ReduceOp] = [*partial.values(), _PENDING[int(rng.integers(len(_PENDING)))]]
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
    mate = replace(base, dims=tuple(dims), ranks=ranks, partial=partial, scale=scale)
    return mate


def pointwise(
    function: Run, arity: int, *, positive: bool = False, boolean: bool = False
) -> Callable[[Rng], Sample]:
    """Samples of a pointwise operation of `arity` operands."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = _sizes(rng), _whole(rng)
        first = random_relation(whole, sizes, rng, pending=_PENDING)
        if boolean:
            first = replace(first, partial={}, scale=1.0)
        if rng.random() < 0.2:
            first = replace(first, scale=1.0)
        relations = [first, *(_mate(first, sizes, rng) for _ in range(arity - 1))]
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
        sizes, whole = _sizes(rng), _whole(rng)
        x = random_relation(whole, sizes, rng, pending=_PENDING)
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
    sizes = _sizes(rng)
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
    lhs = _sliced(lhs_whole, left, axis, n)
    rhs = _sliced(rhs_whole, right, axis, n)
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


def _sliced(whole: Sequence[int], dim: int | None, axis: str, n: int) -> Relation:
    dims = [normal([Digit(d, 1, size // n if d == dim else size)]) for d, size in enumerate(whole)]
    ranks = {} if dim is None else {axis: (Digit(dim, whole[dim] // n, n),)}
    return Relation(tuple(dims), ranks)


def along(function: Run, key: str) -> Callable[[Rng], Sample]:
    """Samples of an operation along one dimension (a scan, a sort, a reversal)."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = _sizes(rng), _whole(rng)
        x = random_relation(whole, sizes, rng, pending=_PENDING)
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
    sizes, whole = _sizes(rng), _whole(rng)
    x = random_relation(whole, sizes, rng)
    shape = _another_shape(math.prod(x.shape), rng)
    return Sample(
        sizes, (x,), (whole,), {}, {}, lambda a: a.reshape(shape), _as_it_is, out_shape=shape
    )


def _as_it_is(array: Array) -> Array:
    return array


def _another_shape(size: int, rng: Rng) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        divisors = [k for k in range(2, size + 1) if size % k == 0]
        shape.append(int(rng.choice(divisors)))
        size //= shape[-1]
    return (*shape, size) if size > 1 or not shape else tuple(shape)


def transpose(rng: Rng) -> Sample:
    """A transpose at n only."""
    sizes, whole = _sizes(rng), _whole(rng)
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
        _as_it_is,
        out_shape=shape,
    )


def broadcast(rng: Rng) -> Sample:
    """A broadcast at n only."""
    sizes, whole = _sizes(rng), _whole(rng)
    x = random_relation(whole, sizes, rng)
    at = int(rng.integers(len(x.shape) + 1))
    shape = (*x.shape[:at], int(rng.choice([1, 3])), *x.shape[at:])
    kept = tuple(d for d in range(len(shape)) if d != at)
    shape = tuple(int(rng.choice([1, 4])) if n == 1 and d != at else n for d, n in enumerate(shape))

    def run(a: Array) -> Array:
        return np.broadcast_to(np.expand_dims(a, at), shape)

    params = {"broadcast_dimensions": kept, "shape": shape}
    return Sample(sizes, (x,), (whole,), params, params, run, _as_it_is, out_shape=shape)


def same(rng: Rng) -> Sample:
    """An operation that changes nothing."""
    sizes, whole = _sizes(rng), _whole(rng)
    x = random_relation(whole, sizes, rng, pending=_PENDING)
    return Sample(sizes, (x,), (whole,), {}, {}, _as_it_is, _as_it_is, out_shape=x.shape)


def collective(make: Callable[..., tuple[Mapping[str, Any], Run]]) -> Callable[[Rng], Sample]:
    """Samples of a collective; `make(x, sizes, axis, at, rng)` gives parameters and the operation
    on all ranks."""

    def sample(rng: Rng) -> Sample:
        sizes, whole = _sizes(rng), _whole(rng)
        x = random_relation(whole, sizes, rng, pending=_PENDING)
        axes = list(sizes)
        axis = axes[rng.integers(len(axes))]
        if rng.random() < 0.15 and axis not in x.ranks and axis not in x.partial:
            x = replace(x, local=frozenset({axis}), unmeasured=True).scaled(1.0)
        params, run = make(x, sizes, axis, axes.index(axis), rng)
        return Sample(sizes, (x,), (whole,), params, params, run, _as_it_is)

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


def own_slice(
    x: Relation, sizes: Mapping[str, int], axis: str, at: int, rng: Rng
) -> tuple[Mapping[str, Any], Run]:
    """The rank's block of a value."""
    n, lead = sizes[axis], len(sizes)
    fits = [d for d, k in enumerate(x.shape) if k % n == 0]
    dim = fits[rng.integers(len(fits))] if fits else 0

    def run(a: Array) -> Array:
        if a.shape[lead + dim] % n:
            raise ValueError("does not divide")
        ranks = [np.split(s, n, lead - 1 + dim)[r] for r, s in enumerate(np.moveaxis(a, at, 0))]
        return np.stack(ranks, at)

    return {"axis": axis, "dim": dim}, run


def iota(rng: Rng) -> Sample:
    """A ramp; sometimes of another length at n."""
    sizes, whole = _sizes(rng), _whole(rng)
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
    sizes, whole = _sizes(rng), _whole(rng)
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
    sizes, whole = _sizes(rng), _whole(rng)
    first = replace(random_relation(whole, sizes, rng, plain=0.8), scale=1.0)
    many = int(rng.choice([2, 3]))
    others = [first if rng.random() < 0.5 else _mate(first, sizes, rng) for _ in range(many - 1)]
    dim = int(rng.integers(len(whole)))

    def run(*arrays: Array) -> Array:
        return np.concatenate(arrays, dim)

    params = {"dimension": dim}
    return Sample(sizes, (first, *others), (whole,) * many, params, params, run, run)
