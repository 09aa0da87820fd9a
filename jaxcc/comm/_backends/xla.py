"""The backend that is always there: XLA's own collectives, through `jax.lax`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc.comm._call import Call, checks_varying


class _Xla:
    name = "xla"

    def refuses(self, call: Call) -> None:
        return None

    def all_reduce(self, x: jax.Array, call: Call) -> jax.Array:
        if call.op == "sum":
            return lax.psum(x, call.axes)
        if call.op == "prod":
            return jnp.prod(_gather(x, call.axes), axis=0, dtype=call.dtype)
        return {"max": lax.pmax, "min": lax.pmin}[call.op](x, call.axes)


def _gather(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Every rank's `x`, stacked; of the type that JAX gives to what all ranks hold."""
    return lax.all_gather(x, axes, to="invarying" if checks_varying(axes) else "varying")


XLA = _Xla()
