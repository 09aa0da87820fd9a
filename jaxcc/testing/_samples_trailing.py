"""Random equations of functions of the trailing dimensions: matrices, transforms, keys, bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from jaxcc.layout._digits import Digit, normal, whole_dim
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
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
from jaxcc.testing._samples_along import Sampler

Core = tuple[int, ...]


def trailing(function: Run, *cores: Core, linear_in: int | None = None, **params: Any) -> Sampler:
    """Samples of a function of trailing dimensions of sizes `cores`, one for each operand.

    Mostly the operands share the leading dimensions and hold the trailing ones whole.
    """

    def sample(rng: Rng) -> Sample:
        sizes, lead = random_sizes(rng), random_shape(rng, int(rng.integers(1, 3)))
        common = random_relation(lead, sizes, rng, pending=())
        operands: list[Relation] = []
        for index, core in enumerate(cores):
            x = _with_core(common, core)
            if rng.random() < 0.1:
                # Operands that have to be of one shape or square stay so.
                free = len(cores) == 1 and len(set(core)) == len(core)
                whole = (*lead, *core)
                x = (
                    random_relation(whole, sizes, rng, pending=PENDING)
                    if free
                    else mate(x, sizes, rng)
                )
            scaled = math.isfinite(x.scale) and rng.random() < 0.2
            x = x.scaled(x.scale if scaled else 1.0)
            if index == linear_in and rng.random() < 0.5:
                free = [axis for axis in sizes if axis not in x.ranks]
                x = replace(x, partial=dict.fromkeys(free, "sum"), scale=3.0)
            operands.append(x)
        wholes = tuple((*lead, *core) for core in cores)
        return Sample(sizes, tuple(operands), wholes, params, params, function, function)

    return sample


def _with_core(x: Relation, core: Core) -> Relation:
    lead = len(x.dims)
    return replace(x, dims=(*x.dims, *(whole_dim(lead + at, n) for at, n in enumerate(core))))


def _columns(function: Run, *cores: Core, **params: Any) -> Sampler:
    """The same where the last operand's last dimension may be sliced."""
    inner = trailing(function, *cores, linear_in=len(cores) - 1, **params)

    def sample(rng: Rng) -> Sample:
        made = inner(rng)
        *matrix, b = made.relations
        at, size = len(b.dims) - 1, cores[-1][-1]
        free = [
            a for a, n in made.sizes.items() if not (a in b.ranks or a in b.partial or size % n)
        ]
        if not free or rng.random() < 0.5:
            return made
        axis, n = free[0], made.sizes[free[0]]
        dims = (*b.dims[:-1], normal([Digit(at, 1, size // n)]))
        b = replace(b, dims=dims, ranks={**b.ranks, axis: (Digit(at, size // n, n),)})
        return replace(made, relations=(*matrix, b))

    return sample


def _reflected(vectors: Array, taus: Array) -> Array:
    """The product of the reflections 1 - tau v v^T, as far as the vectors have rows."""
    rows, count = vectors.shape[-2], taus.shape[-1]
    out = np.broadcast_to(np.eye(rows), (*vectors.shape[:-2], rows, rows))
    for k in range(count):
        v = np.where(np.arange(rows) > k, vectors[..., :, k], np.arange(rows) == k)
        step = np.eye(rows) - taus[..., k, None, None] * v[..., :, None] * v[..., None, :]
        out = out @ step
    return out


def _spread(a: Array) -> Array:
    """A symmetric positive definite matrix for each matrix."""
    return a @ a.swapaxes(-1, -2) + np.eye(a.shape[-1])


def _permuted(pivots: Array) -> list[Array]:
    """The permutation that swaps row i with row pivots[i], for each i in turn."""
    size = pivots.shape[-1]
    rows = (np.abs(pivots) * 10).astype(int) % size
    out = np.broadcast_to(np.arange(size), pivots.shape).copy()
    for i in range(size):
        j = rows[..., i, None]
        there, here = np.take_along_axis(out, j, -1), out[..., i, None].copy()
        np.put_along_axis(out, j, here, -1)
        out[..., i, None] = there
    return [out]


def _updated(factor: Array, w: Array) -> list[Array]:
    upper = np.triu(factor) + 3 * np.eye(factor.shape[-1])
    grown = upper.swapaxes(-1, -2) @ upper + w[..., :, None] * w[..., None, :]
    return [np.linalg.cholesky(grown).swapaxes(-1, -2)]


def _triangular(a: Array, b: Array) -> Array:
    return np.linalg.solve(np.tril(a) + 3 * np.eye(a.shape[-1]), b)


def _tridiagonal(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    size = diagonal.shape[-1]
    places = np.arange(size)
    a = np.zeros((*diagonal.shape, size))
    a[..., places, places] = diagonal + np.copysign(9, diagonal)
    a[..., places[1:], places[:-1]] = lower[..., 1:]
    a[..., places[:-1], places[1:]] = upper[..., :-1]
    return np.linalg.solve(a, b)


_KEYS = 256


@jax.jit
@jax.vmap
def _key(word: Any) -> Any:
    return jax.random.key(word)


@jax.jit
@jax.vmap
def _drawn(key: Any) -> Any:
    return jax.random.bits(key, (3,))


@jax.jit
@jax.vmap
def _children(key: Any) -> Any:
    return jax.random.key_data(jax.random.split(key, 2))


def _of_keys(function: Callable[[Any], Any]) -> Run:
    """`function` of a key made of each number, run for a fixed number of keys to compile once."""

    def run(numbers: Array) -> Array:
        words = np.zeros(_KEYS, np.uint32)
        words[: numbers.size] = _words(numbers)
        made = np.asarray(function(_key(words)))[: numbers.size]
        return made.reshape(*numbers.shape, *made.shape[1:]).astype(np.float64)

    return run


def _words(numbers: Array) -> Array:
    """32 bits of each number."""
    return (np.ascontiguousarray(numbers).view(np.uint64) >> 20).astype(np.uint32).ravel()


def _keys(function: Callable[[Any], Any], **params: Any) -> Sampler:
    """Samples over arrays of keys, some of them of a kind of key that has to be whole."""

    def sample(rng: Rng) -> Sample:
        made = trailing(_of_keys(function), (), **params)(rng)
        impl = "key<fry>" if rng.random() < 0.8 else "key<rbg>"
        return replace(made, dtypes=(impl,))

    return sample


def _unlike_shapes(inner: Sampler) -> Sampler:
    """Some of the samples with another shape to draw on one rank than on n."""

    def sample(rng: Rng) -> Sample:
        made = inner(rng)
        if rng.random() < 0.2:
            made = replace(made, whole_params={"shape": (5,)})
        return made

    return sample


def _hash(*operands: Array) -> list[Array]:
    total = sum((k + 1) * _words(x).reshape(x.shape) for k, x in enumerate(operands))
    return [np.sin(total), np.cos(total)]


def _halves(a: Array) -> Array:
    return np.ascontiguousarray(a)[..., None].view(np.int32)


def _counters(rng: Rng) -> Sample:
    sizes, whole = random_sizes(rng), random_shape(rng)
    shape = whole if rng.random() < 0.5 else tuple(int(rng.choice([n, 1])) for n in whole)

    def run(of: Sequence[int]) -> Run:
        flat = np.arange(math.prod(of)).reshape(of)
        return lambda: [flat // 7, flat % 7]

    return Sample(sizes, (), (), {"shape": shape}, {"shape": whole}, run(shape), run(whole))


def _whole_only(function: Run, *cores: Core, **params: Any) -> Sampler:
    """Samples of a function that needs every dimension whole; no leading ones."""

    def sample(rng: Rng) -> Sample:
        sizes = random_sizes(rng)
        operands = [
            replace(
                random_relation(core, sizes, rng, pending=PENDING, plain=0.9),
                scale=float(rng.choice([1.0, 1.0, 1.0, 2.0])),
            )
            for core in cores
        ]
        operands = [
            x if rng.random() < 0.3 else Relation(tuple(whole_dim(d, n) for d, n in enumerate(c)))
            for x, c in zip(operands, cores, strict=True)
        ]
        return Sample(sizes, tuple(operands), cores, params, params, function, function)

    return sample


def _generated(key: Array) -> list[Array]:
    words = np.random.default_rng(_words(key)).random((4, 3))
    return [key + 1, words]


def _gammas(keys: Array, shapes: Array) -> list[Array]:
    """Numbers of which each key makes its own, for every place among those it stands for."""
    words = _words(keys).reshape(*keys.shape, *[1] * (shapes.ndim - keys.ndim))
    places = np.arange(math.prod(shapes.shape[keys.ndim :])).reshape(shapes.shape[keys.ndim :])
    return [np.sin(words / 2**20 + 7.0 * places) * shapes**2]


_GAMMAS_OF_ONE = _whole_only(_gammas, (), (4, 6))
_GAMMAS_OF_MANY = trailing(_gammas, (), (3,))


def _gamma(rng: Rng) -> Sample:
    """One key or many, some of them of a kind of key that has to be whole."""
    made = (_GAMMAS_OF_ONE if rng.random() < 0.3 else _GAMMAS_OF_MANY)(rng)
    impl = "key<fry>" if rng.random() < 0.8 else "key<rbg>"
    return replace(made, dtypes=(impl, "float64"))


def _ragged(rng: Rng) -> Sample:
    """Rows of which the first have one matrix and the others another."""
    sizes = random_sizes(rng)
    axis, n = list(sizes.items())[-1]
    wholes = ((2 * n, 2 * n), (2, 2 * n, n), (2,))
    left, right = [(None, None), (1, 1), (None, 2), (0, None), (0, 2)][rng.integers(5)]
    rows, groups = sliced(wholes[0], left, axis, n), sliced(wholes[1], right, axis, n)
    pending: dict[str, ReduceOp] = {a: "sum" for a in sizes if a != axis and rng.random() < 0.5}
    rows = replace(rows, partial=pending, scale=float(rng.choice([1.0, -n])))
    if rng.random() < 0.2:
        groups = replace(groups, partial=pending, scale=3.0)
    chosen = Relation((whole_dim(0, 2),), scale=float(rng.choice([1.0, 1.0, 1.0, 2.0])))

    def run(rows: Array, groups: Array, sizes: Array) -> Array:
        first = np.arange(len(rows)) < abs(sizes[0])
        return np.where(first[:, None], rows @ groups[0], rows @ groups[1])

    params = {
        "ragged_dot_dimension_numbers": SimpleNamespace(
            dot_dimension_numbers=(((1,), (1,)), ((), ())),
            lhs_ragged_dimensions=(0,),
            rhs_group_dimensions=(0,),
        )
    }
    return Sample(sizes, (rows, groups, chosen), wholes, params, params, run, run)


def _scaled(rng: Rng) -> Sample:
    """Rows times columns, each with a scale."""
    sizes = random_sizes(rng)
    axis, n = list(sizes.items())[-1]
    wholes = ((n, 2 * n, 3), (n, n, 3), (n, 2 * n, 1), (n, n, 1))
    layouts = [(None, None), (0, 0), (1, None), (None, 1), (1, 1), (0, None)][rng.integers(6)]
    operands = [sliced(whole, layouts[i % 2], axis, n) for i, whole in enumerate(wholes)]
    at = int(rng.integers(4))
    pending: dict[str, ReduceOp] = {axis: "sum"} if rng.random() < 0.1 else {}
    scale = float(rng.choice([1.0, 1.0, 1.0, 2.0]))
    if axis not in operands[at].ranks:
        operands[at] = replace(operands[at], partial=pending, scale=scale)

    def run(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
        return (a * a_scale) @ (b * b_scale).swapaxes(1, 2)

    return Sample(sizes, tuple(operands), wholes, {}, {}, run, run)


M = 3
SQUARE, VECTOR = (M, M), (M,)

SAMPLERS: Mapping[str, Sampler] = {
    "cholesky": trailing(lambda a: [np.linalg.cholesky(_spread(a))], SQUARE),
    "qr": trailing(lambda a: list(np.linalg.qr(a)), (4, 3)),
    "svd": trailing(lambda a: list(np.linalg.svd(a)), (2, 3)),
    "eigh": trailing(lambda a: list(np.linalg.eigh(_spread(a))), SQUARE),
    "householder_product": trailing(lambda v, t: [_reflected(v, t)], SQUARE, VECTOR),
    "ormqr": trailing(lambda v, t, c: [_reflected(v, t) @ c], SQUARE, VECTOR, SQUARE),
    "symmetric_product": trailing(lambda a, c: [2 * a @ a.swapaxes(-1, -2) + c], SQUARE, SQUARE),
    "cholesky_update": trailing(_updated, SQUARE, VECTOR),
    "lu_pivots_to_permutation": trailing(_permuted, VECTOR),
    "triangular_solve": _columns(_triangular, SQUARE, (M, 12), left_side=True),
    "tridiagonal_solve": _columns(_tridiagonal, VECTOR, VECTOR, VECTOR, (M, 12)),
    "ragged_dot_general": _ragged,
    "scaled_matmul_wrapper": _scaled,
    "fft": trailing(np.fft.fft2, (4, 3), linear_in=0, fft_lengths=(4, 3)),
    "random_bits": _unlike_shapes(_keys(_drawn, shape=(3,))),
    "random_split": _keys(_children, shape=(2,)),
    "random_unwrap": trailing(_halves, ()),
    "random_wrap": trailing(lambda a: np.sin(a).sum(-1), (2,)),
    "random_gamma": _gamma,
    "rng_bit_generator": _whole_only(_generated, (4,), shape=(4, 3)),
    "threefry2x32": trailing(_hash, (), (), (), ()),
    "iota_2x32_shape": _counters,
    "bitcast_convert_type": trailing(_halves, ()),
}
