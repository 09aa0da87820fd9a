"""Blocks of random arrays against `jax.random`'s whole ones: the same bits, and a known layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import mesh_of

import jaxcc
from jaxcc import LayoutError, Local, Replicated, Sliced
from jaxcc.testing import raises_layout

# JAX has types for some of its functions only.
_lax: Any = jax.lax

SHAPE = (8, 5, 4)
KEY = jax.random.key(11)


def block(dim: int, shape: tuple[int, ...] = SHAPE) -> tuple[int, ...]:
    """The shape of a rank's block, as a per-rank function knows it."""
    n = _lax.axis_size("tp")
    return tuple(size // n if d == dim else size for d, size in enumerate(shape))


# name: (of the rank, of the whole array)
DRAWS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "bits": (jaxcc.random.bits, jax.random.bits),
    "bits of 8": (
        lambda k, s, **at: jaxcc.random.bits(k, s, jnp.uint8, **at),
        lambda k, s: jax.random.bits(k, s, jnp.uint8),
    ),
    "uniform": (jaxcc.random.uniform, jax.random.uniform),
    "uniform between": (
        lambda k, s, **at: jaxcc.random.uniform(k, s, jnp.bfloat16, -1, jnp.float32(4), **at),
        lambda k, s: jax.random.uniform(k, s, jnp.bfloat16, -1, jnp.float32(4)),
    ),
    "normal": (jaxcc.random.normal, jax.random.normal),
    "bernoulli": (
        lambda k, s, **at: jaxcc.random.bernoulli(k, 0.3, s, **at),
        lambda k, s: jax.random.bernoulli(k, 0.3, s),
    ),
}


@functools.cache
def whole_arrays() -> list[np.ndarray]:
    """What `jax.random` draws, each compiled by itself."""
    return [np.asarray(jax.jit(lambda k, f=f: f(k, SHAPE))(KEY)) for _, f in DRAWS.values()]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("n", "dim"), [(1, 0), (2, 0), (4, 2)])
def test_blocks_of_the_whole_array(n: int, dim: int, check_vma: bool) -> None:
    def f(key: Any) -> list[Any]:
        return [mine(key, block(dim), axis_name="tp", dim=dim) for mine, _ in DRAWS.values()]

    whole = [Sliced(dim)] * len(DRAWS)
    typed = jaxcc.typed(
        mesh=mesh_of(n), in_layouts=(Replicated,), out_layouts=whole, check_vma=check_vma
    )(f)
    for name, got, want in zip(DRAWS, typed(KEY), whole_arrays(), strict=True):
        if name == "normal":
            # XLA's code of the inverse error function rounds otherwise in a loop of another shape.
            np.testing.assert_array_max_ulp(np.asarray(got), want, maxulp=4)
        else:
            assert np.asarray(got).tobytes() == want.tobytes(), name


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_other_keys(impl: str) -> None:
    """Their numbers depend on the whole shape, which every rank then draws."""

    def f(key: Any) -> Any:
        return jaxcc.random.uniform(key, block(0), axis_name="tp")

    with jax.threefry_partitionable(False):
        key = jax.random.key(2, impl=impl)
        got = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Replicated,))(f)(key)
        want = jax.jit(lambda k: jax.random.uniform(k, SHAPE))(key)
    assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def test_many_keys() -> None:
    """Under vmap each key has its own array."""
    keys = jax.random.split(jax.random.key(2), 3)

    def f(keys: Any) -> Any:
        return jax.vmap(lambda k: jaxcc.random.normal(k, block(0, (8, 5)), axis_name="tp"))(keys)

    got = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Replicated,), out_layouts=Sliced(1))(f)(keys)
    want = jax.vmap(lambda k: jax.random.normal(k, (8, 5)))(keys)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_refusals() -> None:
    key = jax.random.key(0)

    def check(f: Callable[..., Any], layout: Any = Replicated) -> Any:
        given = jax.ShapeDtypeStruct(key.shape, key.dtype)
        return jaxcc.typed(mesh=mesh_of(2), in_layouts=(layout,))(f).check(given)

    with raises_layout("LAYOUT_RANDOM"):
        check(lambda k: jaxcc.random.bits(k, block(0, (8,)), axis_name="tp"), Local)
    with raises_layout("LAYOUT_RANDOM"):
        check(lambda k: jaxcc.random.bits(k, (4,), axis_name="tp"))
    with raises_layout("LAYOUT_ARGUMENT"):
        check(lambda k: jaxcc.random.bits(k, (4,), axis_name="tp", dim=1))
    with pytest.raises(LayoutError, match="LAYOUT_AXIS"):
        jaxcc.random.normal(key, (4,), axis_name="tp")
