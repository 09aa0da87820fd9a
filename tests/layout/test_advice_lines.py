"""What messages call values and lines, and what they say of orders, ranks, libraries and traces."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxcc.layout import LayoutError, Replicated, Sliced, check
from jaxcc.testing import assert_rank_invariant

DP = AbstractMesh((4,), ("dp",))
TP = AbstractMesh((4,), ("tp",))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X, W = aval(32, 16), aval(16, 8)


def message(f: Callable[..., Any], *args: Any, **how: Any) -> str:
    with pytest.raises(LayoutError) as error:
        check(f, *args, **how)
    return str(error.value)


def fixes(text: str) -> list[str]:
    return [line.partition(": ")[2] for line in text.splitlines() if line.startswith("  fix")]


def right(f: Callable[..., Any], *args: Any, **how: Any) -> None:
    check(f, *args, **how)
    rng = np.random.default_rng()
    # Small, so that what grows through layers stays within the tolerance of f32.
    arrays = jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape, np.float32), args)
    assert_rank_invariant(f, *arrays, **how, rtol=1e-4, atol=1e-4)


def rope(positions, x):
    return x * jnp.cos(positions(x).astype(jnp.float32))[:, None]


def test_positions_of_a_block() -> None:
    how: dict[str, Any] = dict(mesh=DP, in_layouts=(Sliced(0),), out_layouts=Sliced(0))
    text = message(partial(rope, lambda x: jnp.arange(x.shape[0])), X, **how)
    (fix,) = fixes(text)
    assert "jax.lax.axis_index('dp') * 8 + jax.numpy.arange(8)" in fix
    block = lambda x: lax.axis_index("dp") * x.shape[0] + jnp.arange(x.shape[0])  # noqa: E731
    right(partial(rope, block), X, **how)


def test_what_one_rank_holds_is_no_position() -> None:
    def f(x):
        return lax.psum(jnp.where(lax.axis_index("dp") == 1, x, 0), "dp")

    text = message(f, X, mesh=DP, in_layouts=(Replicated,), out_layouts=Replicated)
    assert "LAYOUT_RANK_INDEX" in text and "positions" not in text


def test_a_permutation_of_a_fixed_number_of_ranks() -> None:
    def turned(x, n=4):
        return lax.ppermute(x, "tp", [(i, (i + 1) % n) for i in range(n)])

    text = message(turned, X, mesh=TP, in_layouts=(Replicated,))
    (fix,) = fixes(text)
    assert "n = jax.lax.axis_size(axis)" in fix and "slice" not in fix
    right(lambda x: turned(x, lax.axis_size("tp")), X, mesh=TP, in_layouts=(Replicated,))


def gathered(tiled, x, w):
    blocks = lax.all_gather(x, "tp", axis=0 if tiled else 1, tiled=tiled)
    whole = blocks.reshape(-1, x.shape[1])
    return lax.psum_scatter(whole @ w / lax.axis_size("tp"), "tp", tiled=True)


def test_blocks_that_a_gather_left_in_another_order() -> None:
    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(0), Replicated), out_layouts=Sliced(0))
    text = message(partial(gathered, False), X, W, **how)
    at = gathered.__code__.co_firstlineno + 1
    assert f"tiled=True in the all_gather at {__file__}:{at}" in text and "(not tried)" in text
    assert "its elements are in another order than the whole result's" in text
    assert "steps of" not in text
    right(partial(gathered, True), X, W, **how)


def test_two_whole_values_of_which_one_is_in_another_order() -> None:
    def f(x, y):
        right_order = lax.all_gather(x, "tp", axis=0, tiled=True)
        wrong_order = lax.all_gather(y, "tp", axis=1).reshape(32, 16)
        return right_order + wrong_order

    text = message(f, X, X, mesh=TP, in_layouts=(Sliced(0), Sliced(0)))
    assert "parts of the whole: Replicated and Replicated in another order" in text
    (fix,) = fixes(text)
    assert "tiled=True" in fix and "the sliced one" not in fix


def test_results_are_called_by_their_places() -> None:
    def f(params, x):
        grads = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
        return {"grads": grads}, x

    text = message(
        f,
        {"w": W, "b": aval(8)},
        X,
        mesh=DP,
        in_layouts=(Replicated, Sliced(0)),
        out_layouts=(Replicated, Sliced(0)),
        check_vma=False,
    )
    assert "result 0['grads']['b'] is returned" in text
    assert "and 1 more: result 0['grads']['w']" in text
    assert "it is of a gradient: JAX differentiates that line" in text


def test_arguments_keep_their_names_where_gradients_are_traced() -> None:
    def f(x, w):
        y = lax.while_loop(lambda y: (y < 1).all(), lambda y: y * 2, jnp.abs(w))
        return lax.pmean((x @ y).mean(), "dp")

    how: dict[str, Any] = dict(mesh=DP, in_layouts=(Sliced(0), Replicated))
    check(f, X, W, **how)
    text = message(f, X, W, **how, grad=1)
    assert "LAYOUT_TRACE" in text and "given[" not in text and "argument 'x': whole" in text


def inside(f, grad=False):
    def program(w, x):
        mapped = jax.shard_map(f, in_specs=(P(), P("dp")), out_specs=P())
        return (jax.grad(mapped) if grad else mapped)(w, x)

    return program


@pytest.mark.parametrize("grad", [False, True])
def test_a_sum_that_a_shard_map_inside_lacks(grad: bool) -> None:
    how: dict[str, Any] = dict(mesh=DP, in_layouts=Replicated, axis_names=())

    def loss(w, x):
        return jnp.mean((x @ w) ** 2)

    text = message(inside(loss, grad), W, X, **how)
    assert "LAYOUT_TRACE" in text and "per-rank shapes fit" not in text
    assert any("before the shard_map returns it" in fix for fix in fixes(text))
    right(inside(lambda w, x: lax.pmean(loss(w, x), "dp"), grad), W, X, **how)


def test_a_dimension_that_is_not_there() -> None:
    text = message(
        lambda x: lax.all_gather(x, "dp", axis=3, tiled=True), X, mesh=DP, in_layouts=(Sliced(0),)
    )
    assert fixes(text) == ["count its dimensions from 0"]


def test_the_flag_of_a_shard_map_inside() -> None:
    def f(x):
        gather = partial(lax.all_gather, axis_name="dp", axis=0, tiled=True)
        return jax.shard_map(gather, in_specs=P("dp"), out_specs=P(), check_vma=False)(x)

    report = check(f, X, mesh=DP, in_layouts=(Replicated,), axis_names=())
    assert "note: a shard_map inside the function runs with check_vma=False" in str(report)


class Layers(nn.Module):
    axis: str | None
    drops: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False, axis_name=self.axis)(x)
        return nn.Dropout(0.5, deterministic=False)(x) if self.drops else x


def applied(layers, variables, x):
    rngs = {"dropout": jax.random.key(0)}
    return layers.apply(variables, x, rngs=rngs, mutable=["batch_stats"])


def test_layers_of_flax() -> None:
    how: dict[str, Any] = dict(
        mesh=DP, in_layouts=(Replicated, Sliced(0)), out_layouts=(Sliced(0), Replicated)
    )
    made = jax.eval_shape(Layers(None).init, jax.random.key(0), X)
    text = message(partial(applied, Layers(None)), made, X, **how)
    assert set(fixes(text)) == {
        "give the layer axis_name='dp', over which it then takes its statistics"
    }
    right(partial(applied, Layers("dp")), made, X, **how)
    text = message(partial(applied, Layers("dp", drops=True)), made, X, **how)
    assert any("jaxcc.random.bernoulli" in fix for fix in fixes(text))
    assert any("jaxcc.unsafe_assume" in fix for fix in fixes(text))
