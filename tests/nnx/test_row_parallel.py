"""RowParallelLinear against nnx.Linear, in value and gradient."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc.nnx
from jaxcc.layout import LayoutError


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


def with_gradients(loss: Any) -> Any:
    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)


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
    (_, out), grads = quick.jit(with_gradients(mine))(p, x, r)
    (_, expected), wanted = quick.jit(with_gradients(theirs))(q, x, r)
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
    (_, out), grads = with_gradients(mine)(p, x, r)
    (_, expected), wanted = quick.jit(with_gradients(theirs))(q, x, r)
    close(out, expected)
    for g, e in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        close(g, e)


def test_outside_shard_map_it_is_the_whole_layer() -> None:
    layer, linear = pair(mesh_of(2), jax.nn.gelu, True)
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    close(layer(x), jax.nn.gelu(linear(x)))


def call(layer: Any, x: Any, x_spec: Any, state_specs: Any) -> Any:
    """The layer on the ranks of its mesh, with these specs."""
    graph, params = nnx.split(layer)
    return jax.shard_map(
        lambda p, x: nnx.merge(graph, p)(x),
        mesh=layer.mesh,
        in_specs=(state_specs, x_spec),
        out_specs=P(),
    )(params, x)


@pytest.mark.parametrize(
    ("in_features", "axis_name", "code", "part"),
    [
        (18, "tp", "LAYOUT_INDIVISIBLE", "in_features of RowParallelLinear is 18, which the 4 "),
        (16, "dp", "LAYOUT_AXIS", "'dp', but the axes of its mesh are: 'tp'"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_at_once(
    in_features: int, axis_name: str, code: str, part: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        jaxcc.nnx.RowParallelLinear(
            in_features, 12, axis_name=axis_name, mesh=mesh_of(4), rngs=nnx.Rngs(0)
        )
    assert caught.value.code == code
    assert part in str(caught.value)


@pytest.mark.parametrize("whole", [{"x"}, {"kernel"}, {"x", "kernel"}])
def test_whole_arrays_where_slices_belong_are_refused(whole: set[str]) -> None:
    layer, _ = pair(mesh_of(4), None, False)
    x = np.ones((8, 16), np.float32)
    x_spec = P() if "x" in whole else P(None, "tp")
    state_specs = P() if "kernel" in whole else jaxcc.nnx.specs(layer)
    with pytest.raises(LayoutError) as caught:
        call(layer, x, x_spec, state_specs)
    assert caught.value.code == "LAYOUT_SHAPE"
    wrong_x, wrong_kernel = (16 if name in whole else 4 for name in ("x", "kernel"))
    for part in (f"(8, {wrong_x})", f"({wrong_kernel}, 12)", "4 of its 16", "jaxcc.nnx.specs"):
        assert part in str(caught.value)


def test_a_part_of_x_outside_shard_map_is_refused() -> None:
    layer, _ = pair(mesh_of(4), None, False)
    with pytest.raises(LayoutError, match="all 16 features") as caught:
        layer(np.ones((8, 4), np.float32))
    assert caught.value.code == "LAYOUT_SHAPE"


def test_without_a_mesh_it_runs_unfused_with_advice() -> None:
    layer, linear = pair(None, jax.nn.gelu, True)
    graph, params = nnx.split(layer)
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    on_ranks = jax.shard_map(
        lambda p, x: nnx.merge(graph, p)(x),
        mesh=mesh_of(2),
        in_specs=(jaxcc.nnx.specs(layer), P(None, "tp")),
        out_specs=P(),
    )
    with pytest.warns(jaxcc.UnfusedWarning, match="BACKEND_NO_MESH.*set_mesh"):
        out = on_ranks(params, x)
    close(out, jax.nn.gelu(linear(x)))


def test_specs_of_a_module_without_arrays_are_those_of_one_with() -> None:
    layer, _ = pair(None, None, True)

    def make() -> Any:
        return jaxcc.nnx.RowParallelLinear(16, 12, axis_name="tp", rngs=nnx.Rngs(0))

    shapes = nnx.eval_shape(make)
    assert jax.tree.leaves(jaxcc.nnx.specs(shapes)) == jax.tree.leaves(jaxcc.nnx.specs(layer))


def test_an_activation_that_is_not_elementwise_runs_unfused_with_advice() -> None:
    def summed(x: Any) -> Any:
        return jnp.cumsum(x, axis=-1)

    layer, linear = pair(mesh_of(4), summed, True)
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    with pytest.warns(jaxcc.UnfusedWarning) as caught:
        out = call(layer, x, P(None, "tp"), jaxcc.nnx.specs(layer))
    close(out, summed(linear(x)))
    (text,) = [str(warning.message) for warning in caught]
    assert "the activation of a RowParallelLinear is not elementwise" in text
    assert "apply this one to its result" in text and "reorder" not in text


def test_an_activation_of_rows_is_fused() -> None:
    layer, linear = pair(mesh_of(4), jax.nn.softmax, True)
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jaxcc.UnfusedWarning)
        out = call(layer, x, P(None, "tp"), jaxcc.nnx.specs(layer))
    close(out, jax.nn.softmax(linear(x)))


def test_a_batch_that_the_ranks_do_not_divide_runs_unfused_with_a_warning() -> None:
    mesh = mesh_of(4)
    layer = jaxcc.nnx.RowParallelLinear(16, 6, axis_name="tp", mesh=mesh, rngs=nnx.Rngs(0))
    graph, params = nnx.split(layer)
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    with pytest.warns(jaxcc.UnfusedWarning, match="SCHEDULE_INDIVISIBLE.*out_features"):
        out = jax.shard_map(
            lambda p, x: nnx.merge(graph, p)(x),
            mesh=mesh,
            in_specs=(jaxcc.nnx.specs(layer), P(None, "tp")),
            out_specs=P(),
        )(params, x)
    close(out, x.astype(np.float64) @ np.asarray(layer.kernel[...], np.float64))
