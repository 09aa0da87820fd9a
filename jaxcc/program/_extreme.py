"""The largest and the smallest of the ranks' numbers, NaN included."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax


def extreme(kind: str, x: Any, axes: Any) -> Any:
    """What `jnp.maximum` ("maximum") or `jnp.minimum` makes of the arrays of all ranks of `axes`:
    NaN where a rank has one. `lax.pmax` and `lax.pmin` leave NaN out.
    """
    largest = kind == "maximum"
    reduce = lax.pmax if largest else lax.pmin
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return reduce(x, axes)
    # Collectives of 16-bit integers are not to be had everywhere.
    wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    bits = lax.bitcast_convert_type(wide, f"int{8 * wide.dtype.itemsize}")
    # The outermost integers are the bits of NaN.
    limits = jnp.iinfo(bits.dtype)
    nan = limits.max if largest else limits.min
    whole = reduce(jnp.where(wide != wide, nan, _ordered(bits)), axes)
    return lax.bitcast_convert_type(_ordered(whole), wide.dtype).astype(x.dtype)


def _ordered(bits: Any) -> Any:
    """The bits of floats as integers that are in the floats' order, 0 above -0; and back."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)
