"""A rank that waits long leaves the core to others."""

import time
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from ranks import mesh_of, run

from jaxcc import comm


# By outboxes, and with one another's buffers.
@pytest.mark.parametrize(("ranks", "size"), [(2, 10_000), (2, 1_000_000), (4, 10_000)])
def test_a_waiting_rank_is_idle(ranks: int, size: int) -> None:
    mesh = mesh_of(ranks)

    def late(x: jax.Array, seconds: jax.Array) -> Any:
        def sleep(x: np.ndarray, seconds: np.ndarray) -> np.ndarray:
            time.sleep(float(seconds))
            return x

        one = jax.ShapeDtypeStruct((1,), x.dtype)
        first = lax.cond(
            seconds > 0, lambda: jax.pure_callback(sleep, one, x[:1], seconds), lambda: x[:1]
        )
        return comm.all_reduce(x.at[:1].set(first), "r", backend="host", mesh=mesh)

    x = np.random.default_rng().normal(size=(ranks, size)).astype(np.float32)
    seconds = np.zeros(ranks, np.float32)
    run(late, x, seconds, mesh=mesh, check_vma=False)  # compiles
    seconds[ranks - 1] = 2
    before, start = time.process_time(), time.monotonic()
    got = jax.block_until_ready(run(late, x, seconds, mesh=mesh, check_vma=False))
    used = time.process_time() - before
    assert time.monotonic() - start > 2
    np.testing.assert_allclose(
        np.asarray(got), np.stack([x.astype(np.float64).sum(0)] * ranks), rtol=1e-5, atol=1e-5
    )
    assert used < 1
