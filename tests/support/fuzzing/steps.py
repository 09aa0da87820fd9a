"""What each kind of step does: operands, then parameters, as a user would write it in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh, "sin": jnp.sin, "cos": jnp.cos, "exp": jnp.exp, "expm1": jnp.expm1,
    "exp2": jnp.exp2, "logistic": jax.nn.sigmoid, "erf": lax.erf, "erfc": lax.erfc,
    "atan": jnp.arctan, "asinh": jnp.arcsinh, "sinh": jnp.sinh, "cosh": jnp.cosh, "tan": jnp.tan,
    "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "softplus": jax.nn.softplus,
    "square": jnp.square, "cube": lambda x: x**3, "inverse": lambda x: 1.0 / (x * x + 1.0),
    "log": lambda x: jnp.log(jnp.abs(x) + 0.5), "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x) + 0.5), "rsqrt": lambda x: lax.rsqrt(x * x + 0.5),
    "cbrt": jnp.cbrt, "abs": jnp.abs, "sign": jnp.sign, "floor": jnp.floor, "ceil": jnp.ceil,
    "round": jnp.round, "bare_sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "bare_rsqrt": lambda x: lax.rsqrt(jnp.abs(x)), "leaky": jax.nn.leaky_relu,
    "lgamma": lambda x: lax.lgamma(jnp.abs(x) + 0.5), "clip": lambda x: jnp.clip(x, -0.7, 0.9),
    "acosh": lambda x: jnp.arccosh(jnp.abs(x) + 1.5), "asin": lambda x: jnp.arcsin(jnp.tanh(x)),
    "acos": lambda x: jnp.arccos(jnp.tanh(x)), "atanh": lambda x: jnp.arctanh(jnp.tanh(x) * 0.9),
    "finite": lambda x: jnp.isfinite(x).astype(x.dtype), "power": lambda x: (x * x + 0.1) ** 0.7,
}  # fmt: skip
LINEAR: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x, "double": lambda x: 2.0 * x, "third": lambda x: x / 3.0,
    "stop": lax.stop_gradient, "flip_sign": lambda x: x * -0.5,
    "barrier": lambda x: lax.optimization_barrier(x),
}  # fmt: skip
INTEGER: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x, "abs": jnp.abs, "sign": jnp.sign, "plus": lambda x: x + 3,
    "times": lambda x: x * 5, "quotient": lambda x: lax.div(x, 3), "remainder": lambda x: x % 5,
    "invert": lambda x: ~x, "bits": lambda x: x & 6, "shift": lambda x: x << 1,
    "unshift": lambda x: x >> 1, "floor_divide": lambda x: x // 4,
}  # fmt: skip
UNARY = SMOOTH | LINEAR | {f"int_{name}": f for name, f in INTEGER.items()} | {"not": lambda x: ~x}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 0.5), "bare_div": lambda a, b: a / b, "max": jnp.maximum,
    "min": jnp.minimum, "atan2": jnp.arctan2, "rem": lambda a, b: jnp.fmod(a, b * b + 0.5),
    "pow": lambda a, b: jnp.power(jnp.abs(a) + 0.5, jnp.tanh(b)),
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
REDUCE: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod, "any": jnp.any,
    "all": jnp.all, "mean": jnp.mean, "var": jnp.var, "logsumexp": jax.nn.logsumexp,
    "argmax": jnp.argmax, "argmin": jnp.argmin, "std": lambda x, axis, **k: jnp.std(x, axis, **k),
}  # fmt: skip
CUMULATIVE: dict[str, Callable[..., Any]] = {
    "sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin,
    "logsumexp": lax.cumlogsumexp,
}  # fmt: skip
REDUCERS = {"psum": lax.psum, "pmax": lax.pmax, "pmin": lax.pmin, "pmean": lax.pmean}


def _dims(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, list)) else value


def _size(axes: Sequence[str]) -> Any:
    return lax.axis_size(_names(axes))


def _names(axes: Sequence[str]) -> Any:
    """One name as itself, as users write it."""
    return axes[0] if len(axes) == 1 else tuple(axes)


def _reduce(x: Any, name: str, dims: Sequence[int], keepdims: bool) -> Any:
    axis: Any = _dims(dims)
    if name in ("argmax", "argmin"):
        axis = axis[0]
    return REDUCE[name](x, axis=axis, keepdims=keepdims)


def _mean_over(x: Any, dims: Sequence[int], axes: Sequence[str], form: str) -> Any:
    """The mean over dimensions that `axes` slice."""
    if form == "pmean":
        return lax.pmean(x.mean(_dims(dims)), _names(axes))
    count: Any = _size(axes)
    if form == "divided":
        return lax.psum(x.mean(_dims(dims)) / count, _names(axes))
    total = lax.psum(x.sum(_dims(dims)), _names(axes))
    if form == "counted":
        for dim in dims:
            count = count * x.shape[dim]
        return total / count
    return total / lax.psum(jnp.ones(x.shape, x.dtype).sum(_dims(dims)), _names(axes))


def _split_softmax(x: Any, dim: int, axes: Sequence[str]) -> Any:
    top = lax.pmax(lax.stop_gradient(x.max(dim, keepdims=True)), _names(axes))
    e = jnp.exp(x - top)
    return e / lax.psum(e.sum(dim, keepdims=True), _names(axes))


def _at(x: Any, dim: int, part: Any) -> Any:
    return x[(slice(None),) * dim + (part,)]


def _split_dim(x: Any, dim: int, inner: int) -> Any:
    return x.reshape(*x.shape[:dim], -1, inner, *x.shape[dim + 1 :])


def _merge(x: Any, dim: int) -> Any:
    return x.reshape(*x.shape[:dim], -1, *x.shape[dim + 2 :])


def _broadcast(x: Any, dim: int, size: int) -> Any:
    wide = jnp.expand_dims(x, dim)
    return jnp.broadcast_to(wide, (*x.shape[:dim], size, *x.shape[dim:]))


def _pad(x: Any, dim: int, low: int, high: int, value: float) -> Any:
    widths = [(low, high) if d == dim else (0, 0) for d in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


def _dynamic_slice(x: Any, start: Any, dim: int, size: int) -> Any:
    return lax.dynamic_slice_in_dim(x, start, size, dim)


def _dynamic_update(x: Any, update: Any, start: Any, dim: int) -> Any:
    return lax.dynamic_update_slice_in_dim(x, update, start, dim)


def _positions(x: Any, dim: int, axes: Sequence[str]) -> Any:
    """The whole position of each element along a dimension of this rank's block."""
    block = x.shape[dim]
    return lax.axis_index(_names(axes)) * block + jnp.arange(block, dtype=jnp.int32)


