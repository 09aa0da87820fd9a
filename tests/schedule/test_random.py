"""Random numbers and positions keep their global meaning in every schedule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule

SHAPE = (8, 6, 4)


def dropout(key: Any, y: Any, r: Any) -> Any:
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    keep = jax.random.bernoulli(key, 0.75, total.shape)
    return jaxcc.name(jnp.where(keep, total / 0.75, 0) + r, "out")


def places(key: Any, y: Any, r: Any) -> Any:
    """A causal mask and positions along every dimension, and noise that is broadcast."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    rows = lax.broadcasted_iota(jnp.int32, total.shape, 0)
    cols = jnp.arange(total.shape[1], dtype=jnp.int32)[:, None]
    noise = jax.random.uniform(key, total.shape[2:])
    return jaxcc.name(jnp.where((rows > cols) & (noise < 0.5), total, jnp.arange(4.0) + r), "out")


def steps(
    f: Any, key: Any, n: int, *, dim: int = 0, check_vma: bool = True
) -> tuple[list[Schedule], tuple[Any, ...]]:
    """The schedule after each step, and arguments: small integers, so that sums are exact."""
    rng = np.random.default_rng(n)
    y = rng.integers(-8, 8, (n, *SHAPE)).astype(np.float32)
    r = rng.normal(size=SHAPE).astype(np.float32)
    layouts = (Replicated, Local, Replicated)
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts, check_vma=check_vma)(f)
    given = jax.ShapeDtypeStruct(SHAPE, np.float32)
    s = typed.schedule(jax.ShapeDtypeStruct(key.shape, key.dtype), given, given)
    made = [s, s.split("total", dim=dim)]
    made.append(made[-1].reorder("total.gather", after="out"))
    made.append(made[-1].fuse("total.scatter", ..., "total.gather", name="fused"))
    return made, (key, y, r)


@pytest.mark.parametrize("f", [dropout, places])
@pytest.mark.parametrize(
    ("n", "dim", "check_vma"), [(1, 0, True), (2, 0, False), (2, 1, True), (4, 2, True)]
)
def test_every_schedule_gives_the_same_bits(f: Any, n: int, dim: int, check_vma: bool) -> None:
    key = jax.random.key(3)
    made, args = steps(f, key, n, dim=dim, check_vma=check_vma)

    ranks = jax.vmap(f, in_axes=(None, 0, None), axis_name="tp")
    want = np.asarray(jax.jit(ranks)(*args))[0]
    for s, backend in [*((s, "xla") for s in made[1:]), (made[-1], "host")]:
        got = np.asarray(s.compile(backend)(*args))
        assert got.tobytes() == want.tobytes(), f"{s.steps} on {backend}"
    outside = {op.kind for op in made[-1].program.ops if not op.body}
    assert f is not dropout or not {"random_bits", "iota"} & outside


def test_keys_of_words_and_gradients() -> None:
    made, args = steps(dropout, jax.random.PRNGKey(5), 2)
    runs = [s.compile("host") for s in (made[0], made[-1])]
    want, got = [np.asarray(run(*args)) for run in runs]
    assert got.tobytes() == want.tobytes()
    made, args = steps(dropout, jax.random.key(5), 2)

    def slope(s: Schedule) -> Any:
        run, (key, y, r) = s.compile("host"), args
        return jax.grad(lambda y: jnp.sum(jnp.sin(run(key, y, r))))(y)

    slopes = slope(made[0]), slope(made[-1])
    np.testing.assert_allclose(*map(np.asarray, slopes), rtol=1e-6)


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_bits_that_depend_on_more_than_their_place_are_made_outside(impl: str) -> None:
    with jax.threefry_partitionable(impl == "rbg"):
        made, args = steps(dropout, jax.random.key(5, impl=impl), 2)
        want, got = [np.asarray(s.compile("host")(*args)) for s in (made[0], made[-1])]
    assert got.tobytes() == want.tobytes()
    assert "random_bits" in {op.kind for op in made[-1].program.ops}
