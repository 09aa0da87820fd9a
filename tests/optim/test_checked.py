"""A training step with a fused optimizer is a program that the checker takes, for every group."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from oracles import mesh_of

import jaxcc.optim
from jaxcc import Local, Replicated, Sliced
from jaxcc.layout import LayoutError, check
from jaxcc.testing import raises_layout

F32 = jnp.float32
PARAMS = {"w": jax.ShapeDtypeStruct((16, 8), F32), "b": jax.ShapeDtypeStruct((8,), F32)}
BATCH = jax.ShapeDtypeStruct((32, 16), F32)
OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "lamb": optax.lamb(1e-2),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
}


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - 1) ** 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("params", [None, PARAMS], ids=["prefix", "every array"])
def test_a_training_step(name: str, params: Any) -> None:
    mesh = AbstractMesh((4,), ("dp",))
    tx = jaxcc.optim.fuse(OPTIMIZERS[name], axis_name="dp", mesh=mesh)
    state = jax.eval_shape(tx.init, PARAMS)
    kept = tx.layouts(params)

    def step(params: Any, state: Any, x: Any, own: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(own(params), x)
        return *tx.step(grads, state, params), lax.pmean(value, "dp")

    def right(params: Any, state: Any, x: Any) -> Any:
        return step(params, state, x, lambda p: lax.pcast(p, "dp", to="varying"))

    how: dict[str, Any] = dict(
        mesh=mesh,
        in_layouts=(Replicated, kept, Sliced(0)),
        out_layouts=(Replicated, kept, Replicated),
    )
    check(right, PARAMS, state, BATCH, **how)
    with pytest.raises(LayoutError, match="OPTIM_SUMMED"):
        check(lambda p, s, x: step(p, s, x, lambda own: own), PARAMS, state, BATCH, **how)

    def of_doubled(params: Any, state: Any, x: Any) -> Any:
        new, state, value = right(params, state, x)
        return lax.psum(new, "dp"), state, value

    with pytest.raises(LayoutError, match="LAYOUT_SCALE"):
        check(of_doubled, PARAMS, state, BATCH, **how)


@pytest.mark.parametrize("master", [None, F32])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_typed_training_step(name: str, master: Any) -> None:
    mesh, rng = mesh_of(2, "dp"), np.random.default_rng()
    tx = jaxcc.optim.fuse(OPTIMIZERS[name], axis_name="dp", mesh=mesh, master=master)
    layouts = (Replicated, tx.layouts(), Sliced(0))

    @jaxcc.typed(mesh=mesh, in_layouts=layouts, out_layouts=layouts[:2])
    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(loss)(lax.pcast(params, "dp", to="varying"), x)
        return tx.step(grads, state, params)

    def drawn(of: Any) -> Any:
        return jnp.asarray(rng.normal(size=of.shape).astype(np.float32))

    params, batches = jax.tree.map(drawn, PARAMS), [drawn(BATCH) for _ in range(3)]
    state = tx.init(params)
    plain, plain_state = params, OPTIMIZERS[name].init(params)
    for x in batches:
        params, state = step(params, state, x)
        updates, plain_state = OPTIMIZERS[name].update(jax.grad(loss)(plain, x), plain_state, plain)
        plain: Any = optax.apply_updates(plain, updates)
    for found, expected in zip(jax.tree.leaves(params), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_state_without_its_layouts_or_devices_says_where_they_are() -> None:
    mesh = AbstractMesh((4,), ("dp",))
    tx = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)

    def step(params: Any, state: Any, grads: Any) -> Any:
        return tx.step(grads, state, params)

    state, how = jax.eval_shape(tx.init, PARAMS), (Replicated, Replicated, Local)
    with raises_layout("OPTIM_ARGUMENT") as findings:
        check(step, PARAMS, state, PARAMS, mesh=mesh, in_layouts=how)
    assert "tx.layouts()" in findings[0].fixes[0]
    with pytest.raises(jaxcc.BackendError, match="(?s)BACKEND_NO_DEVICES.*eval_shape"):
        tx.init(jax.tree.map(lambda p: jnp.zeros(p.shape), PARAMS))
