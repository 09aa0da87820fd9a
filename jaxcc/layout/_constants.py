"""Numbers that a program holds, and how captured arrays at n and at 1 are related."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from jaxcc.layout._digits import whole_dim
from jaxcc.layout._dtypes import is_key, kind_of
from jaxcc.layout._relation import Relation, constant


def number_of(value: Any) -> Any:
    """The number that fills `value`, or None if it is no array or has several."""
    if value is None or not (hasattr(value, "dtype") or isinstance(value, (int, float, complex))):
        return None
    if is_key(value):
        return None
    array = np.asarray(value)
    kind = kind_of(array.dtype)
    if array.size == 0 or not kind:
        return None
    first = array.flat[0]
    if array.size > 1 and array.tobytes() != first.tobytes() * array.size:
        return None
    # NumPy's own item() of int4 and bfloat16 is no Python number.
    if kind in ("i", "u"):
        return int(first)
    return float(first) if kind == "f" else first.item()


def _bits(value: Any) -> bytes:
    """An array's elements bit by bit, so that NaN is NaN and -0 is not 0."""
    return np.asarray(jax.random.key_data(value) if is_key(value) else value).tobytes()


def number_text(number: Any) -> str:
    """A number as messages show it: without the digits that only f32's rounding gives."""
    if not isinstance(number, (float, np.floating)):
        return str(number)
    value = float(cast(float, number))
    return str(int(value)) if value.is_integer() else f"{value:g}"


def captured(at_n: Any, at_1: Any) -> Relation | None:
    """The relation of two captured arrays; None if they are not the same array or two numbers."""
    number, whole_number = number_of(at_n), number_of(at_1)
    shape = tuple(np.shape(at_n))
    if number is not None and whole_number is not None:
        return constant(shape, (number, whole_number))
    if shape != tuple(np.shape(at_1)) or not hasattr(at_n, "dtype"):
        return None
    if at_n.dtype != getattr(at_1, "dtype", None) or _bits(at_n) != _bits(at_1):
        return None
    return Relation(tuple(whole_dim(d, size) for d, size in enumerate(shape)))
