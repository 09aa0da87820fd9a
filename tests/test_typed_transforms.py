"""Typed functions over and under JAX's transformations, on Auto and Explicit meshes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from oracles import close

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, on

RANDOM = np.random.default_rng()


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request: pytest.FixtureRequest) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(request.param,) * 2)


LAYOUTS = (on(dp=Sliced(0), tp=Sliced(1)), on(tp=Sliced(0)))


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(lax.psum(x @ w, "tp"))


def whole(x: Any, w: Any) -> Any:
    """What `layer` is on one rank, in JAX's own words."""
    return jnp.tanh(x @ w)


@pytest.fixture
def typed(mesh: jax.sharding.Mesh) -> jaxcc.TypedFunction:
    return jaxcc.typed(mesh=mesh, in_layouts=LAYOUTS, out_layouts=on(dp=Sliced(0)))(layer)


def total(f: Any) -> Any:
    return lambda x, w: (f(x, w) ** 2).sum()


# Each takes a function of (x, w) and gives another; the same is done to the typed and whole one.
TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "jit around more": lambda f: jax.jit(lambda x, w: f(x * 2, w) + 1),
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1)),
    "grad of jit": lambda f: jax.grad(total(jax.jit(f)), argnums=(0, 1)),
    "remat": lambda f: jax.jit(jax.grad(total(jax.checkpoint(f)), argnums=(0, 1))),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (w.T, x.T)),
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, x + 1]), w),
    "vmap of grad": lambda f: (
        lambda x, w: jax.vmap(jax.grad(total(f)), (0, None))(jnp.stack([x, x + 1]), w)
    ),
    "scan": lambda f: jax.jit(
        lambda x, w: lax.scan(lambda c, _: (f(c, w), c.sum()), f(x, w), None, length=2)
    ),
    "grad of scan": lambda f: jax.jit(
        jax.grad(lambda x, w: lax.scan(lambda c, _: (f(c, w), None), f(x, w), None, 2)[0].sum())
    ),
    "cond": lambda f: jax.jit(
        lambda x, w: lax.cond(w[0, 0] > 9, lambda x, w: f(x, w) * 0, f, x, w)
    ),
}


@pytest.mark.parametrize("way", TRANSFORMED)
def test_over_and_under(way: str, typed: jaxcc.TypedFunction, mesh: jax.sharding.Mesh) -> None:
    x, w = normal(4, 4), normal(4, 4)
    expected = TRANSFORMED[way](whole)(jnp.asarray(x), jnp.asarray(w))
    with jax.set_mesh(mesh):
        # The one is where the layouts say, the other is not.
        given = jaxcc.put(x, LAYOUTS[0], mesh), jnp.asarray(w)
        found = TRANSFORMED[way](typed)(*given)
    jax.tree.map(close, found, expected)


def test_inside_a_typed_function(mesh: jax.sharding.Mesh) -> None:
    """jit, grad, vmap and remat under it."""

    @jax.jit
    def loss(w: Any, x: Any) -> Any:
        rows = jax.vmap(lambda row: jnp.sin(row @ w))(x)
        return lax.psum(jax.checkpoint(lambda y: (y**2).sum())(rows), "dp")

    def step(w: Any, x: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(w, x)
        return value, w - 0.1 * slope

    f = jaxcc.typed(mesh=mesh, in_layouts=(Replicated, on(dp=Sliced(0))), out_layouts=Replicated)(
        step
    )
    w, x = normal(3, 2), normal(4, 3)

    def alone(w: Any, x: Any) -> Any:
        value, slope = jax.value_and_grad(lambda w: (jnp.sin(x @ w) ** 2).sum())(w)
        return value, w - 0.1 * slope

    for call in (f, jax.jit(f), f.reference):
        jax.tree.map(close, call(w, x), alone(jnp.asarray(w), jnp.asarray(x)))


def test_local_in_a_shard_map_of_ones_own(
    typed: jaxcc.TypedFunction, mesh: jax.sharding.Mesh
) -> None:
    mapped = jax.shard_map(
        lambda x, w: typed.local(x, w=w) * 2,
        mesh=mesh,
        in_specs=(P("dp", "tp"), P("tp")),
        out_specs=P("dp"),
    )
    x, w = normal(4, 4), normal(4, 4)
    expected = 2 * np.tanh(x.astype(np.float64) @ w)
    given = jaxcc.put((x, w), LAYOUTS, mesh)
    for call in (mapped, jax.jit(mapped)):
        close(call(*given), expected)


def test_pending_and_unrelated_values_go_in_and_out(mesh: jax.sharding.Mesh) -> None:
    """A Partial result of one function is the Partial argument of the next."""
    pending, mine = on(tp=Partial()), on(dp=Local, tp=Replicated)
    first = jaxcc.typed(
        mesh=mesh, in_layouts=(on(tp=Sliced(1)), on(tp=Sliced(0))), out_layouts=pending
    )(jnp.matmul)
    second = jaxcc.typed(mesh=mesh, in_layouts=(pending, mine), out_layouts=(Replicated, mine))(
        lambda y, k: (jnp.tanh(lax.psum(y, "tp")), k * 2)
    )
    x, w, k = normal(3, 4), normal(4, 5), normal(2, 6)
    y = x.astype(np.float64) @ w
    for one, two in ((first, second), (jax.jit(first), jax.jit(second))):
        terms = one(x, w)
        assert terms.shape == (2, 3, 5)
        close(terms.sum(0), y)
        summed, doubled = two(terms, k)
        close(summed, np.tanh(y))
        close(doubled, 2 * k.astype(np.float64))
    slope = jax.jit(jax.grad(lambda t: second(t, k)[0].sum()))(first(x, w))
    close(slope, np.broadcast_to(1 - np.tanh(y) ** 2, (2, 3, 5)))