def _along(x: Any, dim: int, vector: Any) -> Any:
    return vector.reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def _masked(x: Any, dim: int, axes: Sequence[str], limit: int, fill: float) -> Any:
    """Only what stands before a position."""
    place = _positions(x, dim, axes) if axes else jnp.arange(x.shape[dim], dtype=jnp.int32)
    return jnp.where(_along(x, dim, place) < limit, x, jnp.asarray(fill, x.dtype))


def _causal(x: Any, dim: int, axes: Sequence[str], other: int) -> Any:
    rows = _positions(x, dim, axes) if axes else jnp.arange(x.shape[dim], dtype=jnp.int32)
    columns = jnp.arange(x.shape[other], dtype=jnp.int32)
    return jnp.where(_along(x, dim, rows) >= _along(x, other, columns), x, jnp.zeros((), x.dtype))


def _on_rank(x: Any, axis: str, rank: int) -> Any:
    return jnp.where(lax.axis_index(axis) == rank, x, jnp.zeros((), x.dtype))


def _on_last(x: Any, axis: str) -> Any:
    last = lax.axis_size(axis) - 1
    return jnp.where(lax.axis_index(axis) == last, x, jnp.zeros((), x.dtype))


def _own_block(x: Any, axes: Sequence[str], dim: int) -> Any:
    block = x.shape[dim] // _size(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(_names(axes)) * block, block, dim)


def _embed(table: Any, ids: Any, axis: str, form: str) -> Any:
    """Rows of a table whose rows are sliced: each rank gives those that it has."""
    block = table.shape[0]
    local = ids - lax.axis_index(axis) * block
    mine = (local >= 0) & (local < block)
    index = jnp.where(mine, local, 0) if form == "where" else jnp.clip(local, 0, block - 1)
    rows = jnp.take(table, index, axis=0, mode="clip")
    return jnp.where(mine.reshape(mine.shape + (1,) * (rows.ndim - mine.ndim)), rows, 0.0)


def _one_hot(ids: Any, size: int) -> Any:
    return (ids[..., None] == jnp.arange(size, dtype=ids.dtype)).astype(jnp.float32)


def _scatter_add(updates: Any, ids: Any, size: int) -> Any:
    zeros = jnp.zeros((size, *updates.shape[ids.ndim :]), updates.dtype)
    return zeros.at[ids].add(updates, mode="drop")


def _gather_reshaped(x: Any, axis: str, dim: int) -> Any:
    parts = lax.all_gather(x, axis, axis=dim)
    return parts.reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])


def _rotated(x: Any, axis: str, shift: int) -> Any:
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + shift) % n) for i in range(n)])


def _there_and_back(x: Any, axis: str, shift: int) -> Any:
    return _rotated(jnp.sin(_rotated(x, axis, shift)), axis, -shift)


def _rotated_sum(x: Any, axis: str, dim: int) -> Any:
    return _rotated(x, axis, 1).sum(dim)


def _swapped(x: Any, axes: Sequence[str]) -> Any:
    """The first and the last rank of several axes change places."""
    last: Any = _size(axes) - 1
    order = [last, *range(1, last), 0] if last else [0]
    return lax.ppermute(x, _names(axes), list(enumerate(order)))


def _bare_dot(a: Any, b: Any, contract: Any, batch: Any) -> Any:
    numbers: Any = (tuple(map(tuple, contract)), tuple(map(tuple, batch)))
    return lax.dot_general(a, b, numbers)


