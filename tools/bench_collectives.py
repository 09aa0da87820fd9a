"""jaxcc's collectives against XLA's: `python tools/bench_collectives.py --ranks 2 all_gather`.

Each is run again and again inside one program, on what the step before left, which is its result
(over the number of ranks, if that was a sum): what a call costs once it is compiled. With `--keep`,
and where the result has another shape, it is the operand of the step before, plus a number that
comes from the result. Both backends take turns; where others use the machine, look at the ratios.
`--json` prints parts of a tuning table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxcc import comm

BACKENDS = ("host", "xla")
# Bytes of one rank's operand, and steps in a program: enough that ranks which wake on one core have
# gone apart.
SIZES = {1 << 10: 2000, 1 << 16: 500, 1 << 20: 100, 1 << 24: 8}
# More than any result has: operands are 1 and 2.
NEVER = 77
NAMES = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ppermute"),
    *("broadcast", "reduce", "gather", "scatter"),
)


def program(
    name: str, backend: str, mesh: Mesh, steps: int, keep: bool
) -> Callable[[jax.Array], jax.Array]:
    """`steps` of a collective, on every rank's row of an array."""
    ranks = mesh.size
    parameters: dict[str, Any] = {}
    if name == "ppermute":
        parameters["perm"] = [(rank, (rank + 1) % ranks) for rank in range(ranks)]

    def step(_: int, x: jax.Array) -> jax.Array:
        y = getattr(comm, name)(x, "r", backend=backend, mesh=mesh, **parameters)
        if y.shape == x.shape and not keep:
            return (y / ranks).astype(x.dtype) if name in ("all_reduce", "reduce") else y
        # Never so, which XLA does not know: the operand is the same in every step.
        return x + (y.reshape(-1)[0] == NEVER).astype(x.dtype)

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, step, x[0])[None]

    specs = P("r")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def measure(
    name: str, mesh: Mesh, nbytes: int, dtype: str, rounds: int, keep: bool
) -> dict[str, list[float]]:
    """Each backend's microseconds for a step, taken in turns."""
    steps = SIZES[nbytes]
    size = nbytes // jnp.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(1, 3, (mesh.size, size)).astype(jnp.dtype(dtype))
    over = jax.sharding.NamedSharding(mesh, P("r"))
    runs = {backend: program(name, backend, mesh, steps, keep) for backend in BACKENDS}
    arrays = {backend: run(jax.device_put(x, over)) for backend, run in runs.items()}
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, run in runs.items():
            jax.block_until_ready(arrays)
            begin = time.perf_counter()
            arrays[backend] = jax.block_until_ready(run(arrays[backend]))
            times[backend].append((time.perf_counter() - begin) / steps * 1e6)
    return times


def main() -> None:
    """Prints, for each collective and size, both backends' medians and the ratio with quartiles."""
    parser = argparse.ArgumentParser(description="Collectives of jaxcc.comm, host against xla")
    parser.add_argument("--ranks", type=int, default=2, help="CPU devices, up to 16 (2)")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns (15)")
    parser.add_argument("--dtype", default="float32", help="of the operands (float32)")
    parser.add_argument("--keep", action="store_true", help="the operand is read again afterwards")
    parser.add_argument("--json", action="store_true", help="print rows of a tuning table")
    parser.add_argument("names", nargs="*", default=list(NAMES), help="collectives (all)")
    given = parser.parse_args()
    # Not more: XLA has a thread for each, and divides its work among them.
    devices = f"--xla_force_host_platform_device_count={given.ranks}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
    mesh = jax.make_mesh(
        (given.ranks,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[: given.ranks]
    )
    for name in given.names:
        rows: list[dict[str, Any]] = []
        for nbytes in SIZES:
            times = measure(name, mesh, nbytes, given.dtype, given.rounds, given.keep)
            medians = {backend: statistics.median(times[backend]) for backend in BACKENDS}
            ratios = [x / h for h, x in zip(times["host"], times["xla"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            bound = None if nbytes == max(SIZES) else nbytes
            rows += [
                {"max_bytes": bound, "backend": backend, "us": float(f"{medians[backend]:.3g}")}
                for backend in sorted(BACKENDS, key=lambda backend: medians[backend])
            ]
            if not given.json:
                print(
                    f"{name:15} {given.ranks} ranks {nbytes >> 10:6} KiB: host "
                    f"{medians['host']:9.1f} us, xla {medians['xla']:9.1f} us: "
                    f"{middle:.2f}x [{low:.2f}-{high:.2f}]",
                    flush=True,
                )
        if given.json:
            print(json.dumps({name: {str(given.ranks): rows}}), flush=True)


if __name__ == "__main__":
    main()
