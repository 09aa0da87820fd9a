"""Operations that make a part of what they made."""

from __future__ import annotations

from dataclasses import replace

import jax

from jaxcc.program import Op

# Parameters that say the result's shape.
_SHAPES = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}


def resized(op: Op, dim: int, size: int) -> Op:
    """The operation with results of `size` along `dim`, and the shape among its parameters too."""
    types = tuple(
        jax.ShapeDtypeStruct((*t.shape[:dim], size, *t.shape[dim + 1 :]), t.dtype) for t in op.types
    )
    if op.kind not in _SHAPES:
        return replace(op, types=types)
    params = {**op.eqn.params, _SHAPES[op.kind]: types[0].shape}
    return replace(op, types=types, eqn=op.eqn.replace(params=params))
