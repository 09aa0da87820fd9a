"""Independent all-reduces of 1 MiB on ranks with unequal work, for test_order.py to run.

XLA's CPU backend runs such calls by readiness of their operands, so without the order buffer
ranks come to them in different orders and wait for each other forever.
"""

import os
import sys

RANKS, COUNT = int(sys.argv[1]), int(sys.argv[2])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from jaxcc.runtime import Tensor, fused_call, groups_of, new_order  # noqa: E402

SIZE = 1 << 18
mesh = Mesh(np.array(jax.devices()), ("x",))
groups = groups_of(mesh, "x")


def per_rank(x: jax.Array) -> jax.Array:
    work = 2 * (1 + lax.axis_index("x"))
    order = new_order()
    results = []
    for i in range(COUNT):
        a = jnp.reshape(jnp.roll(x[0], i), (512, 512))
        b = lax.fori_loop(0, work * ((i * 7) % 3), lambda _, b: jnp.tanh(b), a)
        y = (a + 0 * b).reshape(-1)
        tensor = Tensor((y,), (jax.ShapeDtypeStruct(y.shape, y.dtype),), 1, SIZE)
        order, ((total,),) = fused_call(
            "all_reduce.sum.f32", groups, [tensor], order, op=f"all_reduce {i}"
        )
        results.append(total)
    return jnp.stack(results)


x = np.random.default_rng(0).normal(size=(RANKS, SIZE)).astype(np.float32)
run = jax.jit(jax.shard_map(per_rank, mesh=mesh, in_specs=P("x"), out_specs=P()))
total = x.astype(np.float64).sum(0)
for _ in range(2):
    y = np.asarray(run(x))
    for i in range(COUNT):
        np.testing.assert_allclose(y[i], np.roll(total, i), atol=1e-5)
