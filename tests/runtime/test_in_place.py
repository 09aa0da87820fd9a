"""A result takes its operand's buffer where nobody reads the operand afterwards, and only there."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcc import comm

Array = jax.Array
MESH = Mesh(np.array(jax.devices()[:2]), ("x",))
SHAPE = (300, 40)


def total(x: Array, backend: str = "host") -> Array:
    return comm.all_reduce(x, "x", backend=backend, mesh=MESH)


def compiled(f: Callable[[Array], Any], donate: bool) -> Any:
    mapped = jax.shard_map(f, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    x = jax.ShapeDtypeStruct((2 * SHAPE[0], SHAPE[1]), np.float32)
    return jax.jit(mapped, donate_argnums=(0,) if donate else ()).lower(x).compile()


def in_place(f: Callable[[Array], Any], donate: bool = False) -> tuple[int, int]:
    """How many calls there are, and how many that write to their operand."""
    calls = [line for line in compiled(f, donate).as_text().splitlines() if '"jaxcc_fused"' in line]
    return len(calls), sum("{1}: (2, {})" in line for line in calls)


@jax.jit
def inner(x: Array) -> Array:
    return total(x)


def read_later(x: Array) -> Array:
    y = jnp.sin(x)
    return total(y) * y


def as_rows(x: Array) -> Array:
    y = jnp.sin(x)
    return total(y.reshape(-1)).reshape(SHAPE) + y[:1]


def each_turn(x: Array) -> Array:
    return lax.fori_loop(0, 3, lambda _, y: total(y) * 0.5, x)


def constant(x: Array) -> Array:
    y = jnp.sin(x)
    return lax.fori_loop(0, 3, lambda _, z: z + total(y), x)


def each_row(x: Array) -> Array:
    return lax.scan(lambda _, row: (None, total(row)), None, jnp.sin(x))[1]


def branch(x: Array) -> Array:
    return lax.cond(x[0, 0] > 0, total, lambda x: x, jnp.sin(x))


def branch_read_later(x: Array) -> Array:
    y = jnp.sin(x)
    return lax.cond(x[0, 0] > 0, total, lambda x: x, y) + y


@pytest.mark.parametrize(
    ("f", "donate", "expected"),
    [
        (total, False, 0),
        (total, True, 1),
        (lambda x: total(jnp.sin(x)), False, 1),
        (read_later, False, 0),
        (as_rows, False, 0),
        (lambda x: total(jnp.sin(x).reshape(-1)).reshape(SHAPE), False, 1),
        (lambda x: (lambda y: (total(y), y))(jnp.sin(x)), False, 0),
        (lambda x: inner(jnp.sin(x)), False, 1),
        (lambda x: (lambda y: inner(y) + y)(jnp.sin(x)), False, 0),
        (inner, False, 0),
        (inner, True, 1),
        (each_turn, False, 1),
        (constant, False, 0),
        (each_row, False, 1),
        (branch, False, 1),
        (branch_read_later, False, 0),
        (lambda x: total(total(x)), False, 1),
        (lambda x: jax.grad(lambda x: jnp.sum(jnp.cos(total(jnp.sin(x)))))(x), False, 2),
    ],
)
def test_calls_in_place(f: Callable[[Array], Any], donate: bool, expected: int) -> None:
    calls, replaced = in_place(f, donate)
    assert calls and replaced == expected


@pytest.mark.parametrize("seed", range(8))
def test_programs_whose_values_are_read_again(seed: int) -> None:
    """Whatever is read when, values are those that XLA's collectives give."""
    rng = np.random.default_rng(seed)
    steps = [(rng.integers(6), *rng.integers(k + 1, size=2)) for k in range(25)]
    returned = rng.choice(25, 4, replace=False)

    def program(backend: str) -> Callable[[Array], list[Array]]:
        def body(x: Array) -> list[Array]:
            values = [x]
            for kind, one, other in steps:
                a, b = values[one], values[other]
                mean = lambda v: total(v, backend) / 2  # noqa: E731
                made = [
                    lambda: mean(a),  # noqa: B023
                    lambda: jnp.sin(a) + b,  # noqa: B023
                    lambda: mean(a.reshape(-1)).reshape(SHAPE),  # noqa: B023
                    lambda: lax.fori_loop(0, 2, lambda _, v: jnp.cos(mean(v)) + b, a),  # noqa: B023
                    lambda: jax.jit(lambda v, w: mean(v) + mean(w) * v)(a, b),  # noqa: B023
                    lambda: lax.cond(b[0, 0] > 0, mean, jnp.sin, a),  # noqa: B023
                ]
                values.append(made[kind]())
            return [values[1 + k] for k in returned]

        mapped = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        return jax.jit(mapped, donate_argnums=0)

    x = rng.normal(size=(2 * SHAPE[0], SHAPE[1])).astype(np.float32)
    x[:: SHAPE[0], 0] = 1  # Ranks take the same branches.
    values = [program(backend)(jnp.asarray(x)) for backend in ("host", "xla")]
    for actual, expected in zip(*values, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
