"""Independent all-reduces of 1 MiB, each inside something else, on ranks with unequal work.

XLA's CPU backend runs what is independent by readiness of its operands, so without the order buffer
ranks come to the collectives in different orders: they wait for each other, or two that are alike
give each other's results. For test_order.py to run; XLA's own collectives are the oracle.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

RANKS, SEED = int(sys.argv[1]), int(sys.argv[2])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.custom_derivatives import linear_call  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from jaxcc import comm  # noqa: E402

ROWS, COLUMNS = 512, 512
Array = jax.Array
Mean = Callable[[Array], Array]
mesh = Mesh(np.array(jax.devices()), ("x",))


def mean_on(backend: str, check_vma: bool) -> Mean:
    """An all-reduce that ranks come to at other times, each time it is used."""
    turn = iter(range(1000))

    def mean(x: Array) -> Array:
        late = (lax.axis_index("x") + next(turn)) % RANKS
        work = lax.fori_loop(0, 3 * late, lambda _, y: jnp.tanh(y), lax.stop_gradient(x))
        x = x + 0 * lax.stop_gradient(work)
        y = comm.all_reduce(x, "x", backend=backend, mesh=mesh) / RANKS
        return lax.pcast(y, "x", to="varying") if check_vma else y

    return mean


def plain(mean: Mean, x: Array) -> Array:
    return mean(x)


def scan(mean: Mean, x: Array) -> Array:
    def turn(y: Array, k: Array) -> tuple[Array, Array]:
        y = jnp.cos(mean(y)) + k
        return y, y[0]

    y, rows = lax.scan(turn, x, jnp.arange(3, dtype=x.dtype), reverse=True)
    return y + rows.sum()


def while_loop(mean: Mean, x: Array) -> Array:
    def small(carry: tuple[Array, Array]) -> Array:
        return (jnp.abs(mean(carry[1])).max() >= 0) & (carry[0] < 2)

    return lax.while_loop(small, lambda c: (c[0] + 1, jnp.cos(mean(c[1]))), (jnp.int32(0), x))[1]


def lanes_that_end_alone(mean: Mean, x: Array) -> Array:
    def lane(n: Array, x: Array) -> Array:
        turn = lambda c: (c[0] + 1, jnp.cos(mean(c[1])))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < n, turn, (jnp.int32(0), x))[1]

    return jax.vmap(lane)(jnp.arange(4) % 3, x.reshape(4, -1)).reshape(x.shape)


def cond(mean: Mean, x: Array) -> Array:
    return lax.cond(mean(x).sum() > 0, mean, lambda x: mean(2 * x) - x, x)


def unlike_branches(mean: Mean, x: Array) -> Array:
    which = jnp.int32(mean(x).sum()) % 3
    return lax.switch(which, [lambda x: x, mean, lambda x: mean(jnp.cos(mean(x)))], x)


def function(mean: Mean, x: Array) -> Array:
    inner = jax.jit(lambda x: jnp.cos(mean(x)))
    return inner(x) + inner(2 * x) * inner(3 * x)


def function_in_loop(mean: Mean, x: Array) -> Array:
    return lax.fori_loop(0, 2, lambda _, y: function(mean, y), x)


def lanes(mean: Mean, x: Array) -> Array:
    return jax.vmap(mean)(x.reshape(4, -1)).reshape(x.shape)


def value_and_gradient(mean: Mean, x: Array) -> Array:
    value, slope = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(mean(x))))(x)
    return slope + value


def rematerialized(mean: Mean, x: Array) -> Array:
    inner = jax.checkpoint(lambda x: jnp.sin(mean(jnp.sin(mean(x)))))
    return jax.grad(lambda x: jnp.sum(inner(x)))(x)


def forward_mode(mean: Mean, x: Array) -> Array:
    return jnp.add(*jax.jvp(lambda x: jnp.sin(mean(x)), (x,), (jnp.cos(x),)))


def own_derivative(mean: Mean, x: Array) -> Array:
    inner = jax.custom_vjp(lambda x: jnp.sin(mean(x)))
    inner.defvjp(lambda x: (inner(x), x), lambda x, t: (mean(t * x),))
    other = jax.custom_jvp(mean)
    other.defjvp(lambda x, t: (mean(x[0]), t[0]))
    return jax.grad(lambda x: jnp.sum(inner(x)))(x) + inner(x) + other(x)


def linear(mean: Mean, x: Array) -> Array:
    return linear_call(lambda _, x: mean(x), lambda _, x: x, (), x)


def solved(mean: Mean, x: Array) -> Array:
    return lax.custom_linear_solve(
        lambda v: 2 * v + mean(v), x, lambda _, b: mean(b), symmetric=True
    )


INSIDE = [
    *(
        plain,
        scan,
        while_loop,
        lanes_that_end_alone,
        cond,
        unlike_branches,
        function,
        function_in_loop,
        lanes,
    ),
    *(value_and_gradient, rematerialized, forward_mode, own_derivative, linear, solved),
]


def program(backend: str, order: np.ndarray, check_vma: bool) -> Callable[..., list[Array]]:
    mean = mean_on(backend, check_vma)

    def on_ranks(f: Callable[[Array], Any]) -> Callable[[Array], Any]:
        # Each rank's results lie below each other.
        return jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)

    def several(x: Array) -> list[Array]:
        made = []
        for k in order:
            made.append(INSIDE[k](mean, x))
            made.append(lax.psum(jnp.cos(x + k), "x") + 0 * x)
        return made

    def whole(x: Array) -> list[Array]:
        one = on_ranks(lambda x: jnp.cos(mean(x)) + 0 * x)
        looped = lax.fori_loop(0, 2, lambda _, y: one(y), 2 * x)
        return [*on_ranks(several)(x), one(x), looped, *on_ranks(several)(2 * x), one(3 * x)]

    return jax.jit(whole)


rng = np.random.default_rng(SEED)
x = rng.normal(size=(RANKS * ROWS, COLUMNS)).astype(np.float32)
order = rng.permutation(len(INSIDE))
check_vma = bool(SEED % 2)
wanted = program("xla", order, check_vma)(x)
run = program("host", order, check_vma)
for _ in range(3):
    for k, (actual, expected) in enumerate(zip(run(x), wanted, strict=True)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3, err_msg=str(k))
