"""What collectives share that reduce over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc.comm._blocks import same_on_all
from jaxcc.comm._call import Group, in_bytes
from jaxcc.comm._collective import Collective
from jaxcc.layout import REDUCE_OPS, LayoutError

# JAX has types for some of its functions only.
_lax: Any = lax

_BITWISE = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}
OPS = (*REDUCE_OPS, "mean", *_BITWISE)


@dataclass(frozen=True)
class Reduction(Collective):
    """A collective that combines the ranks' values.

    Attributes:
      asked: the reduction as the user named it.
    """

    asked: str

    @property
    def op(self) -> str:
        # A mean is a sum that is divided afterwards.
        return "sum" if self.asked == "mean" else self.asked

    def operand_dtype(self, dtype: Any) -> jnp.dtype:
        if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
            raise LayoutError("LAYOUT_REDUCE_OP", f"{self.asked} of {dtype}: it holds no numbers")
        dtype = jnp.dtype(dtype)
        if self.op in ("max", "min") and jnp.issubdtype(dtype, jnp.complexfloating):
            raise LayoutError(
                "LAYOUT_REDUCE_OP", f"{self.op} of {dtype.name}: complex numbers have no order"
            )
        if self.op in _BITWISE and jnp.issubdtype(dtype, jnp.inexact):
            raise LayoutError(
                "LAYOUT_REDUCE_OP",
                f"{self.op} of {dtype.name}: only integers and booleans have bits to combine",
                fixes=("compare first, as x > 0 does",),
            )
        if self.op in ("sum", "prod") and dtype == jnp.bool_:
            return jnp.dtype(jnp.int32)
        return dtype

    def finish(self, result: jax.Array, group: Group) -> jax.Array:
        return result / group.ranks if self.asked == "mean" else result


def checked_op(name: str, op: Any) -> str:
    """`op`, one of OPS.

    Raises:
      LayoutError: LAYOUT_REDUCE_OP.
    """
    if op not in OPS:
        choices = ", ".join(map(repr, OPS))
        raise LayoutError(
            "LAYOUT_REDUCE_OP", f"{name} has no op {op!r}", fixes=(f"use one of {choices}",)
        )
    return op


def reduced(x: jax.Array, op: str, group: Group) -> jax.Array:
    """`op` over the ranks' `x`, on all ranks, in `jax.lax`."""
    if op == "sum":
        return _lax.psum(x, group.axes)
    if op in ("max", "min"):
        return {"max": _lax.pmax, "min": _lax.pmin}[op](x, group.axes)
    every = _lax.all_gather(x, group.axes, to=same_on_all(group))
    if op == "prod":
        return jnp.prod(every, axis=0, dtype=x.dtype)
    return _BITWISE[op].reduce(every.astype(in_bytes(x.dtype)), axis=0).astype(x.dtype)
