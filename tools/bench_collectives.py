"""jaxcc's collectives against XLA's: `python tools/bench_collectives.py --ranks 2 all_gather`.

Each is run again and again inside one program, on what the step before left, plus a number that
comes from its result: what a call costs once it is compiled. Both backends take turns; where others
use the machine, look at the ratios. `--json` prints parts of a tuning table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")

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


def program(name: str, backend: str, mesh: Mesh, steps: int) -> Callable[[jax.Array], jax.Array]:
    """`steps` of a collective, on every rank's row of an array."""
    ranks = mesh.size
    parameters: dict[str, Any] = {}
    if name == "ppermute":
        parameters["perm"] = [(rank, (rank + 1) % ranks) for rank in range(ranks)]

    def step(_: int, x: jax.Array) -> jax.Array:
        y = getattr(comm, name)(x, "r", backend=backend, mesh=mesh, **parameters)
        # Never so, which XLA does not know: the operand is the same in every step.
        return x + (y.reshape(-1)[0] == NEVER).astype(x.dtype)

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, step, x[0])[None]

    specs = P("r")
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False))


def microseconds(run: Callable[[jax.Array], jax.Array], x: jax.Array, steps: int) -> float:
    """Of one step."""
    begin = time.perf_counter()
    jax.block_until_ready(run(x))
    return (time.perf_counter() - begin) / steps * 1e6


def measure(name: str, mesh: Mesh, nbytes: int, dtype: str, rounds: int) -> dict[str, list[float]]:
    """Each backend's times of a step, taken in turns."""
    steps = SIZES[nbytes]
    size = nbytes // jnp.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(1, 3, (mesh.size, size)).astype(jnp.dtype(dtype))
    given = jax.device_put(x, jax.sharding.NamedSharding(mesh, P("r")))
    runs = {backend: program(name, backend, mesh, steps) for backend in BACKENDS}
    for run in runs.values():
        jax.block_until_ready(run(given))
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, run in runs.items():
            times[backend].append(microseconds(run, given, steps))
    return times


def main() -> None:
    """Prints, for each collective and size, both backends' medians and the ratio with quartiles."""
    parser = argparse.ArgumentParser(description="Collectives of jaxcc.comm, host against xla")
    parser.add_argument("--ranks", type=int, default=2, help="CPU devices, up to 16 (2)")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns (15)")
    parser.add_argument("--dtype", default="float32", help="of the operands (float32)")
    parser.add_argument("--json", action="store_true", help="print rows of a tuning table")
    parser.add_argument("names", nargs="*", default=list(NAMES), help="collectives (all)")
    given = parser.parse_args()
    mesh = jax.make_mesh(
        (given.ranks,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[: given.ranks]
    )
    for name in given.names:
        rows: list[dict[str, Any]] = []
        for nbytes in SIZES:
            times = measure(name, mesh, nbytes, given.dtype, given.rounds)
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
