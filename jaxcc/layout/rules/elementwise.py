"""Pointwise operations: operands walk one index together; what happens to scale and sums depends on
the function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import ANY_SCALE, Relation, constant, in_dtype, same_scale
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout.rules._combine import (
    COMPARES,
    additive,
    common_scale,
    flipped,
    measured,
    multiplicative,
    partial_refused,
    product,
    require_unit,
    require_whole,
    result,
    together,
)

LINEAR = ("neg", "real", "imag", "conj", "reduce_precision")
# f(s x) = s**degree f(x) for s > 0.
HOMOGENEOUS = {"sqrt": 0.5, "rsqrt": -0.5, "cbrt": 1 / 3, "square": 2.0, "abs": 1.0}
SCALE_FREE = ("sign", "is_finite")
# Increasing and finite wherever the argument is, so they commute with max and min.
MONOTONE = frozenset(
    "exp exp2 expm1 tanh logistic erf atan sinh asinh floor ceil round cbrt sign".split()
)
GENERAL = (
    "exp exp2 expm1 log log2 log1p tanh logistic erf erfc erf_inv sin cos tan asin acos atan sinh "
    "cosh asinh acosh atanh one_minus_square lgamma digamma bessel_i0e bessel_i1e floor ceil round "
    "not population_count clz"
).split()
GENERAL_BINARY = (
    "and or xor atan2 nextafter shift_left shift_right_logical shift_right_arithmetic igamma "
    "igammac"
).split()


def spread(eqn: Equation, operands: Sequence[Relation]) -> list[Relation]:
    """The operands at the result's shape: a dimension of size 1, or a scalar, is repeated."""
    (out,) = eqn.per_rank.out_shapes
    wide: list[Relation] = []
    for operand, shape in zip(operands, eqn.per_rank.shapes, strict=True):
        dims = operand.dims if shape else ((),) * len(out)
        sizes = shape or (1,) * len(out)
        dims = tuple(
            uniform(n) if size == 1 and n != 1 else digits
            for digits, size, n in zip(dims, sizes, out, strict=True)
        )
        wide.append(replace(operand, dims=dims))
    return wide


Fold = Callable[..., Any]


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


_FOLDS: dict[str, Fold] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
    "max": np.maximum, "min": np.minimum, "sqrt": np.sqrt,
    "square": np.square, "exp": np.exp, "log": np.log,
    "abs": np.abs, "sign": np.sign, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "pow": np.power, "rsqrt": _rsqrt,
}  # fmt: skip


def _folded(eqn: Equation, operands: Sequence[Relation]) -> Relation | None:
    """The result if every operand is a known number at n and at 1."""
    pairs = [operand.const for operand in operands if operand.const is not None]
    if len(pairs) != len(operands):
        return None
    integral = any(np.issubdtype(dtype, np.integer) for dtype in eqn.per_rank.dtypes)
    boolean = all(dtype == np.bool_ for dtype in eqn.per_rank.dtypes)
    fold = _FOLDS.get(eqn.op)
    if eqn.op == "integer_pow":
        fold = _power(eqn.per_rank.params["y"])
    elif eqn.op == "div" and not integral:
        fold = np.divide
    elif eqn.op == "convert_element_type":
        fold = np.positive if not boolean else np.asarray
    if fold is None or (eqn.op in ("and", "or", "not") and not boolean):
        return None
    if (eqn.op == "pow" and integral) or _jumps(eqn):
        return None
    at_n, at_1 = (_run(eqn, fold, [pair[side] for pair in pairs]) for side in (0, 1))
    return constant(eqn.per_rank.out_shapes[0], (at_n, at_1))


def _jumps(eqn: Equation) -> bool:
    """Whether the last bit of a float, which no two devices agree on, can decide the result."""
    kinds = {np.dtype(dtype).kind for dtype in eqn.per_rank.dtypes}
    whole = np.dtype(eqn.per_rank.out_dtypes[0]).kind in "biu" or eqn.op == "sign"
    return whole and not kinds <= set("biu")


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
        return np.power(x, np.asarray(exponent, x.dtype))

    return power


def _pointwise(
    rule: Callable[[Equation, Sequence[Relation], Relation], Relation],
) -> Callable[..., Relation]:
    """Folds constants, walks the operands together, and leaves scale and sums to `rule`."""

    def relate(eqn: Equation, *operands: Relation) -> Relation:
        folded = _folded(eqn, operands)
        if folded is not None:
            return folded
        wide = spread(eqn, operands)
        return rule(eqn, wide, together(eqn, wide))

    return relate


