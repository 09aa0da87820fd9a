"""Adam with sliced moments, fused with the gradients' reduction and the parameters' all-gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxcc.layout import LayoutError
from jaxcc.optim._flat import FlatUpdate, slices_like
from jaxcc.optim._transformation import FusedTransformation


class AdamState(NamedTuple):
    """`count`: steps so far, i32[]. `mu`, `nu`: per leaf, this rank's flat slice of the moments,
    [ceil(size / n)].
    """

    count: jax.Array
    mu: Any
    nu: Any


def adam(
    learning_rate: float | Callable[[jax.Array], jax.Array],
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    axis_name: str,
    mesh: jax.sharding.Mesh | None = None,
) -> FusedTransformation:
    """Adam (Kingma and Ba, arXiv 1412.6980), as `optax.adam` computes it on the mean of the ranks'
    gradients.

    Args:
      learning_rate: a number, or an optax schedule: a function of the step count.
      b1, b2, eps, eps_root: as in `optax.adam`.
      axis_name: the mesh axis whose ranks each hold a part of the batch.
      mesh: the mesh that it runs on; by default that of `jax.set_mesh`.

    Returns:
      A transformation whose `step` is one kernel call for all parameters. Without a C++ compiler,
      or on devices that
      are not CPU devices of this process, it computes the same by XLA's collectives.
    """

    def moments(mean: Any, m: Any, v: Any) -> tuple[Any, Any]:
        m = (b1 * m + (1 - b1) * mean).astype(m.dtype)
        return m, (b2 * v + (1 - b2) * (mean * mean)).astype(v.dtype)

    def direction(m: Any, v: Any, rate: Any, c1: Any, c2: Any) -> Any:
        return rate * (m * c1 / (jnp.sqrt(v * c2 + eps_root) + eps))

    def apply(mean: Any, w: Any, m: Any, v: Any, *scalars: Any) -> tuple[Any, ...]:
        m, v = moments(mean, m, v)
        return (w + direction(m, v, *scalars)).astype(w.dtype), m, v

    def propose(mean: Any, m: Any, v: Any, *scalars: Any) -> tuple[Any, ...]:
        m, v = moments(mean, m, v)
        return direction(m, v, *scalars).astype(m.dtype), m, v

    fused_apply = FlatUpdate(apply, ("w",), ("m", "v"), axis_name, mesh)
    fused_propose = FlatUpdate(propose, (), ("m", "v"), axis_name, mesh)

    def init(params: Any) -> AdamState:
        zeros = slices_like(params, axis_name, mesh)
        return AdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.copy, zeros))

    def scalars(count: jax.Array) -> tuple[jax.Array, ...]:
        rate = learning_rate(count - 1) if callable(learning_rate) else learning_rate
        steps = count.astype(jnp.float32)
        return (
            -jnp.asarray(rate, jnp.float32),
            1 / (1 - jnp.float32(b1) ** steps),
            1 / (1 - jnp.float32(b2) ** steps),
        )

    def next_count(state: AdamState) -> jax.Array:
        if not isinstance(cast(Any, state), AdamState):
            raise LayoutError(
                "OPTIM_ARGUMENT",
                f"the state is {type(state).__name__}, not what this optimizer's init returns",
                fixes=("state = tx.init(params); optax's own states are not sliced",),
            )
        return state.count + 1

    def step(grads: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        count = next_count(state)
        params, mu, nu = fused_apply(grads, (params,), (state.mu, state.nu), scalars(count))
        return params, AdamState(count, mu, nu)

    def update(
        grads: Any, state: AdamState, params: Any = None, **extra: Any
    ) -> tuple[Any, AdamState]:
        del params, extra
        count = next_count(state)
        updates, mu, nu = fused_propose(grads, (), (state.mu, state.nu), scalars(count))
        return updates, AdamState(count, mu, nu)

    def specs() -> AdamState:
        sliced = PartitionSpec(axis_name)
        return AdamState(PartitionSpec(), sliced, sliced)  # pyright: ignore[reportArgumentType]

    return FusedTransformation.make(init, update, step, specs)
