"""A training step with a fused optimizer is a program that the checker takes, for every group."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from oracles import mesh_of

import jaxcc.optim
from jaxcc import Replicated, Sliced
from jaxcc.layout import LayoutError, check

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


def layouts(specs: Any) -> Any:
    return jax.tree.map(
        lambda spec: Sliced(0) if spec == P("dp") else Replicated,
        specs,
        is_leaf=lambda one: isinstance(one, P),
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step(name: str) -> None:
    mesh = mesh_of(4, "dp")
    tx = jaxcc.optim.fuse(OPTIMIZERS[name], axis_name="dp", mesh=mesh)
    state = jax.eval_shape(tx.init, PARAMS)
    kept = layouts(tx.specs(PARAMS))

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
