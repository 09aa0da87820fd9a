#!/usr/bin/env python3
"""All-reduces between two processes: jaxcc's shared memory against gloo or mpi4jax, in one run.

    python -m jaxcc run -n 2 --bind none tools/bench_processes.py
    mpirun -n 2 python tools/bench_processes.py --peer mpi

For each size it prints the medians of interleaved rounds: of one call of a compiled program, and of
one all-reduce in a loop within a program. Of a call jaxcc's operand is donated, and its result the
next one; its peers, which would copy that first, get the same operand each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import comm

type Reduce = Callable[[Any], Any]

PEERS: dict[str, Reduce] = {
    "gloo": lambda v: lax.psum(v, "r"),
    "mpi": lambda v: comm.all_reduce(v, "r", backend="mpi"),
}
SIZES = [1 << shift for shift in (10, 14, 16, 17, 18, 20, 22, 24, 26)]
ROUNDS = 9
SECONDS = 0.05  # of one round, about


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="bytes (1 KiB to 64 MiB)")
    parser.add_argument("--peer", choices=tuple(PEERS), default="gloo", help="(gloo)")
    options = parser.parse_args()
    jaxcc.init()
    peer = options.peer
    backends = {peer: PEERS[peer], "jaxcc": lambda v: comm.all_reduce(v, "r", backend="host")}
    mesh = jax.make_mesh((jax.device_count(),), ("r",), axis_types=(AxisType.Auto,))
    if jax.process_index() == 0:
        print(f"{'bytes':>9} {peer + ' call':>10} {'jaxcc':>8} {'x':>12}", end="")
        print(f" {peer + ' loop':>12} {'jaxcc':>8} {'x':>12}")
    for size in options.sizes:
        cells = [_compare(mesh, backends, size, loop) for loop in (False, True)]
        if jax.process_index() == 0:
            print(f"{size:>9} " + "  ".join(cells), flush=True)


def _compare(mesh: Any, backends: dict[str, Reduce], size: int, loop: bool) -> str:
    """Medians in microseconds, the peer's first, and the ratio with its spread."""
    # Zeros stay what they are, however often they are summed.
    x = np.zeros((mesh.size, size // 4), np.float32)
    over = NamedSharding(mesh, P("r"))
    inner = max(4, min(1000, (1 << 24) // size)) if loop else 1
    # The peers' operands would be copied first.
    calls = {name: _program(mesh, f, inner, donate=name == "jaxcc") for name, f in backends.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    arrays = {name: jax.make_array_from_callback(x.shape, over, lambda i: x[i]) for name in calls}
    for name, call in calls.items():
        result = call(arrays[name]).block_until_ready()
        arrays[name] = result if name == "jaxcc" else arrays[name]
    peer = next(iter(calls))
    start = time.perf_counter()
    calls[peer](arrays[peer]).block_until_ready()
    repeat = _agreed(mesh, SECONDS / (time.perf_counter() - start))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeat):
                result = call(arrays[name]).block_until_ready()
                arrays[name] = result if name == "jaxcc" else arrays[name]
            times[name].append((time.perf_counter() - start) / repeat / inner * 1e6)
    theirs, ours = (np.asarray(times[name]) for name in calls)
    ratios = np.sort(theirs / ours)
    low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
    median = np.median(theirs) / np.median(ours)
    return (
        f"{np.median(theirs):>10.1f} {np.median(ours):>8.1f} {median:>4.1f} [{low:.1f}-{high:.1f}]"
    )


def _program(mesh: Any, f: Reduce, inner: int, *, donate: bool) -> Any:
    def per_rank(v: Any) -> Any:
        def step(_: Any, y: Any) -> Any:
            return f(y) * np.float32(0.5)

        return lax.fori_loop(0, inner, step, v) if inner > 1 else f(v)

    spec = P("r")
    mapped = jax.shard_map(per_rank, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=(0,) if donate else ())


def _agreed(mesh: Any, times: float) -> int:
    """How often to call in a round, the same on all ranks."""
    mine = np.full((mesh.size, 1), times, np.float32)
    spec = NamedSharding(mesh, P("r"))
    placed = jax.make_array_from_callback(mine.shape, spec, lambda i: mine[i])
    least = jax.jit(
        jax.shard_map(lambda v: lax.pmin(v, "r"), mesh=mesh, in_specs=P("r"), out_specs=P("r"))
    )(placed)
    return int(max(1, min(200, float(np.asarray(least.addressable_data(0))[0, 0]))))


if __name__ == "__main__":
    main()
