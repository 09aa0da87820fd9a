"""The types of arrays as JAX has them, and their kinds: NumPy takes JAX's int4 and bfloat16 for no
numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_jax: Any = jax
_jnp: Any = jnp

# Relative tolerances by the precision of the narrowest floating type in a program.
_ROUNDING = ((1e-15, 1e-9), (1e-6, 1e-5), (1e-3, 1e-2), (1e-2, 5e-2))


@functools.lru_cache(256)
def kind_of(dtype: Any) -> str:
    """`b` boolean, `i` signed, `u` unsigned, `f` floating, `c` complex; empty for others."""
    kinds = {
        "b": _jnp.bool_,
        "i": _jnp.signedinteger,
        "u": _jnp.unsignedinteger,
        "f": _jnp.floating,
        "c": _jnp.complexfloating,
    }
    try:
        found = [kind for kind, family in kinds.items() if _jnp.issubdtype(dtype, family)]
    except TypeError:
        # A name that is no type of numbers.
        return ""
    return found[0] if found else ""


def is_key(x: Any) -> bool:
    """Whether `x` is an array of random keys, which NumPy cannot hold."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and _jnp.issubdtype(dtype, jax.dtypes.prng_key)


def array_type(x: Any) -> jax.ShapeDtypeStruct:
    """The type that JAX gives to an array, to a number, or to anything with `.shape` and `.dtype`;
    without x64 its numbers have at most 32 bits.

    Raises:
      OverflowError, TypeError: JAX has no array for it.
    """
    if isinstance(x, jax.Array) or not (hasattr(x, "shape") and hasattr(x, "dtype")):
        known: Any = _jax.typeof(x)
        return jax.ShapeDtypeStruct(known.shape, known.dtype, weak_type=known.weak_type)
    dtype = x.dtype
    if not is_key(x):
        dtype = _jnp.result_type(_jax.dtypes.canonicalize_dtype(dtype))
    weak = bool(getattr(x, "weak_type", False))
    return jax.ShapeDtypeStruct(tuple(x.shape), dtype, weak_type=weak)


def bytes_of(x: Any) -> int:
    """The size of an array, or of one that has this type."""
    return math.prod(x.shape) * x.dtype.itemsize


def type_name(shape: Iterable[int], dtype: Any) -> str:
    """A type as JAX prints it: `f32[4,8]`."""
    kinds = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
    name = str(dtype)
    stem = name.rstrip("0123456789")
    short = kinds[stem] + name[len(stem) :] if stem in kinds else name
    return f"{short}[{','.join(str(n) for n in shape)}]"


@functools.lru_cache(256)
def bits_of(dtype: Any) -> int:
    """The width of an integer or floating type: 4 for int4."""
    if kind_of(dtype) in ("i", "u"):
        return int(_jnp.iinfo(dtype).bits)
    return int(np.dtype(dtype).itemsize * 8)


@functools.lru_cache(256)
def holds_all_to(dtype: Any, limit: int) -> bool:
    """Whether every integer up to `limit` is exact in a type of at least 32 bits."""
    if bits_of(dtype) < 32:
        return False
    if kind_of(dtype) == "i":
        return limit <= int(_jnp.iinfo(dtype).max)
    return kind_of(dtype) == "f" and limit <= 2 ** int(_jnp.finfo(dtype).nmant)


def wrapped(number: int, dtype: Any) -> int:
    """An integer as an integer type holds it."""
    bits = bits_of(dtype)
    number %= 1 << bits
    return number - (1 << bits) if kind_of(dtype) == "i" and number >> (bits - 1) else number


def rounding(dtypes: Iterable[Any]) -> float:
    """What is taken for rounding, relative, in a program with values of these types: it depends on
    the narrowest floating one."""
    widest = max(map(_epsilon, dtypes), default=0.0)
    return next((rtol for limit, rtol in _ROUNDING if widest <= limit), 0.5)


@functools.lru_cache(256)
def _epsilon(dtype: Any) -> float:
    return float(_jnp.finfo(dtype).eps) if kind_of(dtype) in ("f", "c") else 0.0
