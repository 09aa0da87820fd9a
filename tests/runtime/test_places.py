"""Kernels made for one mesh and run over another: right where its groups have the same devices, in
whatever order, else an error on every rank.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import Local, Sliced
from jaxcc.layout import BackendError

SIZE = 24


def mesh_over(*devices: Any) -> Mesh:
    """Axes dp and tp over the devices with these numbers, or tp alone."""
    array = np.array(jax.devices())[np.array(devices)]
    names = ("dp", "tp")[-array.ndim :]
    return Mesh(array, names, axis_types=(AxisType.Auto,) * array.ndim)


def fused(mesh: Mesh) -> Callable[[Any, Any], Any]:
    """Reads and returns slices, whose places differ with the order of ranks."""

    def f(x: Any, w: Any) -> Any:
        total = jaxcc.name(lax.psum_scatter(x, "tp", tiled=True), "total")
        return jaxcc.name(total * w, "out")

    typed = jaxcc.typed(
        mesh=mesh, in_layouts=(jaxcc.on(tp=Local), jaxcc.on(tp=Sliced(0))),
        out_layouts=jaxcc.on(tp=Sliced(0)),
    )(f)  # fmt: skip
    whole = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    schedule = typed.schedule(whole, whole).fuse("total", "out", name="fused")
    return schedule.compile("host").local


def run(local: Any, mesh: Mesh, x: Any, w: Any) -> np.ndarray:
    over = P("dp") if "dp" in mesh.shape else P()
    specs = (P(*over, "tp"), P("tp")), P(*over, "tp")

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    def mapped(x: Any, w: Any) -> Any:
        return local(x.reshape(SIZE), w).reshape((1,) * len(over) + (-1,))

    return np.asarray(mapped(x, w))


@pytest.mark.parametrize("made", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("runs", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_ranks_are_those_of_the_shard_map_that_runs_it(
    made: Sequence[int], runs: Sequence[int]
) -> None:
    random = np.random.default_rng()
    x = random.integers(-9, 9, (3, SIZE)).astype(np.float32)
    w = random.integers(-9, 9, SIZE).astype(np.float32)
    local = fused(mesh_over(*made))
    mesh = mesh_over(*runs)
    np.testing.assert_array_equal(run(local, mesh, x, w), x.sum(0) * w)


def test_groups_may_change_places() -> None:
    random = np.random.default_rng()
    x = random.integers(-9, 9, (2, 2, SIZE)).astype(np.float32)
    w = random.integers(-9, 9, SIZE).astype(np.float32)
    local = fused(mesh_over([0, 1], [2, 3]))
    mesh = mesh_over([3, 2], [0, 1])
    np.testing.assert_array_equal(run(local, mesh, x, w), x.sum(1) * w)


@pytest.mark.parametrize("runs", [([0, 3], [2, 1]), ([0, 2], [1, 3]), ([3, 1], [2, 0])])
def test_other_groups_are_an_error_on_every_rank(runs: Sequence[Any]) -> None:
    made = mesh_over([0, 1], [2, 3])
    x, w = np.ones((2, 2, SIZE), np.float32), np.ones(SIZE, np.float32)
    local = fused(made)
    with pytest.raises(jax.errors.JaxRuntimeError, match="BACKEND_MESH.*mesh="):
        run(local, mesh_over(*runs), x, w)
    np.testing.assert_array_equal(run(local, made, x, w), np.full((2, SIZE), 2.0))


@pytest.mark.parametrize("runs", [(0, 2), (2, 1), (3, 2)])
def test_other_devices_are_an_error_before_anyone_waits(runs: Sequence[int]) -> None:
    x, w = np.ones((2, SIZE), np.float32), np.ones(SIZE, np.float32)
    local = fused(mesh_over(0, 1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="BACKEND_MESH.*mesh="):
        run(local, mesh_over(*runs), x, w)
    np.testing.assert_array_equal(run(local, mesh_over(0, 1), x, w), np.full(SIZE, 2.0))


def test_another_number_of_ranks_is_an_error_while_it_is_traced() -> None:
    x = np.ones((4, SIZE), np.float32)

    def reduce(x: Any) -> Any:
        return jaxcc.comm.all_reduce(x, "tp", backend="host", mesh=mesh_over(0, 1))

    wide = mesh_over(0, 1, 2, 3)
    with pytest.raises(BackendError, match="2 ranks along 'tp', and there are 4") as caught:
        jax.shard_map(reduce, mesh=wide, in_specs=P("tp"), out_specs=P())(x)
    assert caught.value.code == "BACKEND_MESH"


def test_an_optimizers_slices_are_the_ranks_own() -> None:
    made, other = mesh_over(0, 1), mesh_over(1, 0)
    params = {"w": jnp.zeros(7), "b": jnp.zeros((2, 3))}
    random = np.random.default_rng()
    trace = jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), params)
    plain = optax.sgd(1.0, 0.5)
    saved = (optax.TraceState(trace), optax.EmptyState())
    tx: Any = jaxcc.optim.fuse(plain, axis_name="tp", mesh=made)
    state = jaxcc.optim.fuse(plain, axis_name="tp", mesh=other).load_form(saved, params)
    step = jax.jit(
        jax.shard_map(
            tx.step, mesh=other, in_specs=(P(), tx.specs(), P()), out_specs=(P(), tx.specs()),
            check_vma=False,
        )
    )  # fmt: skip
    new, _ = step(jax.tree.map(jnp.zeros_like, params), state, params)
    for name, value in trace.items():
        np.testing.assert_allclose(new[name], -0.5 * np.asarray(value), rtol=1e-6)


def test_an_all_reduce_without_a_mesh_takes_any_order_of_all_devices() -> None:
    mesh = mesh_over([3, 0], [2, 1])
    x = np.random.default_rng().integers(-9, 9, (2, 2, 50)).astype(np.float32)
    for axes in (("dp", "tp"), ("tp", "dp")):

        @jax.jit
        @partial(jax.shard_map, mesh=mesh, in_specs=P("dp", "tp"), out_specs=P())
        def reduce(x: Any, axes: Any = axes) -> Any:
            return jaxcc.comm.all_reduce(x[0, 0], axes, backend="host")

        np.testing.assert_array_equal(reduce(x), x.sum((0, 1)))
