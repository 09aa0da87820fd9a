"""Random bits that depend on a key and a place alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p as _threefry2x32_p

from jaxcc._compat._types import unify_varying

try:
    from jax._src.random import prng as _prng
except ImportError:
    from jax._src import prng as _prng  # pyright: ignore[reportAttributeAccessIssue]


def counts_bits(key_type: Any) -> bool:
    """Whether each random number made with a key of this dtype depends on the key and the number's
    place in the array alone.
    """
    return str(key_type) == "key<fry>" and bool(jax.config.jax_threefry_partitionable)


def counters(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The flat index of each element of an array, as its upper and lower 32 bits."""
    upper, lower = _prng.iota_2x32_shape(shape)
    return upper, lower


def counted_bits(words: tuple[Any, Any], counters: tuple[Any, Any], bit_width: int) -> Any:
    """The bits that `jax.random.bits` makes at the places `counters` with the key of these words,
    which `counts_bits`.
    """
    keys = [lax.broadcast(word, counters[0].shape) for word in words]
    first, second = _threefry2x32_p.bind(*unify_varying([*keys, *counters]))
    if bit_width != 64:
        return (first ^ second).astype(f"uint{bit_width}")
    return first.astype("uint64") << np.uint64(32) | second.astype("uint64")
