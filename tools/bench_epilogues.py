"""What follows a model-parallel product, fused with its all-reduce, against XLA.

`python tools/bench_epilogues.py` times, in turns on two CPU ranks, an all-reduce with its bias,
GeLU, dropout and residual, and one with dropout, residual and RMSNorm: one kernel, and the same
function in a jitted `jax.shard_map`, as a call and several in a program. Both donate the
residual, which each result replaces.
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
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import Partial, Replicated
from jaxcc.cli.demo.measure import Carried, compare
from jaxcc.cli.demo.ranks import group

KEEP = 0.9
STEPS = 4


def dropout(x: Any, key: Any) -> Any:
    """Zeros, with probability 1 - KEEP."""
    return jnp.where(jax.random.bernoulli(key, KEEP, x.shape), x / KEEP, 0)


def gelu_dropout_residual(y: Any, b: Any, r: Any, key: Any) -> Any:
    """Per rank: y, its term, and r are f32[batch, sequence, hidden], b f32[hidden]."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    return jaxcc.name(dropout(jax.nn.gelu(total + b), key) + r, "out")


def dropout_residual_rms_norm(y: Any, b: Any, r: Any, key: Any) -> Any:
    """The same, but for the norm along the last dimension, with the weight b."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    h = dropout(total, key) + r
    return jaxcc.name(h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * b, "out")


def gelu_residual(y: Any, b: Any, r: Any, key: Any) -> Any:
    """Without dropout."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    return jaxcc.name(jax.nn.gelu(total + b) + r, "out")


def rms_norm(y: Any, b: Any, r: Any, key: Any) -> Any:
    """Without dropout."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    h = total + r
    return jaxcc.name(h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * b, "out")


EPILOGUES: tuple[Callable[..., Any], ...] = (
    gelu_dropout_residual,
    dropout_residual_rms_norm,
    gelu_residual,
    rms_norm,
)


def several(f: Any, given: list[tuple[Any, Any, Any]]) -> Callable[[Any], Any]:
    """`f` of a residual that each result replaces: one call, or a program of several, each with
    terms and a key of its own."""
    if len(given) == 1:
        ((y, b, key),) = given
        return lambda r: f(y, b, r, key)

    def steps(given: Any, r: Any) -> Any:
        for y, b, key in given:
            r = f(y, b, r, key)
        return r

    program = jax.jit(steps, donate_argnums=1)
    return lambda r: program(given, r)


def main() -> None:
    """Prints both sides' medians and the ratio with its quartiles."""
    parser = argparse.ArgumentParser(description="Fused epilogues of an all-reduce, against XLA")
    parser.add_argument("--shape", type=int, nargs=3, default=(8, 256, 2048), metavar="N")
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    mesh, rng = group(2, "tp"), np.random.default_rng(0)
    layouts = (Partial(), Replicated, Replicated, Replicated)
    over = jax.sharding.NamedSharding(mesh, P("tp"))
    b = jaxcc.put(jnp.ones(given.shape[-1]), Replicated, mesh)
    each = [
        (
            jax.device_put(rng.standard_normal((2, *given.shape), dtype=np.float32), over),
            b,
            jaxcc.put(jax.random.key(step), Replicated, mesh),
        )
        for step in range(STEPS)
    ]
    key = each[0][-1]
    r = rng.standard_normal(given.shape, dtype=np.float32)
    for f in EPILOGUES:
        typed = jaxcc.typed(mesh=mesh, in_layouts=layouts, out_layouts=Replicated)(f)
        schedule = typed.schedule(jax.ShapeDtypeStruct(r.shape, r.dtype), b, r, key)
        moved = schedule.split("total", dim=0).reorder("total.gather", after="out")
        fused = moved.fuse("total.scatter", ..., "total.gather", name="fused")
        ours = fused.compile("host", donate=["r"])

        def per_rank(y: Any, b: Any, r: Any, key: Any, f: Any = f) -> Any:
            return f(y[0], b, r, key)

        mapped = jax.shard_map(
            per_rank, mesh=mesh, in_specs=(P("tp"), P(), P(), P()), out_specs=P()
        )
        xla = jax.jit(mapped, donate_argnums=2)
        for way, steps in (("a call", 1), ("in a program", STEPS)):
            times = compare(
                Carried(several(ours, each[:steps]), jaxcc.put(r, Replicated, mesh)),
                Carried(several(xla, each[:steps]), jaxcc.put(r, Replicated, mesh)),
                rounds=given.rounds,
            )
            ours_ms, xla_ms = (side.median * 1e3 / steps for side in (times.jaxcc, times.xla))
            ratio = times.speedup
            print(
                f"{f.__name__:26} {r.nbytes >> 20} MiB, {way}: jaxcc {ours_ms:6.2f} ms, XLA "
                f"{xla_ms:6.2f} ms: {ratio.median:.2f}x [{ratio.low:.2f}-{ratio.high:.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
