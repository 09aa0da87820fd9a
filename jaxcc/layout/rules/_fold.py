"""Pointwise operations of numbers that are known at n and at 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._ranked import each_rank, mapped
from jaxcc.layout._relation import Relation, constant, in_dtype
from jaxcc.layout._rules import Equation

Fold = Callable[..., Any]


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _quotient(x: Any, y: Any) -> Any:
    """A quotient of integers, rounded towards 0."""
    return (abs(x) // abs(y)) * np.sign(x) * np.sign(y)


def _chosen(which: Any, *cases: Any) -> Any:
    return cases[int(which)]


def _clamped(low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


_FOLDS: Mapping[str, Fold] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "sqrt": np.sqrt,
    "square": np.square, "exp": np.exp, "log": np.log,
    "abs": np.abs, "sign": np.sign, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "not": np.logical_not, "pow": np.power, "rsqrt": _rsqrt,
    "rem": np.fmod, "select_n": _chosen, "clamp": _clamped,
}  # fmt: skip
_OF_BOOLEANS = ("and", "or", "xor", "not")


def folded(eqn: Equation, operands: Sequence[Relation]) -> Relation | None:
    """The result if every operand is a known number at n and at 1."""
    pairs = [operand.const for operand in operands if operand.const is not None]
    if len(pairs) != len(operands):
        return None
    integral = any(kind_of(dtype) in ("i", "u") for dtype in eqn.per_rank.dtypes)
    boolean = all(dtype == np.bool_ for dtype in eqn.per_rank.dtypes)
    fold = _FOLDS.get(eqn.op)
    if eqn.op == "integer_pow":
        fold = _power(eqn.per_rank.params["y"])
    elif eqn.op == "div":
        fold = _quotient if integral else np.divide
    elif eqn.op == "convert_element_type":
        fold = np.positive if not boolean else np.asarray
    if fold is None or (eqn.op in _OF_BOOLEANS and not boolean):
        return None
    if (eqn.op == "pow" and integral) or _jumps(eqn):
        return None
    if integral and eqn.op in ("div", "rem") and any(0 in _all(c) for c in pairs[1]):
        return None
    at_n = mapped(lambda *numbers: _run(eqn, fold, numbers), *(pair[0] for pair in pairs))
    at_1 = _run(eqn, fold, [pair[1] for pair in pairs])
    return constant(eqn.per_rank.out_shapes[0], (at_n, at_1))


def _all(number: Any) -> tuple[Any, ...]:
    return each_rank(number, 1)


def _jumps(eqn: Equation) -> bool:
    """Whether the last bit of a float, which no two devices agree on, can decide the result."""
    exact = {"b", "i", "u"}
    kinds = {kind_of(dtype) for dtype in eqn.per_rank.dtypes}
    whole = kind_of(eqn.per_rank.out_dtypes[0]) in exact or eqn.op in ("sign", "rem")
    return whole and not kinds <= exact


def _run(eqn: Equation, fold: Fold, numbers: Sequence[Any]) -> Any:
    """`fold` of numbers, in the types of the equation."""
    dtypes, out = eqn.per_rank.dtypes, np.dtype(eqn.per_rank.out_dtypes[0])
    operands = [
        np.asarray(in_dtype(number, dtype), dtype)
        for number, dtype in zip(numbers, dtypes, strict=True)
    ]
    with np.errstate(all="ignore"):
        made = np.asarray(fold(*operands))
    return in_dtype(made.item(), out)


def _power(exponent: int) -> Fold:
    def power(x: Any) -> Any:
        if kind_of(x.dtype) in ("i", "u") and exponent >= 0:
            return np.asarray(int(x) ** exponent, object)
        return np.power(x, np.asarray(exponent, x.dtype))

    return power
