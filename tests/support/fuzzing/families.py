"""Families of pointwise steps, each with the layouts that it needs and the layout that it gives.

A family looks for operands and writes a step; it returns False if it finds none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzing.steps import BINARY, COMPARE, INTEGER, LINEAR, SMOOTH
from fuzzing.writer import Family, Writer

BINARY_FLOAT = sorted(set(BINARY) - {"and", "or", "xor"})


def number(w: Writer) -> float:
    """A number to compute with."""
    return w.any_of((0.5, 1.0, 2.0, -1.5, 0.0, 3.0))


def unary(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.is_float)
    return k is not None and w.add(w.types[k], "unary", [k], w.any_of(sorted(SMOOTH)))


def linear(w: Writer) -> bool:
    k = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.is_float)
    return k is not None and w.add(w.types[k], "unary", [k], w.any_of(sorted(LINEAR)))


def monotone(w: Writer) -> bool:
    k = w.value(lambda t: bool(t.ops) and t.ops <= {"max", "min"}, lambda t: t.is_float)
    name = w.any_of(("tanh", "exp", "logistic", "cbrt", "atan", "floor"))
    return k is not None and w.add(w.types[k], "unary", [k], name)


def integer(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.dtype == "int32")
    return k is not None and w.add(w.types[k], "unary", [k], "int_" + w.any_of(sorted(INTEGER)))


def binary(w: Writer) -> bool:
    """Two values of one type, any function of whole ones, sums of pending sums."""
    a = w.value(possible=lambda t: t.dtype != "bool" or w.chance(50))
    if a is None:
        return False
    t = w.types[a]
    b = w.value(lambda o: o == t, lambda o: (o.shape, o.dtype) == (t.shape, t.dtype))
    if b is None:
        return False
    if t.dtype == "bool":
        return t.whole and w.add(t, "binary", [a, b], w.any_of(("and", "or", "xor")))
    if t.dtype == "int32":
        name = w.any_of(("add", "sub", "mul", "max", "min", "and", "or", "xor"))
        ok = t.whole or (t.ops == {"sum"} and name in ("add", "sub")) or w.careless
        return ok and w.add(t, "binary", [a, b], name)
    names: Sequence[str] = BINARY_FLOAT
    if t.ops and not w.careless:
        if len(t.ops) > 1 or t.ops == {"prod"}:
            return False
        names = ("add", "sub") if t.ops == {"sum"} else sorted(t.ops)
    return w.add(t, "binary", [a, b], w.any_of(names))


def product(w: Writer) -> bool:
    """A pending sum times or over what every rank holds alike."""
    a = w.value(lambda t: t.ops == {"sum"}, lambda t: t.is_float)
    if a is None:
        return False
    t = w.types[a]
    other = replace(t, partial=())
    b = w.value(lambda o: o == other, lambda o: (o.shape, o.dtype) == (t.shape, t.dtype))
    return b is not None and w.add(t, "binary", [a, b], w.any_of(("mul", "div")))


def trailing(w: Writer) -> bool:
    """With a value that lacks the leading dimensions, such as a bias."""
    a = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 1)
    if a is None:
        return False
    t = w.types[a]
    cut = 1 + w.choices.below(t.ndim - 1)
    wanted = t.without(range(cut))
    b = w.value(
        lambda o: o == wanted,
        lambda o: o.shape == wanted.shape and o.dtype == t.dtype and o.local == t.local,
    )
    return b is not None and w.add(t, "binary", [a, b], w.any_of(BINARY_FLOAT))


def scalar(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.is_float)
    if k is None:
        return False
    name = w.any_of(("add", "sub", "mul", "div", "max", "min", "pow"))
    kind = w.any_of(("scalar", "scalar", "scalar_first"))
    return w.add(w.types[k], kind, [k], name, number(w))


def scaled(w: Writer) -> bool:
    k = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.is_float)
    return k is not None and w.add(w.types[k], "scalar", [k], "mul", w.any_of((0.5, 2.0, -1.5)))


def shifted(w: Writer) -> bool:
    k = w.value(lambda t: bool(t.ops) and t.ops <= {"max", "min"}, lambda t: t.is_float)
    return k is not None and w.add(w.types[k], "scalar", [k], w.any_of(("add", "sub")), number(w))


def cast(w: Writer) -> bool:
    k = w.value(lambda t: t.whole or t.is_float, lambda t: t.whole or t.is_float)
    if k is None:
        return False
    t = w.types[k]
    new = w.any_of(("float32", "float32", "bfloat16", "int32", "bool"))
    if t.partial and new not in ("float32", "bfloat16") and not w.careless:
        return False
    return new != t.dtype and w.add(replace(t, dtype=new), "cast", [k], new)


def compare(w: Writer) -> bool:
    a = w.value(lambda t: t.whole, lambda t: t.dtype != "bool")
    if a is None:
        return False
    t = w.types[a]
    if w.chance(50):
        limit = number(w) if t.is_float else w.choices.below(8)
        return w.add(replace(t, dtype="bool"), "threshold", [a], w.any_of(sorted(COMPARE)), limit)
    b = w.value(lambda o: o == t, lambda o: (o.shape, o.dtype) == (t.shape, t.dtype))
    return b is not None and w.add(
        replace(t, dtype="bool"), "compare", [a, b], w.any_of(sorted(COMPARE))
    )


def logical_not(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.dtype == "bool")
    return k is not None and w.add(w.types[k], "unary", [k], "not")


def select(w: Writer) -> bool:
    c = w.value(lambda t: t.whole, lambda t: t.dtype == "bool")
    if c is None:
        return False
    t = w.types[c]
    a = w.value(
        lambda o: replace(o, dtype="bool", partial=()) == t and o.ops <= {"sum"},
        lambda o: o.shape == t.shape and o.dtype != "bool",
    )
    if a is None:
        return False
    case = w.types[a]
    if w.chance(40):
        other = 0.0 if case.partial else number(w)
        return w.add(case, "select_number", [c, a], other if case.is_float else int(other))
    b = w.value(lambda o: o == case, lambda o: (o.shape, o.dtype) == (case.shape, case.dtype))
    return b is not None and w.add(case, "select", [c, a, b])


def clamp(w: Writer) -> bool:
    x = w.value(lambda t: t.whole, lambda t: t.is_float)
    if x is None:
        return False
    t = w.types[x]
    low, high = (w.value(lambda o: o == t, lambda o: o == t) for _ in range(2))
    return low is not None and high is not None and w.add(t, "clamp", [low, x, high])


POINTWISE: list[tuple[Family, int]] = [
    (unary, 4), (linear, 2), (monotone, 1), (integer, 2), (binary, 4), (product, 2), (trailing, 3),
    (scalar, 2), (scaled, 1), (shifted, 1), (cast, 2), (compare, 2), (logical_not, 1), (select, 3),
    (clamp, 1),
]  # fmt: skip
