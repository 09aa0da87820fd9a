"""The backend that is always there: XLA's own collectives, through `jax.lax`."""

from __future__ import annotations

import jax

from jaxcc.comm._call import Call


class _Xla:
    name = "xla"
    between = "XLA orders work by its data: what lies between may run beside it"

    def refuses(self, call: Call) -> None:
        return None

    def run(self, x: jax.Array, call: Call) -> jax.Array:
        return call.what.in_lax(x, call.group)


XLA = _Xla()
