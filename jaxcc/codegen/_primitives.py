"""What each pointwise primitive is in C++: one entry each, from a call to an expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcc.codegen._elements import Element, constant


@dataclass(frozen=True)
class Call:
    """One use of a primitive: arguments as expressions, their elements, the element and number of
    the result.
    """

    args: tuple[str, ...]
    elements: tuple[Element, ...]
    out: Element
    params: Mapping[str, Any]
    output: int = 0


# None: the primitive has no such form (it is then reported as unknown for that dtype).
Rule = Callable[[Call], str | None]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of the primitives with these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _arithmetic(symbol: str, logical: str | None = None) -> Rule:
    """A binary operator; `logical` is what it means for bool."""

    def expression(call: Call) -> str | None:
        a, b = call.args
        if call.out.is_float:
            return f"{a} {symbol} {b}"
        if call.out.kind == "bool":
            return logical and f"{a} {logical} {b}"
        unsigned = call.out.unsigned
        return f"({call.out.compute})(({unsigned}){a} {symbol} ({unsigned}){b})"

    return expression


RULES["add"] = RULES["add_any"] = _arithmetic("+", "||")
RULES["sub"] = _arithmetic("-")
RULES["mul"] = _arithmetic("*", "&&")


@rule("div")
def _div(call: Call) -> str | None:
    a, b = call.args
    return f"{a} / {b}" if call.out.is_float else _integer_function("integer_div", call)


@rule("rem")
def _rem(call: Call) -> str | None:
    a, b = call.args
    return f"jaxcc::rem({a}, {b})" if call.out.is_float else _integer_function("integer_rem", call)


def _integer_function(name: str, call: Call) -> str | None:
    if call.out.kind not in ("int", "uint"):
        return None
    return f"jaxcc::{name}<{call.out.compute}>({', '.join(call.args)})"


@rule("neg")
def _neg(call: Call) -> str:
    (a,) = call.args
    if call.out.is_float:
        return f"-{a}"
    return f"({call.out.compute})(0 - ({call.out.unsigned}){a})"


@rule("abs")
def _abs(call: Call) -> str:
    (a,) = call.args
    if call.out.is_float:
        return f"jaxcc::abs({a})"
    return f"{a} < 0 ? {_neg(call)} : {a}" if call.out.kind == "int" else a


@rule("sign")
def _sign(call: Call) -> str:
    return f"jaxcc::sign<{call.out.compute}>({call.args[0]})"


@rule("square")
def _square(call: Call) -> str | None:
    elements = call.elements * 2
    return RULES["mul"](Call(call.args * 2, elements, call.out, call.params))


@rule("integer_pow")
def _integer_pow(call: Call) -> str:
    (a,), out = call.args, call.out
    exponent: int = call.params["y"]
    if exponent == 1:
        return a
    work = out.compute if out.is_float else out.unsigned
    # A product of half types is rounded as soon as it is made.
    rounded = f"[]({work} x) {{ return {out.round.format('x')}; }}"
    power = f"jaxcc::integer_pow<{abs(exponent)}, {work}>(1, {a}, {rounded})"
    return f"({out.compute})({f'1 / {power}' if exponent < 0 else power})"


@rule("pow")
def _pow(call: Call) -> str | None:
    base, exponent = call.args
    return f"jaxcc::pow({base}, ({call.out.compute}){exponent})" if call.out.is_float else None


def _function(name: str) -> Rule:
    """A function of `ffi/protocol/` (math.h, math64.h, inverse.h, ...), for floats."""

    def expression(call: Call) -> str | None:
        if not call.elements[0].is_float:
            return None
        return f"jaxcc::{name}({', '.join(call.args)})"

    return expression


for _name in (
    *("sqrt", "rsqrt", "cbrt", "exp", "expm1", "log", "log1p", "tanh"),
    *("erf", "erfc", "erf_inv", "lgamma", "digamma", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "is_finite"),
):
    RULES[_name] = _function(_name)


@rule("exp2")
def _exp2(call: Call) -> str | None:
    (a,), out = call.args, call.out
    if not out.is_half:
        return _function("exp2")(call)
    # Of half types XLA rounds each part of what it makes of this, and of `logistic`.
    product = out.round.format(f"{a} * {constant(np.log(2), out)}")
    return f"jaxcc::exp({product})"


@rule("logistic")
def _logistic(call: Call) -> str | None:
    (a,), out = call.args, call.out
    if not out.is_half:
        return _function("logistic")(call)
    power = out.round.format(f"jaxcc::exp(-{a})")
    return f"1.0f / {out.round.format(f'1.0f + {power}')}"


@rule("nextafter")
def _nextafter(call: Call) -> str | None:
    out = call.out
    if not out.is_float:
        return None
    infinity = int(np.asarray(np.inf, jnp.dtype(out.dtype)).view(f"uint{out.bits}"))
    given = ", ".join(out.to_bits.format(arg) for arg in call.args)
    equal = " == ".join(call.args)
    return out.of_bits.format(
        f"jaxcc::next_bits<uint{out.bits}_t>({given}, {infinity:#x}, {equal})"
    )


@rule("bitcast_convert_type")
def _bitcast_convert_type(call: Call) -> str | None:
    (a,), (source,), out = call.args, call.elements, call.out
    if "bool" in (source.kind, out.kind) or source.bits != out.bits:
        return None
    return out.of_bits.format(source.to_bits.format(a))


@rule("round")
def _round(call: Call) -> str | None:
    even = call.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return _function("round_even" if even else "round_away")(call)


@rule("reduce_precision")
def _reduce_precision(call: Call) -> str:
    (a,), out = call.args, call.out
    own = jnp.finfo(out.dtype)
    kept = call.params["exponent_bits"], call.params["mantissa_bits"]
    if kept[0] >= own.nexp and kept[1] >= own.nmant:
        return a
    sizes = f"uint{out.bits}_t, {own.nexp}, {own.nmant}, {kept[0]}, {kept[1]}"
    return out.of_bits.format(f"jaxcc::reduced_precision<{sizes}>({out.to_bits.format(a)})")


def _template(name: str) -> Rule:
    """A template of `ffi/protocol/element.h` over the computed type."""

    def expression(call: Call) -> str:
        return f"jaxcc::{name}<{call.out.compute}>({', '.join(call.args)})"

    return expression


RULES["max"] = _template("maximum")
RULES["min"] = _template("minimum")
RULES["clamp"] = _template("clamp")
RULES["shift_left"] = _template("shift_left")


def _counted(name: str) -> Rule:
    """A function of an integer's bits."""

    def expression(call: Call) -> str | None:
        if call.out.kind not in ("int", "uint"):
            return None
        bits = f"uint{call.out.bits}_t"
        return f"jaxcc::{name}<{call.out.compute}, {bits}>({call.args[0]})"

    return expression


