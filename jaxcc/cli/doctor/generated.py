"""A generated kernel, compiled for this machine and run; and one compiled for CUDA."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import jaxcc
from jaxcc import Replicated, Sliced
from jaxcc.cli.doctor._probe import FAILS, OK, Answer
from jaxcc.codegen import OutRole, Role, compile_cuda, generate

_CLOSE = 1e-5


def _tail(total: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.gelu(total + bias)


def on_host(ranks: int) -> Answer:
    """A reduce-scatter, bias, GeLU and all-gather in one kernel, against the same on one rank.

    Raises:
      CodegenError, BackendError: no kernel can be compiled, or none can run.
    """
    mesh = jax.make_mesh(
        (ranks,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[:ranks]
    )

    @jaxcc.typed(mesh=mesh, in_layouts=(Sliced(1), Sliced(0), Replicated), out_layouts=Replicated)
    def layer(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        total = jaxcc.name(jax.lax.psum(x @ w, "r"), "total")
        return jaxcc.name(_tail(total, b), "out")

    random = np.random.default_rng(0)
    sizes = ((8 * ranks, 64 * ranks), (64 * ranks, 32), (32,))
    args = [random.standard_normal(size, np.float32) for size in sizes]
    schedule = layer.schedule(*args).split("total").reorder("total.gather", after="out")
    schedule = schedule.fuse("total.scatter", ..., "total.gather", name="fused")
    start = time.perf_counter()
    fused = schedule.compile(backend="host")
    seconds = time.perf_counter() - start
    gap = float(np.abs(fused(*args) - layer.reference(*args)).max())
    facts = {"compile_s": seconds, "difference": gap}
    if not gap < _CLOSE * 64 * ranks:
        return Answer(
            FAILS, f"the kernel's result differs by {gap:.2g} from one rank's", facts=facts
        )
    return Answer(OK, f"compiled in {seconds:.2f} s, run by {ranks} ranks, right", facts=facts)


def for_cuda(arch: str) -> Answer:
    """The same tail as CUDA's machine code; it is not run.

    Raises:
      CodegenError: there is no NVRTC, or it fails.
    """
    shape = (16, 32)
    avals = [jax.ShapeDtypeStruct(size, jnp.float32) for size in (shape, shape[1:])]
    closed = jax.make_jaxpr(_tail)(*avals)
    roles = (Role.REDUCE, Role.WHOLE)
    kernel = generate(closed.jaxpr, (), roles, (OutRole.GATHER,), shape=shape, ranks=4)
    size = len(compile_cuda(kernel, arch).cubin)
    return Answer(OK, f"compiled for {arch} ({size} bytes); jaxcc runs none on GPUs yet")
