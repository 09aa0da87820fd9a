"""Collectives on `host` at sizes on both sides of each limit where the way in which ranks hand over
what they have changes: one rank that does it all, copies, one another's buffers, results that go
past the caches. In loops, where the memory of one step is that of the next."""

from typing import Any

import fused
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from ranks import mesh_of, run

from jaxcc import comm, optim

# Elements of a rank's operand.
SIZES = [2, 500, 1_100, 30_000, 129_998, 262_144, 262_146, 700_000, 6_000_000]
STEPS = 3


def step(name: str, x: jax.Array) -> jax.Array:
    """Half of the result of a collective, in the shape of x."""
    on: dict[str, Any] = {"backend": "host", "mesh": mesh_of(2)}
    if name == "all_reduce":
        return comm.all_reduce(x, "r", **on) / 2
    if name == "all_gather":
        return comm.all_gather(x[: x.size // 2], "r", **on).reshape(-1) / 2
    if name == "reduce_scatter":
        y = comm.reduce_scatter(x, "r", **on)
        return jnp.concatenate([y, x[: x.size - y.size]]) / 2
    if name == "all_to_all":
        return comm.all_to_all(x.reshape(2, -1), "r", **on).reshape(-1) / 2
    return comm.ppermute(x, "r", [(0, 1), (1, 0)], **on) / 2


def numpy_step(name: str, x: np.ndarray) -> np.ndarray:
    """The same, of both ranks' rows, in f64."""
    half = x.shape[1] // 2
    first, second = x[:, :half], x[:, half:]
    if name == "all_reduce":
        return np.stack([x.sum(0)] * 2) / 2
    if name == "all_gather":
        return np.stack([first.reshape(-1)] * 2) / 2
    if name == "reduce_scatter":
        sums = x.sum(0).reshape(2, half)
        return np.concatenate([sums, x[:, : x.shape[1] - half]], axis=1) / 2
    if name == "all_to_all":
        return (
            np.concatenate(
                [np.stack([first[0], second[0]]), np.stack([first[1], second[1]])], axis=1
            )
            / 2
        )
    return x[::-1] / 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute"]
)
def test_every_way_to_hand_over(name: str, size: int) -> None:
    x = np.random.default_rng().normal(size=(2, size)).astype(np.float32)

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, STEPS, lambda _, y: step(name, y), x)

    got = run(loop, x, mesh=mesh_of(2), check_vma=False)
    wanted = x.astype(np.float64)
    for _ in range(STEPS):
        wanted = numpy_step(name, wanted)
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [3, 700, 40_001, 200_000, 600_000])
def test_fused_optimizers(size: int) -> None:
    """Adam of two arrays, one of them small, against optax on the mean of the gradients."""
    rng = np.random.default_rng()
    shapes = {"w": (size,), "b": (7, 3)}
    mesh = oracles.mesh_of(2, "dp")
    tx = optim.adam(0.1, axis_name="dp", mesh=mesh)
    plain: Any = optax.adam(0.1)
    params: Any = fused.randoms(rng, shapes)
    plain_params: Any = params
    state, plain_state = tx.init(params), plain.init(params)
    step = fused.on_ranks(tx, mesh, None, "step")
    for _ in range(STEPS):
        grads = fused.randoms(rng, shapes, (2,))
        params, state = step(grads, state, params)
        mean = jax.tree.map(lambda g: g.mean(0), grads)
        updates, plain_state = plain.update(mean, plain_state)
        plain_params = optax.apply_updates(plain_params, updates)
        for k in shapes:
            for copy in params[k].addressable_shards:
                np.testing.assert_allclose(copy.data, plain_params[k], rtol=1e-4, atol=1e-5)