def _dot(a: Any, b: Any, contract: Any, batch: Any) -> Any:
    return _bare_dot(a, b, contract, batch) / 4.0


STEPS: dict[str, Callable[..., Any]] = {
    "unary": lambda x, name: UNARY[name](x),
    "binary": lambda a, b, name: BINARY[name](a, b),
    "compare": lambda a, b, name: COMPARE[name](a, b),
    "scalar": lambda x, name, number: BINARY[name](x, jnp.asarray(number, x.dtype)),
    "scalar_first": lambda x, name, number: BINARY[name](jnp.asarray(number, x.dtype), x),
    "threshold": lambda x, name, number: COMPARE[name](x, jnp.asarray(number, x.dtype)),
    "divide_size": lambda x, axes: x / _size(axes),
    "times_size": lambda x, axes: x * _size(axes),
    "divide_length": lambda x, dim: x / x.shape[dim],
    "add_share": lambda x, b, axes: x + b / _size(axes),
    "cast": lambda x, dtype: x.astype(dtype),
    "select": lambda c, a, b: jnp.where(c, a, b),
    "select_number": lambda c, a, number: jnp.where(c, a, jnp.asarray(number, a.dtype)),
    "clamp": lambda low, x, high: lax.clamp(low, x, high),
    "reduce": _reduce,
    "mean_over": _mean_over,
    "cumulative": lambda x, name, dim, reverse: CUMULATIVE[name](x, dim, reverse),
    "sort": lambda x, dim: jnp.sort(x, axis=dim),
    "argsort": lambda x, dim: jnp.argsort(x, axis=dim).astype(jnp.int32),
    "sort_pair": lambda x, y, dim: lax.sort((x, y), dimension=dim, num_keys=1)[1],
    "top_k": lambda x, k, which: lax.top_k(x, k)[which],
    "flip": lambda x, dim: jnp.flip(x, dim),
    "softmax": lambda x, dim: jax.nn.softmax(x, axis=dim),
    "split_softmax": _split_softmax,
    "normalize": lambda x, dim: (
        (x - x.mean(dim, keepdims=True)) * lax.rsqrt(x.var(dim, keepdims=True) + 1e-3)
    ),
    "dot": _dot,
    "bare_dot": _bare_dot,
    "transpose": lambda x, order: x.transpose(order),
    "split_dim": _split_dim,
    "merge": _merge,
    "expand": lambda x, dim: jnp.expand_dims(x, dim),
    "squeeze": lambda x, dim: jnp.squeeze(x, dim),
    "broadcast": _broadcast,
    "slice": lambda x, dim, low, high, stride: _at(x, dim, slice(low, high, stride)),
    "index": lambda x, dim, at: _at(x, dim, at),
    "split": lambda x, dim, parts, which: jnp.split(x, parts, axis=dim)[which],
    "concat": lambda a, b, dim: jnp.concatenate([a, b], axis=dim),
    "stack": lambda a, b, dim: jnp.stack([a, b], axis=dim),
    "tile": lambda x, dim, times: jnp.tile(x, [times if d == dim else 1 for d in range(x.ndim)]),
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "take": lambda x, ids, dim, mode: jnp.take(x, ids, axis=dim, mode=mode),
    "take_along": lambda x, ids, dim: jnp.take_along_axis(x, ids, axis=dim, mode="clip"),
    "scatter_add": _scatter_add,
    "one_hot": _one_hot,
    "iota_like": lambda x, dim: jnp.arange(x.shape[dim], dtype=jnp.int32),
    "iota": lambda size: jnp.arange(size, dtype=jnp.int32),
    "eye_like": lambda x: x * jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype),
    "tril": jnp.tril,
    "constant": lambda shape: jnp.ones(_dims(shape), jnp.float32),
    "positions": _positions,
    "masked": _masked,
    "causal": _causal,
    "on_rank": _on_rank,
    "on_last": _on_last,
    "own_block": _own_block,
    "embed": _embed,
    "times_rank": lambda x, axis: x * (lax.axis_index(axis) + 1).astype(x.dtype),
    "reducer": lambda x, name, axes: REDUCERS[name](x, _names(axes)),
    "all_gather": lambda x, axes, dim: lax.all_gather(x, _names(axes), axis=dim, tiled=True),
    "gather_reshaped": _gather_reshaped,
    "gather_sum": lambda x, axis: lax.all_gather(x, axis).sum(0),
    "gather_stacked": lambda x, axis, dim: lax.all_gather(x, axis, axis=dim),
    "psum_scatter": lambda x, axes, dim: lax.psum_scatter(
        x, _names(axes), scatter_dimension=dim, tiled=True
    ),
    "all_to_all": lambda x, axis, split, concat: lax.all_to_all(x, axis, split, concat, tiled=True),
    "rotated": _rotated,
    "swapped": _swapped,
    "there_and_back": _there_and_back,
    "rotated_sum": _rotated_sum,
}
