"""Fused optimizer steps against optax under XLA: `python tools/bench_optim.py --mib 64`.

Both sides get the ranks' gradients, average them and step; parameters and state are donated. XLA
runs optax with a `pmean` of the gradients and the state on every rank.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

import jaxcc
from jaxcc.cli.demo.measure import Carried, Spread, compare
from jaxcc.cli.demo.ranks import group, place

AXIS = "dp"
ALL, EACH = PartitionSpec(), PartitionSpec(AXIS)

BY_OPTAX: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(1e-3, momentum=0.9),
    "adam": lambda: optax.adam(1e-3),
    "adamw": lambda: optax.adamw(1e-3),
    "clip": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "lamb": lambda: optax.lamb(1e-3),
}


def program(mesh: Mesh, step: Any, state_specs: Any) -> Any:
    """Compiled `((params, state), gradients) -> (params, state)`, the first donated."""

    def per_rank(carry: Any, gradients: Any) -> Any:
        return step(gradients, carry[1], carry[0])

    specs = (ALL, state_specs)
    mapped = jax.shard_map(per_rank, mesh=mesh, in_specs=(specs, EACH), out_specs=specs)
    return jax.jit(mapped, donate_argnums=0)


def started(mesh: Mesh, init: Any, state_specs: Any, params: Any) -> Any:
    """Params and state on the mesh, in buffers of their own."""
    held = place(params, mesh, ALL)
    mapped = jax.shard_map(init, mesh=mesh, in_specs=(ALL,), out_specs=state_specs)
    return held, jax.jit(mapped)(held)


def on_every_rank(tx: Any) -> Any:
    """All-reduce, then optax on every rank."""

    def step(gradients: Any, state: Any, params: Any) -> Any:
        updates, state = tx.update(jax.lax.pmean(gradients, AXIS), state, params)
        return optax.apply_updates(params, updates), state

    return step


def main() -> None:
    """Prints milliseconds, quartiles and ratios for each optimizer."""
    parser = argparse.ArgumentParser(description="Fused optimizer steps")
    parser.add_argument("--mib", type=int, default=64, help="MiB of f32 parameters (64)")
    parser.add_argument("--rounds", type=int, default=15, help="timed turns (15)")
    parser.add_argument("names", nargs="*", default=list(BY_OPTAX), help="optimizers (all)")
    given = parser.parse_args()
    mesh = group(2, AXIS)
    rng = np.random.default_rng(0)
    size = given.mib << 18
    params = {"w": rng.standard_normal(size, dtype=np.float32)}
    gradients = place({"w": rng.standard_normal(2 * size, dtype=np.float32)}, mesh, EACH)
    for name in given.names:
        tx = BY_OPTAX[name]()
        fused = jaxcc.optim.fuse(tx, axis_name=AXIS, mesh=mesh)
        ours = program(mesh, fused.step, fused.specs())
        theirs = program(mesh, on_every_rank(tx), ALL)
        carry = started(mesh, fused.init, fused.specs(), params)
        their_carry = started(mesh, tx.init, ALL, params)
        found = compare(
            Carried(lambda held, f=ours: f(held, gradients), carry),
            Carried(lambda held, f=theirs: f(held, gradients), their_carry),
            rounds=given.rounds,
        )
        ours_ms, theirs_ms = spread_text(found.jaxcc, 1e3), spread_text(found.xla, 1e3)
        ratio = spread_text(found.speedup)
        print(f"{name:6} {ours_ms} ms against {theirs_ms} ms: {ratio}", flush=True)


def spread_text(spread: Spread, unit: float = 1.0, digits: int = 1) -> str:
    """Median and quartiles."""
    low, median, high = (f"{unit * x:.{digits}f}" for x in (spread.low, spread.median, spread.high))
    return f"{median} [{low}-{high}]"


if __name__ == "__main__":
    main()
