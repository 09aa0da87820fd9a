"""Collectives under transformations: independent ones, each under its own, and derivatives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import MOVING, NUMPY, random_call
from jax.sharding import PartitionSpec as P
from ranks import mesh_of

from jaxcc import comm

Collective = Callable[[jax.Array], jax.Array]


def lanes(f: Collective, x: jax.Array) -> jax.Array:
    return jax.vmap(f)(x)


def twice_lanes(f: Collective, x: jax.Array) -> jax.Array:
    return jax.vmap(jax.vmap(f), in_axes=-1, out_axes=-1)(x[..., None])[..., 0]


def value(f: Collective, x: jax.Array) -> jax.Array:
    def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.vmap(f)(x)
        return jnp.sum(jnp.sin(y)), y

    return jax.grad(loss, has_aux=True)(x)[1]


def lanes_of_values(f: Collective, x: jax.Array) -> jax.Array:
    return jax.vmap(lambda lane: value(f, lane[None])[0])(x)


def pulled_back(f: Collective, x: jax.Array) -> jax.Array:
    y, pull = jax.vjp(jax.vmap(f), x)
    (slope,) = pull(y)
    return y + 0 * jnp.sum(slope)


UNDER = [lanes, twice_lanes, value, lanes_of_values, pulled_back]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("under", [*UNDER, None], ids=lambda f: f.__name__ if f else "mixed")
def test_independent_collectives_come_in_one_order(under: Any, check_vma: bool) -> None:
    ranks = 3
    rng = np.random.default_rng(7 + check_vma)
    mesh = mesh_of(ranks)
    calls = [(name, *random_call(name, ranks, rng)) for _ in range(2) for name in MOVING]
    xs = [rng.normal(size=(ranks, 2, *shape)).astype(np.float32) for _, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        made = []
        for k, ((name, _, parameters), x) in enumerate(zip(calls, xs, strict=True)):

            def call(v: jax.Array, name: str = name, parameters: Any = parameters) -> jax.Array:
                return getattr(comm, name)(v, "r", backend="host", mesh=mesh, **parameters)

            made.append((under or UNDER[k % len(UNDER)])(call, x[0])[None])
        return made

    axes = P("r")
    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=axes, out_specs=axes, check_vma=check_vma)
    )
    for _ in range(5):
        for (name, _, parameters), x, actual in zip(calls, xs, program(*xs), strict=True):
            wanted = [NUMPY[name](x[:, lane], **parameters) for lane in range(2)]
            np.testing.assert_array_equal(
                actual, np.stack(wanted, 1), err_msg=f"{name} {parameters}"
            )


def jacobian(f: Collective, x: jax.Array) -> jax.Array:
    return jax.jacfwd(f)(x)


def hessian(f: Collective, x: jax.Array) -> jax.Array:
    return jax.hessian(lambda x: jnp.sum(jnp.sin(f(x)) ** 2))(x)


def along(f: Collective, x: jax.Array) -> jax.Array:
    """Forward over reverse, of lanes."""
    slope = jax.grad(lambda x: jnp.sum(jnp.sin(jax.vmap(f)(x[None]))))
    return jax.jvp(slope, (x,), (jnp.cos(x),))[1]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("differentiate", [jacobian, hessian, along], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [name for name in MOVING if not name.endswith("_v")])
def test_derivatives_of_both_modes_are_those_of_xla(
    name: str, differentiate: Any, check_vma: bool
) -> None:
    ranks = 3
    mesh = mesh_of(ranks)
    rng = np.random.default_rng(len(name))
    shape, parameters = random_call(name, ranks, rng)
    x = rng.normal(size=(ranks, *shape)).astype(np.float32)

    def on(backend: str) -> Any:
        def body(v: jax.Array) -> jax.Array:
            def call(v: jax.Array) -> jax.Array:
                return getattr(comm, name)(v, "r", backend=backend, mesh=mesh, **parameters)

            return differentiate(call, v[0])[None]

        over = P("r")
        f = jax.shard_map(body, mesh=mesh, in_specs=over, out_specs=over, check_vma=check_vma)
        return np.asarray(jax.jit(f)(x))

    np.testing.assert_allclose(on("host"), on("xla"), rtol=1e-5, atol=1e-5)
