"""The rank's own block of a replicated array, as one primitive that the checker has a rule for."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from jaxcc import _compat


def _block(x: Any, *, axis: str, dim: int, ranks: int) -> Any:
    size = x.shape[dim] // ranks
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, axis=dim)


def _abstract(x: Any, *, axis: str, dim: int, ranks: int) -> Any:
    shape = list(x.shape)
    shape[dim] //= ranks
    return x.update(shape=tuple(shape))


_own_slice_p = _compat.traced_primitive("jaxcc_own_slice", _abstract)


def own_slice(x: Any, axis: str, dim: int, *, checked: bool = False) -> jax.Array:
    """The block of a Replicated `x` along `dim` that belongs to this rank of `axis`.

    Args:
      x: an array whose `dim` the ranks of `axis` divide.
      axis: mesh axis name.
      dim: array dimension.
      checked: trace it as one primitive, `jaxcc_own_slice`, that the checker knows; such a trace
        cannot run.
    """
    ranks = lax.axis_size(axis)
    if not checked:
        return _block(x, axis=axis, dim=dim, ranks=ranks)
    (x,) = _compat.unify_varying([x], (axis,))
    return _own_slice_p.bind(x, axis=axis, dim=dim, ranks=ranks)
