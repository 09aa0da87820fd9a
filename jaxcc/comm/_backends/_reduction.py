"""What `jax.lax.psum` does beside adding: types, gradients and batching."""

from __future__ import annotations

from typing import Protocol

import jax
from jax import lax

from jaxcc.comm._call import Call, checks_varying, varying
from jaxcc.comm._order import Orders
from jaxcc.layout import BackendError

Order = jax.Array | None


class Reduce(Protocol):
    """A backend's bare all-reduce; it hands on the order buffer that it is given."""

    def __call__(self, order: Order, x: jax.Array, call: Call) -> tuple[Order, jax.Array]: ...


def all_reduce_like_lax(
    reduce: Reduce, x: jax.Array, call: Call, orders: Orders, after: Order = None
) -> jax.Array:
    """`reduce` of `x`, in its place among `orders`, with `psum`'s gradient and batching."""
    checked = checks_varying(call.axes)

    @jax.custom_vjp
    def all_reduce(order: Order, x: jax.Array) -> tuple[Order, jax.Array]:
        return batched(order, x)

    @jax.custom_batching.custom_vmap
    def batched(order: Order, x: jax.Array) -> tuple[Order, jax.Array]:
        return reduce(order, x, call)

    @batched.def_vmap
    def _(size: int, in_batched: list[bool], order: Order, x: jax.Array):  # pyright: ignore
        return batched(order, x), tuple(in_batched)

    def forward(order: Order, x: jax.Array) -> tuple[tuple[Order, jax.Array], Order]:
        if call.op != "sum":
            raise BackendError(
                "BACKEND_NO_GRADIENT",
                f"{call} has no gradient",
                fixes=("write it as a gather and a local reduction", "wrap it in stop_gradient"),
            )
        result = all_reduce(order, x)
        return result, result[0]

    def backward(after: Order, cotangents: tuple[Order, jax.Array]) -> tuple[None, jax.Array]:
        cotangent = cotangents[1]
        # With check_vma=True a replicated value's cotangent is itself replicated and complete.
        if checked:
            return None, lax.pcast(cotangent, call.axes, to="varying")
        return None, all_reduce_like_lax(reduce, cotangent, call, orders, after)

    all_reduce.defvjp(forward, backward)
    order, y = all_reduce(orders.take(after), varying(x, call.axes) if checked else x)
    orders.put(order)
    return y