@layout_rule("add", "sub", "add_any")
@_pointwise
def _add(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    shifted = _shifted_extremum(eqn, operands, base)
    if shifted is not None:
        return shifted
    scale, partial = additive(eqn, operands)
    return result(base, base.dims, scale, partial)


def _shifted_extremum(
    eqn: Equation, operands: Sequence[Relation], base: Relation
) -> Relation | None:
    """max over ranks of x plus or minus what every rank holds."""
    pending = [(i, axis) for i, operand in enumerate(operands) for axis in operand.partial]
    ops = {operands[i].partial[axis] for i, axis in pending}
    if _unsigned(eqn) or not ops or not ops <= {"max", "min"} or len({i for i, _ in pending}) != 1:
        return None
    index = pending[0][0]
    other = operands[1 - index]
    if any(axis in other.ranks for _, axis in pending):
        return None
    scale = common_scale(
        eqn, [measured(eqn, i, operand) for i, operand in enumerate(operands)], True
    )
    flip = eqn.op == "sub" and index == 1
    partial: dict[str, ReduceOp] = {
        axis: flipped(op) if flip else op for axis, op in operands[index].partial.items()
    }
    return result(base, base.dims, scale, partial)


def _unsigned(eqn: Equation) -> bool:
    """Whether a difference can wrap around 0, so that it does not grow with its operands."""
    return np.issubdtype(eqn.per_rank.dtypes[0], np.unsignedinteger)


@layout_rule("mul")
@_pointwise
def _mul(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    a, b = (measured(eqn, i, operand) for i, operand in enumerate(operands))
    return result(base, base.dims, product(eqn, a, b), multiplicative(eqn, operands))


@layout_rule("div")
@_pointwise
def _div(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    if np.issubdtype(eqn.per_rank.dtypes[0], np.integer):
        return _unit(eqn, operands, base)
    over, under = (measured(eqn, i, operand) for i, operand in enumerate(operands))
    partial = multiplicative(eqn, operands, linear=(0,))
    inverse = ANY_SCALE if math.isinf(under) else 1 / under
    return result(base, base.dims, product(eqn, over, inverse), partial)


@layout_rule("max", "min")
@_pointwise
def _extremum(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    partial: dict[str, ReduceOp] = {}
    for index, operand in enumerate(operands):
        for axis, op in operand.partial.items():
            if op != eqn.op or any(axis in other.ranks for other in operands):
                why = f"{eqn.op} of {op}s is not the {op} of {eqn.op}s"
                raise partial_refused(eqn, index, axis, op, why)
            partial[axis] = op
    return result(base, base.dims, common_scale(eqn, scales, positive=True), partial)


@layout_rule(*COMPARES, "rem")
@_pointwise
def _compare(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    require_whole(eqn, operands, f"{eqn.op} of sums is not the sum of {eqn.op}s")
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    scale = common_scale(eqn, scales, positive=True)
    return result(base, base.dims, scale if eqn.op == "rem" else 1.0, {})


@layout_rule("select_n")
def _select(eqn: Equation, *operands: Relation) -> Relation:
    which, *cases = spread(eqn, operands)
    if which.const is not None and which.const[0] == which.const[1]:
        return replace(cases[int(which.const[0])], const=cases[int(which.const[0])].const)
    require_unit(eqn, [which], "the predicate chooses")
    require_whole(eqn, [which], "the predicate chooses")
    base = together(eqn, [which, *cases])
    shifted = _offset(eqn, 1)
    scale, partial = additive(shifted, cases)
    for axis in partial:
        if axis in which.ranks:
            raise Refused(
                "LAYOUT_MISMATCH",
                f"the predicate of select is sliced over '{axis}', and its cases are "
                f"Partial over '{axis}'",
            )
    return result(base, base.dims, scale, partial)


def _offset(eqn: Equation, by: int) -> Equation:
    """The equation with operands named from `by` on."""

    def name(index: int) -> str:
        return eqn.name(index + by)

    def layout(index: int) -> str:
        return eqn.layout(index + by)

    return replace(eqn, name=name, layout=layout)


@layout_rule("clamp")
@_pointwise
def _clamp(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    require_whole(eqn, operands, "clamp is not linear")
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    return result(base, base.dims, common_scale(eqn, scales, positive=True), {})


@layout_rule(*LINEAR)
@_pointwise
def _linear(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    scale = measured(eqn, 0, x)
    flip = eqn.op == "neg"
    monotone = flip and not _unsigned(eqn)
    if not monotone and any(op != "sum" for op in x.partial.values()):
        require_whole(eqn, operands, f"{eqn.op} does not commute with a pending maximum")
    partial: dict[str, ReduceOp] = {}
    for axis, op in x.partial.items():
        if op == "prod":
            raise partial_refused(eqn, 0, axis, op, f"{eqn.op} of a product is not the product")
        partial[axis] = flipped(op) if flip else op
    return result(base, base.dims, scale, partial)


@layout_rule(*HOMOGENEOUS, *SCALE_FREE, "integer_pow")
@_pointwise
def _homogeneous(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    partial = _through_monotone(eqn, x)
    scale = measured(eqn, 0, x)
    if eqn.op in SCALE_FREE:
        if scale <= 0:
            require_unit(eqn, operands, f"{eqn.op} forgets the sign")
        return result(base, base.dims, 1.0, partial)
    degree = float(eqn.per_rank.params["y"]) if eqn.op == "integer_pow" else HOMOGENEOUS[eqn.op]
    if scale <= 0:
        require_unit(eqn, operands, f"{eqn.op} forgets the sign")
    return result(base, base.dims, _powered(scale, degree), partial)


def _powered(scale: float, degree: float) -> float:
    if degree == 0:
        return 1.0
    return ANY_SCALE if math.isinf(scale) else scale**degree


def _through_monotone(eqn: Equation, x: Relation) -> dict[str, ReduceOp]:
    """Pending maxima and minima survive an increasing function; nothing else does."""
    for axis, op in x.partial.items():
        if op not in ("max", "min") or eqn.op not in MONOTONE:
            why = f"{eqn.op} of a {op} over ranks is not the {op} of {eqn.op} over ranks"
            raise partial_refused(eqn, 0, axis, op, why)
    return dict(x.partial)


@layout_rule(*GENERAL)
@_pointwise
def _general(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    partial = _through_monotone(eqn, x)
    require_unit(eqn, operands, f"{eqn.op}(s x) is not a multiple of {eqn.op}(x)")
    return result(base, base.dims, 1.0, partial)


def _unit(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    """A function of several whole values that has no more structure."""
    require_whole(eqn, operands, f"{eqn.op} is not linear")
    require_unit(eqn, operands, f"{eqn.op} is not homogeneous")
    return result(base, base.dims, 1.0, {})


layout_rule(*GENERAL_BINARY)(_pointwise(_unit))


@layout_rule("pow")
@_pointwise
def _pow(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    x, exponent = operands
    require_whole(eqn, operands, "pow is not linear")
    scale = measured(eqn, 0, x)
    power, power_on_one = exponent.const or (math.nan, math.nan)
    if power != power_on_one or not np.isfinite(power) or scale <= 0:
        return _unit(eqn, operands, base)
    # What fits every factor fits 1, whatever the exponent.
    scale = 1.0 if math.isinf(scale) else _powered(scale, float(power))
    return result(base, base.dims, scale, {})


@layout_rule("convert_element_type")
@_pointwise
def _convert(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    old, new = np.dtype(eqn.per_rank.dtypes[0]), np.dtype(eqn.per_rank.out_dtypes[0])
    scale = measured(eqn, 0, x)
    if old != new and old.kind == "i" and old.itemsize < 4:
        why = f"a term of {old.name} that wraps around is another number in {new.name}"
        require_whole(eqn, operands, why)
        require_unit(eqn, operands, why)
    if old == new or _linear_cast(old, new):
        return result(base, base.dims, scale, dict(x.partial))
    require_whole(eqn, operands, f"a cast from {old.name} to {new.name} is not linear")
    if not math.isinf(scale) and not same_scale(scale, 1.0):
        require_unit(eqn, operands, f"a cast from {old.name} to {new.name} is not linear")
    return result(base, base.dims, 1.0, {})


def _linear_cast(old: np.dtype[Any], new: np.dtype[Any]) -> bool:
    """Up to rounding: between floats, from signed integers up, and between those that do not
    narrow."""
    if _floating(old):
        return _floating(new)
    signed = old.kind == "i"
    return signed and (_floating(new) or (new.kind == "i" and new.itemsize >= old.itemsize))


def _floating(dtype: np.dtype[Any]) -> bool:
    # bfloat16 and the other extension floats have kind "V".
    return dtype.kind in "fV"
