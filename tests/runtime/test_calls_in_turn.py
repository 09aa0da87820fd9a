"""Kernels that do not depend on one another come in one order on all ranks, whoever calls them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from oracles import mesh_of

import jaxcc
from jaxcc import Local, Replicated

P = PartitionSpec
SHAPE = (96, 96)
STEP = Callable[[Any, Any], Any]


def by_optimizer(mesh: Any) -> STEP:
    tx: Any = jaxcc.optim.sgd(1e-2, axis_name="dp", mesh=mesh)
    state = tx.init(jnp.ones(SHAPE))
    return lambda p, g: tx.step(g, state, p)[0]


def by_schedule(mesh: Any) -> STEP:
    def step(p: Any, g: Any) -> Any:
        total = jaxcc.name(lax.psum(g, "dp"), "total")
        return jaxcc.name(p - 5e-3 * total, "new")

    typed = jaxcc.typed(mesh=mesh, in_layouts=(Replicated, Local), out_layouts=Replicated)(step)
    whole = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    fused = typed.schedule(whole, whole).fuse("total", ..., "new", name="fused")
    return fused.compile("host").local


def by_collective(mesh: Any) -> STEP:
    return lambda p, g: p - 5e-3 * jaxcc.comm.all_reduce(g, "dp", backend="host", mesh=mesh)


WAYS = [by_optimizer, by_schedule, by_collective]


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_two_calls_of_one_program_are_not_mixed_up(
    first: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is late for another of the two."""
    monkeypatch.setenv("JAXCC_TIMEOUT_S", "30")
    mesh = mesh_of(2, "dp")
    one, other = first(mesh), second(mesh)

    def late(x: Any, turns: Any) -> Any:
        return 0 * lax.fori_loop(0, turns, lambda _, v: jnp.tanh(v @ v), x).mean()

    @jax.jit
    @partial(
        jax.shard_map, mesh=mesh, in_specs=(P("dp"), P(), P()), out_specs=(P(), P()),
        check_vma=False,
    )  # fmt: skip
    def run(x: Any, p: Any, q: Any) -> Any:
        rank = lax.axis_index("dp")
        g = jnp.full(SHAPE, 1.0) + late(x[0], jnp.where(rank == 0, 60, 0))
        h = jnp.full(SHAPE, 100.0) + late(2 * x[0], jnp.where(rank == 1, 60, 0))
        return one(p, g), other(q, h)

    x = jnp.asarray(np.random.default_rng().standard_normal((2, *SHAPE)), jnp.float32)
    for _ in range(20):
        p, q = run(x, jnp.ones(SHAPE), jnp.ones(SHAPE))
        for found, wanted in ((p, 0.99), (q, 0.0)):
            for part in found.addressable_shards:
                np.testing.assert_allclose(part.data, np.full(SHAPE, wanted), atol=1e-5)
