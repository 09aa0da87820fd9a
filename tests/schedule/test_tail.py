"""The attention tail: right before scheduling, after each step, and in value and gradient when
fused.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import avals, close

from jaxcc import Schedule, _compat

# jaxlib 0.11 crashes on psum of an empty array in shard_map, with or without jaxcc.
EMPTY = [(2, 0, 4)] if _compat.JAX_VERSION >= (0, 12) else []


def steps_of(tail: Any) -> list[Schedule]:
    """The schedule after each step, from none to fused."""
    s = [tail.function.schedule(*avals(tail.args))]
    s.append(s[-1].split("total"))
    s.append(s[-1].reorder("total.gather", after="out"))
    s.append(s[-1].fuse("total.scatter", ..., "total.gather", name="fused"))
    return s


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_typed_call_and_reference_are_the_whole_program(
    tail: Callable[..., Any], n: int, check_vma: bool
) -> None:
    t = tail(n, b=12 if n == 3 else 4, check_vma=check_vma)
    close(t.function(*t.args), t.expected)
    close(t.function.reference(*t.args), t.expected)
    close(jax.jit(t.function)(*t.args), t.expected)


@pytest.mark.parametrize("backend", ["xla", "host"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_step_computes_the_same(tail: Callable[..., Any], n: int, backend: str) -> None:
    t = tail(n)
    for schedule in steps_of(t):
        run = schedule.compile(backend)
        close(run(*t.args), t.expected)


@pytest.mark.parametrize("check_vma", [True, False])
def test_fused_gradient_is_that_of_the_whole_program(
    tail: Callable[..., Any], check_vma: bool
) -> None:
    t = tail(2, check_vma=check_vma)
    run = steps_of(t)[-1].compile("host")
    assert run.backend == "host"

    def whole(x, w, b, r):
        return jnp.sum(jnp.sin(jax.nn.gelu(x @ w + b) + r))

    actual = jax.grad(lambda *a: jnp.sum(jnp.sin(run(*a))), argnums=(0, 1, 2, 3))(*t.args)
    with jax.enable_x64():
        wide = [a.astype(np.float64) for a in t.args]
        expected = jax.grad(whole, argnums=(0, 1, 2, 3))(*wide)
    for a, e in zip(actual, expected, strict=True):
        close(a, e)


@pytest.mark.parametrize(
    ("b", "s", "h"),
    [(2, 3, 5), (1, 4, 7), (1, 1, 8), (6, 1, 1), *EMPTY],
)
def test_odd_shapes(tail: Callable[..., Any], b: int, s: int, h: int) -> None:
    """One row per rank, a scattered middle or last dimension, single elements, none at all."""
    t = tail(2, b=b, s=s, h=h)
    close(steps_of(t)[-1].compile("host")(*t.args), t.expected)


def test_a_large_fused_tail_over_many_tiles(tail: Callable[..., Any]) -> None:
    t = tail(4, b=8, s=129, h=513)
    close(steps_of(t)[-1].compile("host")(*t.args), t.expected)


def test_every_rank_holds_the_same_bits(tail: Callable[..., Any]) -> None:
    t = tail(4)
    out = steps_of(t)[-1].compile("host")(*t.args)
    first, *others = [np.asarray(shard.data) for shard in out.addressable_shards]
    assert len(others) == 3
    for other in others:
        assert first.tobytes() == other.tobytes()


def test_inputs_survive_and_donated_ones_are_taken(tail: Callable[..., Any]) -> None:
    t = tail(2)
    schedule = steps_of(t)[-1]
    placed = [jnp.asarray(a) for a in t.args]
    kept = [np.array(a) for a in placed]
    schedule.compile("host")(*placed)
    for before, after in zip(kept, placed, strict=True):
        np.testing.assert_array_equal(before, np.asarray(after))
    run = schedule.compile("host", donate=["r"])
    close(run(*t.args), t.expected)


def test_local_runs_in_the_users_own_shard_map(tail: Callable[..., Any]) -> None:
    from jax.sharding import PartitionSpec as P

    t = tail(2)
    run = steps_of(t)[-1].compile("host")
    mapped = jax.shard_map(
        run.local,
        mesh=t.function.mesh,
        in_specs=(P(None, None, "tp"), P("tp"), P(), P()),
        out_specs=P(),
    )
    close(jax.jit(mapped)(*t.args), t.expected)


@pytest.mark.parametrize("index", range(4), ids=["traced", "split", "reordered", "fused"])
def test_golden_text(
    tail: Callable[..., Any], index: int, golden: Callable[[str, str], None]
) -> None:
    golden(f"tail_{index}", steps_of(tail(2))[index].text(lines=False))
