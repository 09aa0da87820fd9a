"""What each primitive computes, in NumPy, on arrays with leading dimensions for the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fuzzing.call import Array, Call, Unsupported
from fuzzing.operations_collective import COLLECTIVES
from fuzzing.operations_indexed import INDEXED
from scipy import special


def _c_div(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        b = np.where(b == 0, 1, b)
        quotient = np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64))
        return (np.sign(a) * np.sign(b) * quotient).astype(a.dtype)
    return a / b


def _rem(a: Array, b: Array) -> Array:
    return np.fmod(a, np.where(b == 0, 1, b)) if a.dtype.kind in "iu" else np.fmod(a, b)


def _select(which: Array, *cases: Array) -> Array:
    which = which.reshape(which.shape + (1,) * (cases[0].ndim - which.ndim))
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = np.where(which.astype(int) == k, case, out)
    return out


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == bool else np.invert(x)


def _either(logical: Callable[..., Any], bits: Callable[..., Any]) -> Callable[[Array, Array], Any]:
    return lambda a, b: logical(a, b) if a.dtype == bool else bits(a, b)


def _same(x: Array) -> Array:
    return x


POINTWISE: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _c_div,
    "rem": _rem, "max": np.maximum, "min": np.minimum, "pow": np.power, "atan2": np.arctan2,
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "square": np.square,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "logistic": _logistic,
    "erf": special.erf, "erfc": special.erfc, "lgamma": special.gammaln,
    "digamma": special.digamma, "erf_inv": special.erfinv, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil, "is_finite": np.isfinite, "round": np.round,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "not": _not, "and": _either(np.logical_and, np.bitwise_and),
    "or": _either(np.logical_or, np.bitwise_or), "xor": _either(np.logical_xor, np.bitwise_xor),
    "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift,
    "select_n": _select, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "nextafter": np.nextafter, "one_minus_square": lambda x: 1 - x * x,
    **dict.fromkeys(
        ("copy", "copy_p", "pvary", "stop_gradient", "name", "pcast", "reshard",
         "sharding_constraint", "mesh_cast", "reduce_precision", "real"), _same,
    ),
}  # fmt: skip


def _integer_pow(call: Call, x: Array) -> Array:
    y = int(call["y"])
    return x**y if y >= 0 else 1.0 / x ** (-y)


def _convert(call: Call, x: Array) -> Array:
    new = np.dtype(call["new_dtype"])
    if new.kind == "b":
        return x != 0
    if x.dtype.kind == "f" and new.kind in "iu":
        info = np.iinfo(new)
        return np.clip(np.nan_to_num(np.trunc(x)), info.min, info.max)
    return x


def _reduction(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(call: Call, x: Array) -> Array:
        return function(x, axis=tuple(call.at(d) for d in call["axes"]))

    return run


def _arg(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda call, x: function(x, axis=call.at(call["axes"][0]))


def _cumulative(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(call: Call, x: Array) -> Array:
        axis = call.at(call["axis"])
        return (
            np.flip(function(np.flip(x, axis), axis), axis)
            if call["reverse"]
            else function(x, axis)
        )

    return run


def _cumlogsumexp(x: Array, axis: int) -> Array:
    return np.logaddexp.accumulate(x, axis)


def _sort(call: Call, *operands: Array) -> list[Array]:
    axis, keys = call.at(call["dimension"]), int(call["num_keys"])
    index = np.broadcast_to(
        np.arange(operands[0].shape[axis]).reshape(
            [-1 if d == axis else 1 for d in range(operands[0].ndim)]
        ),
        operands[0].shape,
    )
    for key in reversed(operands[:keys]):
        order = np.argsort(np.take_along_axis(key, index, axis), axis, kind="stable")
        index = np.take_along_axis(index, order, axis)
    return [np.take_along_axis(x, index, axis) for x in operands]


def _top_k(call: Call, x: Array) -> list[Array]:
    axis = call.at(call.params.get("axis", x.ndim - call.lead - 1) % (x.ndim - call.lead))
    # XLA's order is total: 0 comes before -0.
    keys = (np.signbit(x), -x) if x.dtype.kind == "f" else (-x.astype(int),)
    index = np.lexsort(keys, axis).take(range(int(call["k"])), axis)
    return [np.take_along_axis(x, index, axis), index]


def _dot(call: Call, lhs: Array, rhs: Array) -> Array:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = call["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    ranks = [next(letters) for _ in range(call.lead)]
    left = [next(letters) for _ in range(lhs.ndim - call.lead)]
    right: list[str] = [""] * (rhs.ndim - call.lead)
    pairs = [*zip(lhs_contract, rhs_contract, strict=True), *zip(lhs_batch, rhs_batch, strict=True)]
    for a, b in pairs:
        right[b] = left[a]
    right = [letter or next(letters) for letter in right]
    out = [left[d] for d in lhs_batch]
    out += [left[d] for d in range(len(left)) if d not in (*lhs_batch, *lhs_contract)]
    out += [right[d] for d in range(len(right)) if d not in (*rhs_batch, *rhs_contract)]
    names = ["".join(part) for part in (ranks + left, ranks + right, ranks + out)]
    if lhs.dtype == bool:
        lhs, rhs = lhs.astype(int), rhs.astype(int)
    return np.einsum(f"{names[0]},{names[1]}->{names[2]}", lhs, rhs)


def _reshape(call: Call, x: Array) -> Array:
    # Of a squeeze, `dimensions` are those that it drops.
    order = call.params.get("dimensions") if "new_sizes" in call.params else None
    if order is not None:
        x = x.transpose(*range(call.lead), *(call.lead + dim for dim in order))
    return x.reshape(*x.shape[: call.lead], *call.shapes[0])


def _broadcast(call: Call, x: Array) -> Array:
    shape = [1] * len(call.shapes[0])
    for old, new in enumerate(call.params.get("broadcast_dimensions", ())):
        shape[new] = x.shape[call.at(old)]
    return x.reshape(*x.shape[: call.lead], *shape)


def _transpose(call: Call, x: Array) -> Array:
    return x.transpose(*range(call.lead), *(call.at(d) for d in call["permutation"]))


def _slice(call: Call, x: Array) -> Array:
    starts, limits = call["start_indices"], call["limit_indices"]
    strides = call["strides"] or [1] * len(starts)
    return x[(..., *(slice(a, b, s) for a, b, s in zip(starts, limits, strides, strict=True)))]


def _split(call: Call, x: Array) -> list[Array]:
    cuts = np.cumsum([int(size) for size in call["sizes"]])[:-1]
    return list(np.split(x, cuts, call.at(call["axis"])))


def _pad(call: Call, x: Array, value: Array) -> Array:
    out = np.empty((*x.shape[: call.lead], *call.shapes[0]), x.dtype)
    out[...] = value.reshape(value.shape + (1,) * len(call.shapes[0]))
    inside: list[slice] = []
    for (low, _, interior), size in zip(call["padding_config"], x.shape[call.lead :], strict=True):
        if low < 0:
            raise Unsupported("pad that cuts")
        inside.append(slice(low, low + (size - 1) * (interior + 1) + 1, interior + 1))
    if any(high < 0 for _, high, _ in call["padding_config"]):
        raise Unsupported("pad that cuts")
    out[(..., *inside)] = x
    return out


def _iota(call: Call) -> Array:
    (shape,) = call.shapes
    dim = int(call["dimension"])
    ramp = np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(ramp, (*call.sizes.values(), *shape))


RULES: Mapping[str, Callable[..., Any]] = {
    "integer_pow": _integer_pow,
    "convert_element_type": _convert,
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_or": _reduction(np.any),
    "reduce_and": _reduction(np.all),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "cumsum": _cumulative(np.cumsum),
    "cumprod": _cumulative(np.cumprod),
    "cummax": _cumulative(np.maximum.accumulate),
    "cummin": _cumulative(np.minimum.accumulate),
    "cumlogsumexp": _cumulative(_cumlogsumexp),
    "sort": _sort,
    "top_k": _top_k,
    "rev": lambda call, x: np.flip(x, tuple(call.at(d) for d in call["dimensions"])),
    "dot_general": _dot,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "concatenate": lambda call, *xs: np.concatenate(xs, call.at(call["dimension"])),
    "stack": lambda call, *xs: np.stack(xs, call.at(call["axis"])),
    "tile": lambda call, x: np.tile(x, (1,) * call.lead + tuple(call["reps"])),
    "pad": _pad,
    "iota": _iota,
    "optimization_barrier": lambda call, *xs: list(xs),
    **INDEXED,
    **COLLECTIVES,
}
