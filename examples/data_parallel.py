"""Data-parallel training: Adam with its moments sliced over the ranks, in one fused call.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/data_parallel.py
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcc

mesh = jax.make_mesh((2,), ("dp",), axis_types=(AxisType.Auto,))
adam = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ params["up"])
    return jnp.mean((hidden @ params["down"] - y) ** 2)


def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
    """On one rank: its own gradients of its own part of the batch, then one update for all."""
    own = jax.lax.pcast(params, "dp", to="varying")
    value, gradients = jax.value_and_grad(loss)(own, x, y)
    params, state = adam.step(gradients, state, params)
    return params, state, jax.lax.pmean(value, "dp")


def main() -> None:
    init = jax.shard_map(adam.init, mesh=mesh, in_specs=(P(),), out_specs=adam.specs())
    train = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), adam.specs(), P("dp"), P("dp")),
        out_specs=(P(), adam.specs(), P()),
    )
    train = jax.jit(train, donate_argnums=(0, 1))

    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "up": 0.1 * jax.random.normal(keys[0], (8, 64)),
        "down": 0.1 * jax.random.normal(keys[1], (64, 1)),
    }
    x = jax.random.normal(keys[2], (128, 8))
    y = jnp.sum(x * x, axis=1, keepdims=True)
    state = init(params)
    for number in range(101):
        params, state, value = train(params, state, x, y)
        if number % 20 == 0:
            print(f"step {number:3}  loss {value:.4f}")


if __name__ == "__main__":
    main()
