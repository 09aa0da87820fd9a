"""Collectives in NumPy, on the ranks' arrays stacked along a first dimension, and random calls."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

Array = np.ndarray
REDUCE: dict[str, Callable] = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}
RNG = np.random.Generator


def joined(parts: Any, dim: int, tiled: bool) -> Array:
    return np.concatenate(parts, dim) if tiled else np.stack(parts, dim)


def on_root(y: Array, root: int, ranks: int) -> Array:
    made = np.zeros((ranks, *y.shape), y.dtype)
    made[root] = y
    return made


def blocks(y: Array, ranks: int, dim: int, tiled: bool) -> Array:
    parts = np.stack(np.split(y, ranks, dim))
    return parts if tiled else parts.squeeze(dim % y.ndim + 1)


def padded(parts: Sequence[Array], dim: int, size: int) -> Array:
    """The parts with zeros after them, up to `size` along `dim`."""
    made = []
    for part in parts:
        width = [(0, 0)] * part.ndim
        width[dim] = (0, size - part.shape[dim])
        made.append(np.pad(part, width))
    return np.stack(made)


def cut(y: Array, counts: Sequence[int], dim: int) -> list[Array]:
    return np.split(y, np.cumsum(counts)[:-1], dim)


def first(x: Any, counts: Sequence[int], dim: int) -> list[Array]:
    """The first counts[r] elements of each rank's array."""
    return [np.take(one, range(size), dim) for one, size in zip(x, counts, strict=True)]


def all_reduce(x: Array, op: str = "sum") -> Array:
    return np.stack([REDUCE[op](x, axis=0)] * len(x))


def reduce(x: Array, op: str = "sum", root: int = 0) -> Array:
    return on_root(REDUCE[op](x, axis=0), root, len(x))


def reduce_scatter(x: Array, op: str = "sum", dim: int = 0, tiled: bool = True) -> Array:
    return blocks(REDUCE[op](x, axis=0), len(x), dim, tiled)


def reduce_scatter_v(x: Array, counts: Sequence[int], dim: int = 0, op: str = "sum") -> Array:
    return padded(cut(REDUCE[op](x, axis=0), counts, dim), dim, max(counts))


def all_gather(x: Array, dim: int = 0, tiled: bool = True) -> Array:
    return np.stack([joined(x, dim, tiled)] * len(x))


def all_gather_v(x: Array, counts: Sequence[int], dim: int = 0) -> Array:
    return np.stack([np.concatenate(first(x, counts, dim), dim)] * len(x))


def gather(x: Array, root: int = 0, dim: int = 0, tiled: bool = True) -> Array:
    return on_root(joined(x, dim, tiled), root, len(x))


def gather_v(x: Array, counts: Sequence[int], root: int = 0, dim: int = 0) -> Array:
    return on_root(np.concatenate(first(x, counts, dim), dim), root, len(x))


def scatter(x: Array, root: int = 0, dim: int = 0, tiled: bool = True) -> Array:
    return blocks(x[root], len(x), dim, tiled)


def scatter_v(x: Array, counts: Sequence[int], root: int = 0, dim: int = 0) -> Array:
    return padded(cut(x[root], counts, dim), dim, max(counts))


def broadcast(x: Array, root: int = 0) -> Array:
    return np.stack([x[root]] * len(x))


def ppermute(x: Array, perm: Sequence[tuple[int, int]]) -> Array:
    made = np.zeros_like(x)
    for source, target in perm:
        made[target] = x[source]
    return made


def all_to_all(x: Array, split_dim: int = 0, concat_dim: int = 0, tiled: bool = True) -> Array:
    sent = [blocks(one, len(x), split_dim, tiled) for one in x]
    return np.stack([joined([s[r] for s in sent], concat_dim, tiled) for r in range(len(x))])


