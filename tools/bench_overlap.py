"""MatMul, all-reduce, bias, dropout and residual: how much of what is not the product is hidden.

`python tools/bench_overlap.py` times, in turns on two CPU ranks, the product alone, the program
under XLA, its fused schedule and the fused one overlapped with the product, in several chunks.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxcc
from jaxcc import Replicated, Sliced
from jaxcc.cli.demo.ranks import group
from jaxcc.schedule.tuner import seconds

KEEP = 0.9


def tail(x: Any, w: Any, b: Any, r: Any, key: Any) -> Any:
    """The end of a Megatron layer's half."""
    total = jaxcc.name(jax.lax.psum(x @ w, "tp"), "total")
    kept = jax.random.bernoulli(key, KEEP, total.shape)
    return jaxcc.name(jnp.where(kept, (total + b) / KEEP, 0) + r, "out")


def schedules(source: Any, chunks: list[int]) -> dict[str, Any]:
    """The schedule as it is written, fused, and overlapped."""
    split = source.split("total", dim=0).reorder("total.gather", after="out")
    fused = split.fuse("total.scatter", ..., "total.gather", name="fused")
    product = next(op.name for op in source.program.ops if op.kind == "dot_general")
    found = {"xla": source, "fused": fused}
    for n in chunks:
        for dim in (0, 1):
            try:
                found[f"{n} chunks of {('B', 'S')[dim]}"] = fused.overlap(
                    product, "fused", chunks=n, dim=dim
                )
            except jaxcc.ScheduleError as error:
                print(f"{n} chunks of {('B', 'S')[dim]}: {error.findings[0].what}")
    return found


def main() -> None:
    """Prints medians, quartiles and what share of the time beside the product is gone."""
    parser = argparse.ArgumentParser(description="Overlap of a product with its all-reduce")
    parser.add_argument("--shape", type=int, nargs=3, default=(8, 256, 2048), metavar="N")
    parser.add_argument("--chunks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    batch, length, hidden = given.shape
    mesh, rng = group(2, "tp"), np.random.default_rng(0)
    shapes = [given.shape, (hidden, hidden), (hidden,), given.shape]
    args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]
    layouts = (Sliced(2), Sliced(0), Replicated, Replicated, Replicated)
    typed = jaxcc.typed(mesh=mesh, in_layouts=layouts, out_layouts=Replicated)(tail)
    key = jax.random.key(0)
    placed = [jaxcc.put(a, one, mesh) for a, one in zip((*args, key), layouts, strict=True)]
    ways: dict[str, Callable[[], Any]] = {}
    specs = (PartitionSpec(None, None, "tp"), PartitionSpec("tp"))
    alone = jax.shard_map(
        jnp.matmul, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("tp"), check_vma=False
    )
    product = jax.jit(alone)
    ways["product alone"] = lambda: product(*placed[:2])
    for name, schedule in schedules(typed.schedule(*args, key), given.chunks).items():
        compiled = schedule.compile("xla" if name == "xla" else "host")
        ways[name] = lambda f=compiled: f(*placed)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            # Not counted: this call pays for what the way before it left.
            jax.block_until_ready(way())
            times[name].append(1e3 * seconds(way))
    low, mid, high = (np.percentile(list(times.values()), q, axis=1) for q in (25, 50, 75))
    beside = np.asarray(times["xla"]) - np.asarray(times["product alone"])
    for at, name in enumerate(times):
        hidden_ = (np.asarray(times["xla"]) - np.asarray(times[name])) / beside
        share = f"{100 * np.median(hidden_):.0f} % gone" if name != "xla" else ""
        print(f"{name:16} {mid[at]:7.1f} [{low[at]:.1f}-{high[at]:.1f}] ms  {share}")


if __name__ == "__main__":
    main()
