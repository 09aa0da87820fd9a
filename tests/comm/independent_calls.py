"""Independent 1 MiB all-reduces and their gradients, on ranks that come to each at other times."""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcc import comm

CALLS = 16
SIZE = 1 << 18


def passes(ranks: int) -> None:
    mesh = jax.make_mesh((ranks,), ("r",), axis_types=(AxisType.Auto,))

    def work(x: jax.Array, k: int) -> jax.Array:
        much = (jax.lax.axis_index("r") + k) % ranks
        delay = jax.lax.fori_loop(0, 4 * much, lambda _, y: jnp.sin(y), jax.lax.stop_gradient(x))
        return x * (k + 1) + 0 * jax.lax.stop_gradient(delay)

    def body(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            sums = [
                comm.all_reduce(work(x, k), "r", backend="host", mesh=mesh) for k in range(CALLS)
            ]
            return jnp.stack(sums).sum(), jnp.stack(sums)[:, :4]

        gradient, sums = jax.grad(loss, has_aux=True)(x)
        return gradient[:4], sums

    program = jax.shard_map(
        body, mesh=mesh, in_specs=P("r"), out_specs=(P("r"), P()), check_vma=False
    )
    x = np.random.default_rng(7).normal(size=(ranks, SIZE)).astype(np.float32)
    for _ in range(3):
        gradient, sums = jax.jit(program)(x.reshape(-1))
        factors = np.arange(1, CALLS + 1)
        wanted = factors[:, None] * x.astype(np.float64).sum(0)[:4]
        np.testing.assert_allclose(sums, wanted, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(gradient, np.full(4 * ranks, ranks * factors.sum()), rtol=1e-6)
    print(f"{ranks} ranks passed", flush=True)


if __name__ == "__main__":
    for ranks in (2, 4):
        passes(ranks)
    sys.exit(0)
