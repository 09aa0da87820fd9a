"""dead: results that nobody reads are not returned, and what only they need is not computed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError
from jaxcc.schedule._step import REWRITES, Step

LAYOUTS = (Local, Replicated, Replicated, Replicated)
SHAPES = [(8, 3), (8, 3), (8, 3), ()]


def momentum(g: Any, w: Any, m: Any, lr: Any) -> dict[str, Any]:
    """A step of SGD with momentum that also reports the size of the gradient."""
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    new_m = jaxcc.name(0.9 * m + total, "new_m")
    size = jaxcc.name(jnp.sqrt(jnp.sum(total * total)), "size")
    return {"m": new_m, "size": size, "w": (jaxcc.name(w - lr * new_m, "new_w"), w)}


def made(n: int = 2) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=LAYOUTS)(momentum)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, np.float32) for s in SHAPES))


def arguments(n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    g = rng.normal(size=(n, 8, 3)).astype(np.float32)
    w, m = (rng.normal(size=(8, 3)).astype(np.float32) for _ in range(2))
    return g, w, m, np.float32(0.1)


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s){code}")


@pytest.mark.parametrize("backend", ["xla", "host"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_other_results_stay(n: int, backend: str) -> None:
    g, w, m, lr = arguments(n)
    s = made(n).dead("size", "w").split("total").reorder("total.gather", after="new_w")
    s = s.dead("new_m").fuse("total.scatter", ..., "total.gather", name="update")
    got = s.compile(backend)(g, w, m, lr)
    assert got["m"] is None and got["size"] is None and got["w"][1] is None
    close(got["w"][0], w - np.float64(lr) * (0.9 * m + g.astype(np.float64).sum(0)))
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=LAYOUTS)(momentum)
    close(got["w"][0], typed.reference(g, w, m, lr)["w"][0])


def test_golden_text(golden: Callable[[str, str], None]) -> None:
    s = made().split("total").reorder("total.gather", after="new_w")
    golden("dead_0", s.text(lines=False))
    golden("dead_1", s.dead("new_m", "w").text(lines=False))
    golden("dead_2", s.dead("new_m", "w", "size").text(lines=False))


def test_what_others_read_stays_computed() -> None:
    names = [op.name for op in made().dead("new_m").program.ops]
    assert "new_m" in names and "size" in names
    names = [op.name for op in made().dead("size").program.ops]
    assert "size" not in names and "reduce_sum" not in names and "new_m" in names


def test_one_value_may_be_several_results() -> None:
    def f(x):
        total = jaxcc.name(lax.psum(x, "tp"), "total")
        return total, 2 * total, total

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((4,), np.float32)).dead("total")
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    first, second, third = s.compile("xla")(x)
    assert first is None and third is None
    close(second, 2 * x.astype(np.float64).sum(0))


@pytest.mark.parametrize("sliced", [False, True])
def test_the_derivative_is_that_of_the_results_that_are_left(sliced: bool) -> None:
    g, w, m, lr = arguments(2)
    s = made().dead("size", "new_m", "w").split("total").reorder("total.gather", after="new_w")
    s = s.as_slice("new_w", "m") if sliced else s
    run = s.fuse("total.scatter", ..., "new_w", name="update").compile("host")

    def whole(w: Any, m: Any) -> Any:
        return jnp.sum(jnp.sin(w - lr * (0.9 * m + g.sum(0))))

    actual = jax.grad(lambda w, m: jnp.sum(jnp.sin(run(g, w, m, lr)["w"][0])), argnums=(0, 1))
    for a, e in zip(actual(w, m), jax.grad(whole, argnums=(0, 1))(w, m), strict=True):
        close(a, e)


def test_saved_steps_apply() -> None:
    s = made().dead("size").split("total")
    again = made(4).apply(s.to_json())
    assert again.steps == s.steps
    assert again.compile("xla")(*arguments(4))["size"] is None


def test_refusals() -> None:
    s = made()
    with refused("SCHEDULE_NOT_RESULT.*'total' is no result of momentum; the results are new_m"):
        s.dead("total")
    with refused("SCHEDULE_NOT_RESULT.*'m' is an input"):
        s.dead("m")
    with refused("SCHEDULE_NOT_FOUND.*close to it are size"):
        s.dead("siz")
    with refused("SCHEDULE_NOT_FOUND"):
        s.dead("size", "size")
    with refused("SCHEDULE_NOT_RESULT.*no result but 'new_w' left"):
        s.dead("size", "w", "new_m", "new_w")
    s = s.split("total").reorder("total.gather", after="new_w")
    with refused("SCHEDULE_NOT_RESULT.*by the fused 'f'.*dead.'new_m.gather'. before"):
        s.fuse("total.scatter", ..., "new_m.gather", name="f").dead("new_m.gather")


def test_a_rewrite_that_returns_another_result_in_its_place_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swapped(program: Any) -> Any:
        return program.with_ops(program.ops, results=program.results[::-1])

    monkeypatch.setitem(REWRITES, "swap", swapped)
    with refused("SCHEDULE_CHANGES_RESULT"):
        made().dead("size").then(Step("swap", {}))
