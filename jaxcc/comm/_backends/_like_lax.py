"""What `jax.lax` does beside running a collective: types, gradients and batching."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from jaxcc.comm._backends._backend import Bare, Order
from jaxcc.comm._call import Call, checks_varying, varying
from jaxcc.comm._collective import COLLECTIVES
from jaxcc.layout import BackendError


def run_like_lax(library: Bare, x: jax.Array, call: Call, after: Order = None) -> jax.Array:
    """`call` of `x`, in its place among the library's calls, with the gradient and the batching of
    the collective in `jax.lax`."""
    checked = checks_varying(call.axes)

    @jax.custom_vjp
    def run(order: Order, x: jax.Array) -> tuple[Order, jax.Array]:
        return batched(order, x)

    @jax.custom_batching.custom_vmap
    def batched(order: Order, x: jax.Array) -> tuple[Order, jax.Array]:
        return library.bare(order, x, call.of(call.what, x))

    @batched.def_vmap
    def _(size: int, in_batched: list[bool], order: Order, x: jax.Array):  # pyright: ignore
        return batched(order, x), tuple(in_batched)

    def forward(order: Order, x: jax.Array) -> tuple[tuple[Order, jax.Array], Order]:
        if call.op not in ("", "sum"):
            raise BackendError(
                "BACKEND_NO_GRADIENT",
                f"{call} has no gradient",
                fixes=("write it as a gather and a local reduction", "wrap it in stop_gradient"),
            )
        result = run(order, x)
        return result, result[0]

    def backward(after: Order, cotangents: tuple[Order, jax.Array]) -> tuple[None, jax.Array]:
        def again(name: str, cotangent: jax.Array, **parameters: Any) -> jax.Array:
            what = COLLECTIVES[name].of(cotangent, call.ranks, **parameters)
            dual = call.of(what, cotangent)
            if library.refuses(dual):
                return what.in_lax(cotangent, call.group)
            return run_like_lax(library, cotangent, dual, after)

        back = call.what.back(cotangents[1], call.group, again)
        return None, varying(back, call.axes) if checked else back

    run.defvjp(forward, backward)
    with _reverse_mode_only(call):
        order, y = run(library.orders.take(after), varying(x, call.axes) if checked else x)
    library.orders.put(order)
    return y


@contextlib.contextmanager
def _reverse_mode_only(call: Call) -> Iterator[None]:
    """Says what to do instead of forward mode, where JAX asks for it while it traces the call."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" not in str(error):
            raise
        raise BackendError(
            "BACKEND_FORWARD_MODE",
            f"{call} is differentiated in forward mode",
            because="its derivative is a rule for reverse mode",
            fixes=("use backend='xla', which has both", "jax.grad, jax.vjp or jax.jacrev of it"),
        ) from error
