"""Collectives of what XLA does not hold in whole numbers of bytes or words, against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import MOVING, NUMPY, REDUCE, REDUCING, random_call
from ranks import mesh_of, run

import jaxcc
from jaxcc import Local, Replicated, comm

BACKENDS = ["xla", "host", "auto"]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_move_as_their_words_do(backend: str, check_vma: bool, impl: str) -> None:
    ranks = 3
    rng = np.random.default_rng(len(impl) + check_vma)
    mesh = mesh_of(ranks)
    calls = [(name, *random_call(name, ranks, rng)) for name in MOVING]
    keys = [
        jax.random.split(jax.random.key(int(rng.integers(1 << 30)), impl=impl), (ranks, *shape))
        for _, shape, _ in calls
    ]

    def body(*keys: jax.Array) -> list[jax.Array]:
        made = [
            getattr(comm, name)(key, "r", backend=backend, mesh=mesh, **parameters)
            for (name, _, parameters), key in zip(calls, keys, strict=True)
        ]
        assert all(str(y.dtype) == str(keys[0].dtype) for y in made)
        return [jax.random.key_data(y) for y in made]

    results = run(body, *keys, mesh=mesh, check_vma=check_vma)
    for (name, _, parameters), key, actual in zip(calls, keys, results, strict=True):
        words = np.asarray(jax.random.key_data(key))
        wanted = [NUMPY[name](words[..., word], **parameters) for word in range(words.shape[-1])]
        np.testing.assert_array_equal(actual, np.stack(wanted, -1), err_msg=f"{name} {parameters}")


def test_a_key_that_is_broadcast_is_checked() -> None:
    jaxcc.check(
        lambda key: comm.broadcast(key, "r", root=1),
        jax.eval_shape(jax.random.key, 0),
        mesh=jax.sharding.AbstractMesh((2,), ("r",)),
        in_layouts=(Local,),
        out_layouts=Replicated,
    )


@pytest.mark.parametrize("dtype", ["int2", "uint2", "int4", "uint4"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_shorter_than_a_byte(backend: str, dtype: str) -> None:
    ranks = 3
    short: Any = jnp.dtype(dtype)
    low, high = int(jnp.iinfo(short).min), int(jnp.iinfo(short).max)
    rng = np.random.default_rng(high - low)
    mesh = mesh_of(ranks)
    calls = [(name, *random_call(name, ranks, rng)) for name in MOVING]
    for name in REDUCING:
        for op in (op for op in REDUCE if op != "mean"):
            shape, parameters = random_call(name, ranks, rng)
            calls.append((name, shape, {**parameters, "op": op}))
    xs = [rng.integers(low, high + 1, (ranks, *shape)) for _, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        made = [
            getattr(comm, name)(x.astype(short), "r", backend=backend, mesh=mesh, **parameters)
            for (name, _, parameters), x in zip(calls, xs, strict=True)
        ]
        assert all(y.dtype == short for y in made)
        return [y.astype(jnp.int32) for y in made]

    results = run(body, *(x.astype(np.int32) for x in xs), mesh=mesh)
    for (name, _, parameters), x, actual in zip(calls, xs, results, strict=True):
        # Sums and products wrap around.
        wanted = low + (NUMPY[name](x, **parameters) - low) % (high - low + 1)
        np.testing.assert_array_equal(actual, wanted, err_msg=f"{name} {parameters}")
