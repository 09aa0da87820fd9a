"""What follows a model-parallel product, fused with its all-reduce, against XLA.

`python tools/bench_epilogues.py` times, in turns on two CPU ranks, an all-reduce with its bias,
GeLU, dropout and residual, and one with dropout, residual and RMSNorm: one kernel, and the same
function in a jitted `jax.shard_map`. Both donate the residual, which each result replaces.
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


def main() -> None:
    """Prints both sides' medians and the ratio with its quartiles."""
    parser = argparse.ArgumentParser(description="Fused epilogues of an all-reduce, against XLA")
    parser.add_argument("--shape", type=int, nargs=3, default=(8, 256, 2048), metavar="N")
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    mesh, rng = group(2, "tp"), np.random.default_rng(0)
    terms = rng.standard_normal((2, *given.shape), dtype=np.float32)
    layouts = (Partial(), Replicated, Replicated, Replicated)
    y = jax.device_put(terms, jax.sharding.NamedSharding(mesh, P("tp")))
    r = rng.standard_normal(given.shape, dtype=np.float32)
    b, key = (
        jaxcc.put(jnp.ones(given.shape[-1]), Replicated, mesh),
        jaxcc.put(jax.random.key(0), Replicated, mesh),
    )
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
        times = compare(
            Carried(lambda r, f=ours: f(y, b, r, key), jaxcc.put(r, Replicated, mesh)),
            Carried(lambda r, f=xla: f(y, b, r, key), jaxcc.put(r, Replicated, mesh)),
            rounds=given.rounds,
        )
        ours_ms, xla_ms = times.jaxcc.median * 1e3, times.xla.median * 1e3
        ratio = times.speedup
        print(
            f"{f.__name__:26} {r.nbytes >> 20} MiB: jaxcc {ours_ms:6.2f} ms, XLA {xla_ms:6.2f} ms: "
            f"{ratio.median:.2f}x [{ratio.low:.2f}-{ratio.high:.2f}]",
            flush=True,
        )


if __name__ == "__main__":
    main()
