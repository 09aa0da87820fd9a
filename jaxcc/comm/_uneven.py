"""Parts of different sizes, one for each rank, in arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcc.comm._call import Group, checks_varying, varying
from jaxcc.comm._parameters import begins_of

# JAX has types for some of its functions only.
_lax: Any = lax


def picked(x: jax.Array, table: np.ndarray, dim: int, group: Group) -> jax.Array:
    """Along `dim`, the elements of `x` that the rank's row of `table` names; zeros for -1."""
    rows = jnp.asarray(table, jnp.int32)
    index = _lax.dynamic_index_in_dim(rows, _lax.axis_index(group.axes), keepdims=False)
    if checks_varying(group.axes):
        x = varying(x, group.axes)
    found = jnp.take(x, jnp.maximum(index, 0), axis=dim)
    kept = jnp.reshape(index >= 0, (-1, *[1] * (-dim - 1)))
    return jnp.where(kept, found, jnp.zeros((), x.dtype))


def own_part(x: jax.Array, counts: Sequence[int], dim: int, group: Group) -> jax.Array:
    """The rank's part of what all ranks hold, with zeros after it up to the largest part."""
    table = np.full((len(counts), max(counts)), -1)
    for r, (begin, size) in enumerate(zip(begins_of(counts), counts, strict=True)):
        table[r, :size] = np.arange(begin, begin + size)
    return picked(x, table, dim, group)