def all_to_all_v(x: Array, counts: Sequence[Sequence[int]], dim: int = 0) -> Array:
    sent = [
        cut(first([one], [sum(row)], dim)[0], row, dim) for one, row in zip(x, counts, strict=True)
    ]
    came = [np.concatenate([s[r] for s in sent], dim) for r in range(len(x))]
    return padded(came, dim, max(one.shape[dim] for one in came))


NUMPY: dict[str, Callable[..., Array]] = {
    f.__name__: f
    for f in (
        *(all_gather, all_gather_v, all_reduce, all_to_all, all_to_all_v, broadcast, gather),
        *(gather_v, ppermute, reduce, reduce_scatter, reduce_scatter_v, scatter, scatter_v),
    )
}
MOVING = [name for name in NUMPY if "reduce" not in name]
REDUCING = [name for name in NUMPY if "reduce" in name]


def random_call(name: str, ranks: int, rng: RNG) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of one rank's operand and the parameters of a call that is right."""
    ndim = int(rng.integers(1, 4))
    shape = [int(size) for size in rng.integers(1, 6, ndim)]
    dim = int(rng.integers(-ndim, ndim))
    tiled = bool(rng.random() < 0.7)
    root = int(rng.integers(ranks))
    counts = [int(size) for size in rng.integers(0, 5, ranks)]
    counts[rng.integers(ranks)] += 1
    if name in ("reduce_scatter", "scatter", "all_to_all"):
        shape[dim] = ranks * (int(rng.integers(1, 4)) if tiled else 1)
    if name in ("reduce_scatter_v", "scatter_v"):
        shape[dim] = sum(counts)
    if name in ("all_gather_v", "gather_v"):
        shape[dim] = max(counts)
    if name in ("all_gather", "gather") and not tiled:
        dim = int(rng.integers(-ndim - 1, ndim + 1))
    parameters: dict[str, Any] = {"dim": dim}
    if name in ("all_gather", "gather", "reduce_scatter", "scatter"):
        parameters["tiled"] = tiled
    if name.endswith("_v"):
        parameters["counts"] = counts
    if name == "all_to_all_v":
        table = rng.integers(0, 4, (ranks, ranks))
        table[0, 0] += 1
        parameters["counts"] = table.tolist()
        shape[dim] = int(table.sum(1).max())
    if name == "all_to_all":
        concat = int(rng.integers(-ndim, ndim))
        parameters = {"split_dim": dim, "concat_dim": concat, "tiled": tiled}
    if name == "ppermute":
        pairs = enumerate(rng.permutation(ranks).tolist())
        parameters = {"perm": [pair for pair in pairs if rng.random() < 0.8]}
    if name in ("all_reduce", "broadcast", "reduce"):
        parameters = {}
    if name in ("broadcast", "reduce", "gather", "gather_v", "scatter", "scatter_v"):
        parameters["root"] = root
    return tuple(shape), parameters


def random_array(rng: RNG, shape: Sequence[int], dtype: str) -> Array:
    """Numbers of which any sum and product of eight is a number of `dtype`."""
    whole = jnp.dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(whole, jnp.integer):
        # Sums and products of 8 bits wrap around, in NumPy too.
        low = 0 if jnp.issubdtype(whole, jnp.unsignedinteger) else -3
        return rng.integers(low, 4, shape).astype(whole)
    if jnp.issubdtype(whole, jnp.complexfloating):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(whole)
    return rng.normal(size=shape).astype(whole)


def transposed(linear: Callable[[Array], Array], w: Array, like: Array) -> Array:
    """`linear`, a map of stacked arrays like `like`, transposed and applied to `w`."""
    made = np.zeros(like.size)
    for i in range(like.size):
        unit = np.zeros(like.size)
        unit[i] = 1
        made[i] = np.sum(w * linear(unit.reshape(like.shape)))
    return made.reshape(like.shape)


def numpy_of(name: str, **parameters: Any) -> Callable[[Array], Array]:
    """The collective of f64, or of the dtype itself where that is exact."""
    return functools.partial(NUMPY[name], **parameters)
