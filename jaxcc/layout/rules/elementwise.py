"""Pointwise functions of one or two values: what they do to a scale and to pending reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcc.layout._dtypes import bits_of, kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import ANY_SCALE, Relation, same_scale
from jaxcc.layout._rules import Equation
from jaxcc.layout.rules._by_rank import converted
from jaxcc.layout.rules._combine import (
    flipped,
    measured,
    partial_refused,
    require_unit,
    require_whole,
    result,
    unit_only,
    unsigned,
)
from jaxcc.layout.rules._pointwise import pointwise

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
    "population_count clz"
).split()
GENERAL_BINARY = (
    "atan2 nextafter shift_left shift_right_logical shift_right_arithmetic igamma igammac"
).split()


@pointwise(*LINEAR)
def _linear(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    scale = measured(eqn, 0, x)
    if eqn.op == "reduce_precision" and eqn.per_rank.params["exponent_bits"] < 5:
        why = "so few bits of exponent leave little of a term of the sum"
        require_whole(eqn, operands, why)
        require_unit(eqn, operands, why)
    flip = eqn.op == "neg"
    monotone = flip and not unsigned(eqn)
    if not monotone and any(op != "sum" for op in x.partial.values()):
        require_whole(eqn, operands, f"{eqn.op} does not commute with a pending maximum")
    partial: dict[str, ReduceOp] = {}
    for axis, op in x.partial.items():
        if op == "prod":
            raise partial_refused(eqn, 0, axis, op, f"{eqn.op} of a product is not the product")
        partial[axis] = flipped(op) if flip else op
    return result(base, base.dims, scale, partial)


@pointwise(*HOMOGENEOUS, *SCALE_FREE, "integer_pow")
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


@pointwise(*GENERAL)
def _general(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    partial = _through_monotone(eqn, x)
    require_unit(eqn, operands, f"{eqn.op}(s x) is not a multiple of {eqn.op}(x)")
    return result(base, base.dims, 1.0, partial)


pointwise(*GENERAL_BINARY)(unit_only)


@pointwise("pow")
def _pow(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    x, exponent = operands
    require_whole(eqn, operands, "pow is not linear")
    scale = measured(eqn, 0, x)
    power, power_on_one = exponent.const or (math.nan, math.nan)
    if power != power_on_one or not np.isfinite(power) or scale <= 0:
        return unit_only(eqn, operands, base)
    # What fits every factor fits 1, whatever the exponent.
    scale = 1.0 if math.isinf(scale) else _powered(scale, float(power))
    return result(base, base.dims, scale, {})


@pointwise("convert_element_type", by_rank=converted)
def _convert(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    (x,) = operands
    old, new = np.dtype(eqn.per_rank.dtypes[0]), np.dtype(eqn.per_rank.out_dtypes[0])
    scale = measured(eqn, 0, x)
    if old != new and kind_of(old) == "i" and bits_of(old) < 32:
        why = f"a term of {old.name} that wraps around is another number in {new.name}"
        require_whole(eqn, operands, why)
        require_unit(eqn, operands, why)
    if old != new and kind_of(new) == "f" and bits_of(new) < 16:
        why = f"what {new.name} leaves of a term of the sum is little"
        require_whole(eqn, operands, why)
        require_unit(eqn, operands, why)
    if old == new or _linear_cast(old, new):
        return result(base, base.dims, scale, dict(x.partial))
    if kind_of(old) == "b" and set(x.partial.values()) <= {"max", "min"}:
        # False and True become 0 and 1, which keep their order.
        return result(base, base.dims, scale, dict(x.partial))
    require_whole(eqn, operands, f"a cast from {old.name} to {new.name} is not linear")
    if not math.isinf(scale) and not same_scale(scale, 1.0, old):
        require_unit(eqn, operands, f"a cast from {old.name} to {new.name} is not linear")
    return result(base, base.dims, 1.0, {})


def _linear_cast(old: np.dtype[Any], new: np.dtype[Any]) -> bool:
    """Up to rounding: between floats, from signed integers up, and between those that do not
    narrow."""
    from_, to = kind_of(old), kind_of(new)
    if from_ in ("f", "c"):
        return to == "c" or (from_ == "f" and to == "f")
    return from_ == "i" and (to == "f" or (to == "i" and bits_of(new) >= bits_of(old)))
