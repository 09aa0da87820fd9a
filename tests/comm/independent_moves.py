"""Independent collectives of 1 MiB on ranks that come to each at other times, of up to 8 ranks."""

import os
import sys
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcc import comm

ROWS, COLUMNS = 512, 512

CALLS: list[tuple[Callable, Callable]] = [
    (comm.all_gather, lambda x: np.concatenate(x)),
    (comm.reduce_scatter, lambda x: x.sum(0)),
    (comm.all_to_all, lambda x: x.reshape(len(x), len(x), -1).swapaxes(0, 1).reshape(-1)),
    (comm.broadcast, lambda x: x[0]),
    (comm.reduce, lambda x: x.sum(0)),
    (comm.gather, lambda x: np.concatenate(x)),
    (comm.scatter, lambda x: x[0]),
    (comm.all_reduce, lambda x: x.sum(0)),
]
OUT = {"all_gather": P(), "broadcast": P(), "all_reduce": P()}


def passes(ranks: int) -> None:
    mesh = jax.make_mesh(
        (ranks,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[:ranks]
    )

    def body(x: jax.Array) -> list[jax.Array]:
        made = []
        for k, (collective, _) in enumerate(CALLS):
            much = (jax.lax.axis_index("r") + k) % ranks
            late = jax.lax.fori_loop(0, 2 * much, lambda _, y: jnp.sin(y), x)
            made.append(collective(x * (k + 1) + 0 * late, "r", backend="host", mesh=mesh))
        return made

    specs = [OUT.get(collective.__name__, P("r")) for collective, _ in CALLS]
    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=specs, check_vma=False)
    )
    x = np.random.default_rng(7).normal(size=(ranks * ROWS, COLUMNS)).astype(np.float32)
    for _ in range(3):
        results = program(x)
        for k, ((collective, numpy), actual) in enumerate(zip(CALLS, results, strict=True)):
            given = (k + 1) * x.astype(np.float64).reshape(ranks, ROWS * COLUMNS)
            wanted = numpy(given).reshape(-1)
            got = np.asarray(actual).reshape(-1)
            # What others than the root hold are zeros.
            np.testing.assert_allclose(
                got[: wanted.size], wanted, rtol=1e-5, atol=1e-4, err_msg=collective.__name__
            )
            assert not got[wanted.size :].any()
    print(f"{ranks} ranks passed", flush=True)


if __name__ == "__main__":
    for ranks in (2, 4, 8):
        passes(ranks)
    sys.exit(0)
