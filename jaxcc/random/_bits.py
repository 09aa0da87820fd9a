"""The rank's block of an array of random bits, as one primitive that the checker has a rule for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxcc import _compat
from jaxcc.comm._combinators_primitive import primitive
from jaxcc.program import own_slice

# JAX has types for some of its functions only.
_jax: Any = jax
_lax: Any = lax


def sliced_bits(
    key: Any, shape: tuple[int, ...], bit_width: int, axis_name: str, dim: int
) -> jax.Array:
    """The block of `shape` of the bits that `key` gives for the whole shape; `dim` is negative."""
    (made,) = _primitive.bind(
        _jax.random.key_data(key),
        axis_name=axis_name,
        dim=dim,
        shape=shape,
        bit_width=bit_width,
        impl=_jax.random.key_impl(key),
    )
    return made


def _run(
    words: jax.Array,
    *,
    axis_name: str,
    dim: int,
    shape: tuple[int, ...],
    bit_width: int,
    impl: Any,
) -> Sequence[jax.Array]:
    whole = list(shape)
    whole[dim] *= _lax.axis_size(axis_name)

    def block(x: Any) -> Any:
        return own_slice(x, axis_name, len(shape) + dim)

    def of_key(words: jax.Array) -> jax.Array:
        key = _jax.random.wrap_key_data(words, impl=impl)
        if not _compat.counts_bits(key.dtype):
            return block(_jax.random.bits(key, whole, f"uint{bit_width}"))
        upper, lower = map(block, _compat.counters(tuple(whole)))
        return _compat.counted_bits((words[0], words[1]), (upper, lower), bit_width)

    # vmap adds dimensions of keys in front.
    for _ in range(words.ndim - 1):
        of_key = _jax.vmap(of_key)
    return [of_key(words)]


_primitive = primitive("random_bits", _run)
