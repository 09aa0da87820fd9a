"""Collectives under transformations: independent ones, each under its own, and forward mode."""

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
from jaxcc.layout import JaxccError

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


@pytest.mark.parametrize(
    "differentiate",
    [jax.jacfwd, lambda f: jax.hessian(lambda x: jnp.sum(f(x) ** 2))],
    ids=["jacfwd", "hessian"],
)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast"])
def test_forward_mode_is_an_error_that_names_the_backend_that_has_it(
    name: str, differentiate: Any
) -> None:
    mesh = mesh_of(2)
    x = np.random.default_rng(len(name)).normal(size=4).astype(np.float32)

    def on(backend: str) -> Callable:
        def body(v: jax.Array) -> jax.Array:
            return getattr(comm, name)(v, "r", backend=backend, mesh=mesh)

        return jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P(), check_vma=False)

    with pytest.raises(JaxccError, match="backend='xla'") as caught:
        differentiate(on("host"))(x)
    assert caught.value.code == "BACKEND_FORWARD_MODE" and name in str(caught.value)
    differentiate(on("xla"))(x)
