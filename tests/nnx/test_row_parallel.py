"""RowParallelLinear against nnx.Linear, in value and gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc.nnx


def pair(mesh: Any, activation: Any, use_bias: bool) -> tuple[Any, Any]:
    """A layer and nnx.Linear with the same parameters."""
    bias_init = nnx.initializers.normal()
    layer = jaxcc.nnx.RowParallelLinear(
        16,
        12,
        axis_name="tp",
        mesh=mesh,
        activation=activation,
        use_bias=use_bias,
        bias_init=bias_init,
        rngs=nnx.Rngs(0),
    )
    linear = nnx.Linear(16, 12, use_bias=use_bias, bias_init=bias_init, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(layer.kernel[...], linear.kernel[...])
    return layer, linear


def losses(layer: Any, linear: Any, mesh: Any, batch: Any, act: Any) -> tuple[Any, Any]:
    """The same loss of parameters, x and residual by the layer on ranks and by nnx.Linear."""
    graph, params = nnx.split(layer)
    linear_graph, linear_params = nnx.split(linear)
    specs = jaxcc.nnx.specs(layer)

    def on_ranks(params: Any, x: Any, r: Any) -> Any:
        out = jax.shard_map(
            lambda p, x, r: nnx.merge(graph, p)(x, r),
            mesh=mesh,
            in_specs=(specs, P(batch, "tp"), P(batch)),
            out_specs=P(batch),
        )(params, x, r)
        return jnp.sum(jnp.sin(out)), out

    def whole(params: Any, x: Any, r: Any) -> Any:
        out = act(nnx.merge(linear_graph, params)(x)) + r
        return jnp.sum(jnp.sin(out)), out

    return (on_ranks, params), (whole, linear_params)


@pytest.mark.parametrize(
    ("n", "activation", "use_bias"),
    [(1, jax.nn.gelu, True), (2, jax.nn.gelu, True), (4, jnp.tanh, False), (4, None, True)],
)
def test_value_and_gradient(n: int, activation: Any, use_bias: bool) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(8, 16)).astype(np.float32)
    r = rng.normal(size=(8, 12)).astype(np.float32)
    mesh = mesh_of(n)
    layer, linear = pair(mesh, activation, use_bias)
    (mine, p), (theirs, q) = losses(layer, linear, mesh, None, activation or (lambda y: y))
    (_, out), grads = jax.value_and_grad(mine, argnums=(0, 1, 2), has_aux=True)(p, x, r)
    (_, expected), wanted = jax.value_and_grad(theirs, argnums=(0, 1, 2), has_aux=True)(q, x, r)
    close(out, expected)
    for g, e in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        close(g, e)


def test_beside_a_data_parallel_axis() -> None:
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 16)).astype(np.float32)
    r = rng.normal(size=(8, 12)).astype(np.float32)
    layer, linear = pair(mesh, jax.nn.gelu, True)
    (mine, p), (theirs, q) = losses(layer, linear, mesh, "dp", jax.nn.gelu)
    (_, out), grads = jax.value_and_grad(mine, argnums=(0, 1, 2), has_aux=True)(p, x, r)
    (_, expected), wanted = jax.value_and_grad(theirs, argnums=(0, 1, 2), has_aux=True)(q, x, r)
    close(out, expected)
    for g, e in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        close(g, e)


def test_outside_shard_map_it_is_the_whole_layer() -> None:
    layer, linear = pair(mesh_of(2), jax.nn.gelu, True)
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    close(layer(x), jax.nn.gelu(linear(x)))


def test_a_batch_that_the_ranks_do_not_divide_runs_unfused_with_a_warning() -> None:
    mesh = mesh_of(4)
    layer = jaxcc.nnx.RowParallelLinear(16, 6, axis_name="tp", mesh=mesh, rngs=nnx.Rngs(0))
    graph, params = nnx.split(layer)
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    with pytest.warns(jaxcc.UnfusedWarning, match="SCHEDULE_INDIVISIBLE"):
        out = jax.shard_map(
            lambda p, x: nnx.merge(graph, p)(x),
            mesh=mesh,
            in_specs=(jaxcc.nnx.specs(layer), P(None, "tp")),
            out_specs=P(),
        )(params, x)
    close(out, x.astype(np.float64) @ np.asarray(layer.kernel[...], np.float64))
