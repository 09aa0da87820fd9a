"""What `jax.lax` does beside running a collective: types, derivatives and batching."""

from __future__ import annotations

from typing import Any

import jax

from jaxcc import _compat
from jaxcc.comm._backends._backend import Bare
from jaxcc.comm._call import Call, checks_varying, varying
from jaxcc.comm._collective import COLLECTIVES
from jaxcc.layout import BackendError


def run_like_lax(library: Bare, x: jax.Array, call: Call) -> jax.Array:
    """`call` of `x`, with the derivative and the batching of the collective in `jax.lax`."""
    checked = checks_varying(call.axes)

    def same(x: jax.Array) -> jax.Array:
        # Collectives count their dimensions from the last: one that `vmap` adds changes nothing.
        return run_like_lax(library, x, call.of(call.what, x))

    def tangent(t: jax.Array) -> jax.Array:
        if call.op not in ("", "sum"):
            raise BackendError(
                "BACKEND_NO_GRADIENT",
                f"{call} has no gradient",
                fixes=("write it as a gather and a local reduction", "wrap it in stop_gradient"),
            )
        return same(t)

    def transposed(cotangent: jax.Array) -> jax.Array:
        back = call.what.back(cotangent, call.group, again)
        return varying(back, call.axes) if checked else back

    def again(name: str, cotangent: jax.Array, **parameters: Any) -> jax.Array:
        what = COLLECTIVES[name].of(cotangent, call.ranks, **parameters)
        dual = call.of(what, cotangent)
        if library.refuses(dual):
            return what.in_lax(cotangent, call.group)
        return run_like_lax(library, cotangent, dual)

    transforms = _compat.Transforms(batched=same, tangent=tangent, transposed=transposed)
    x = varying(x, call.axes) if checked else x
    return _compat.with_transforms(lambda x: library.bare(x, call), transforms, x)