RULES["population_count"] = _counted("population_count")
RULES["clz"] = _counted("leading_zeros")


def _shift_right(kind: str) -> Rule:
    """Fills with zeros (`uint`) or with the sign (`int`)."""

    def expression(call: Call) -> str | None:
        shifted = f"{kind}{call.out.bits}_t"
        return f"jaxcc::shift_right<{call.out.compute}, {shifted}>({', '.join(call.args)})"

    return expression


RULES["shift_right_logical"] = _shift_right("uint")
RULES["shift_right_arithmetic"] = _shift_right("int")


@rule("threefry2x32")
def _threefry2x32(call: Call) -> str:
    return f"jaxcc::threefry2x32({', '.join(call.args)}).{('first', 'second')[call.output]}"


def _bitwise(symbol: str, logical: str) -> Rule:
    def expression(call: Call) -> str:
        a, b = call.args
        if call.out.kind == "bool":
            return f"{a} {logical} {b}"
        return f"({call.out.compute})({a} {symbol} {b})"

    return expression


RULES["and"] = _bitwise("&", "&&")
RULES["or"] = _bitwise("|", "||")
RULES["xor"] = _bitwise("^", "!=")


@rule("not")
def _not(call: Call) -> str:
    (a,) = call.args
    return f"!{a}" if call.out.kind == "bool" else f"({call.out.compute})~{a}"


def _comparison(symbol: str) -> Rule:
    return lambda call: f"{call.args[0]} {symbol} {call.args[1]}"


for _name, _symbol in {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}.items():
    RULES[_name] = _comparison(_symbol)


@rule("select_n")
def _select_n(call: Call) -> str:
    which, *cases = call.args
    if call.elements[0].kind == "bool":
        return f"{which} ? {cases[1]} : {cases[0]}"
    chosen = cases[-1]
    for index in reversed(range(len(cases) - 1)):
        chosen = f"{which} < {index + 1} ? {cases[index]} : {chosen}"
    return chosen


@rule("convert_element_type")
def _convert_element_type(call: Call) -> str:
    (a,), (source,), out = call.args, call.elements, call.out
    if out.kind == "bool":
        return f"{a} != 0"
    if source.is_float and not out.is_float:
        return f"jaxcc::saturate<{out.compute}>({a})"
    return f"({out.compute}){a}"
