"""Programs that once broke a rewrite or a kernel, each as its whole kind."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Partial, Replicated, Schedule, ScheduleError, Sliced
from jaxcc.schedule import Step
from jaxcc.schedule._step import REWRITES


def typed(f: Any, *layouts: Any, n: int = 2, **options: Any) -> Any:
    return jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts, **options)(f)


def fused(s: Schedule, name: str = "total", after: str = "out", dim: int | None = None) -> Schedule:
    s = s.split(name, dim=dim).reorder(f"{name}.gather", after=after)
    return s.fuse(f"{name}.scatter", ..., f"{name}.gather", name="fused")


def test_names_stay_unique_when_a_gather_is_moved_again_and_again() -> None:
    def f(x: Any, w: Any) -> Any:
        t = jaxcc.name(lax.psum(x, "tp"), "t")
        a, b = jaxcc.name(t * w, "a"), jaxcc.name(t + w, "b")
        return a, b, jaxcc.name(t - w, "c"), t

    shapes = [jax.ShapeDtypeStruct((4, 6), np.float32)] * 2
    s = typed(f, Local, Replicated).schedule(*shapes).split("t").reorder("t.gather", after="a")
    for label in ("b", "c"):
        (moved,) = (
            op for op in s.program.ops if op.kind == "all_gather" and s.program.users(op.name)
        )
        s = s.reorder(moved.name, after=label)
        names = [op.name for op in s.program.ops]
        assert len(names) == len(set(names))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 4, 6)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    t = x.astype(np.float64).sum(0)
    for got, expected in zip(s.compile("xla")(x, w), (t * w, t + w, t - w, t), strict=True):
        close(got, expected)


def test_a_rewrite_that_breaks_every_group_size_alike_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rewritten program agrees with itself on one rank; it must be held against its source."""

    def swapped(program: Any) -> Any:
        return program.with_ops(program.ops, outputs=program.outputs[::-1])

    monkeypatch.setitem(REWRITES, "swap", swapped)
    f = typed(lambda x: (lax.psum(x, "tp"), lax.psum(2 * x, "tp")), Local)
    s = f.schedule(jax.ShapeDtypeStruct((4,), np.float32))
    with pytest.raises(ScheduleError, match="SCHEDULE_CHANGES_RESULT"):
        s.then(Step("swap", {}))


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("work", [jax.nn.elu, jnp.nan_to_num, lambda t: jnp.where(t > 0, t, 0.0)])
def test_constants_broadcast_over_one_row_per_rank(work: Any, rows: int) -> None:
    def f(p: Any) -> Any:
        return jaxcc.name(work(jaxcc.name(lax.psum(p, "tp"), "total")), "out")

    p = np.random.default_rng(rows).normal(size=(2, rows, 8)).astype(np.float32)
    run = fused(typed(f, Local).schedule(jax.ShapeDtypeStruct((rows, 8), np.float32)))
    expected = np.asarray(work(p.astype(np.float64).sum(0)))
    close(run.compile("host")(p), expected)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(16,), (8, 1), (1, 16), (8, 16)])
def test_captured_arrays_are_sliced_where_they_have_the_dimension(
    shape: tuple[int, ...], dim: int
) -> None:
    captured = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def f(p: Any) -> Any:
        total = jaxcc.name(lax.psum(p, "tp"), "total")
        return jaxcc.name(jnp.tanh(total) + captured, "out")

    p = np.random.default_rng(1).normal(size=(2, 8, 16)).astype(np.float32)
    s = fused(typed(f, Local).schedule(jax.ShapeDtypeStruct((8, 16), np.float32)), dim=dim)
    for backend in ("host", "xla"):
        close(s.compile(backend)(p), np.tanh(p.astype(np.float64).sum(0)) + captured)


@pytest.mark.parametrize("group", [("t.gather",), ("t.scatter",), ("t.scatter", "t.gather")])
def test_collectives_fused_without_work(group: tuple[str, ...]) -> None:
    f = typed(lambda x: jaxcc.name(lax.psum(x, "tp"), "t"), Local)
    s = f.schedule(jax.ShapeDtypeStruct((4, 3), np.float32)).split("t").fuse(*group, name="f")
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    close(s.compile("host")(x), x.astype(np.float64).sum(0))


@pytest.mark.parametrize(
    ("f", "layout"),
    [
        (lambda v: lax.all_gather(v, "tp").reshape(8, 4), Sliced(0)),
        (lambda v: lax.all_gather(v, "tp").sum(0), Local),
        (lambda v: lax.all_gather(v, "tp").sum(0) / lax.axis_size("tp"), Replicated),
        (lambda v: lax.all_gather(v, "tp", axis=1, tiled=True), Sliced(1)),
    ],
)
def test_gathers_that_are_accepted_run(f: Any, layout: Any) -> None:
    g = typed(f, layout, out_layouts=Replicated)
    shape = (2, 8, 4) if layout == Local else (8, 4)
    v = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    close(g(v), v.astype(np.float64).sum(0) if layout == Local else v)
    close(g.reference(v), v.astype(np.float64).sum(0) if layout == Local else v)


def test_results_that_one_rank_cannot_hold_have_a_reference() -> None:
    v = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for f, out in ((lambda v: v.max(0), Partial("max")), (lambda v: v.sum(0), Partial())):
        g = typed(f, Sliced(0), out_layouts=out)
        close(g(v), g.reference(v))
        reduce = np.max if out == Partial("max") else np.sum
        close(
            reduce(np.asarray(g.reference(v), np.float64), axis=0), reduce(v.astype(float), axis=0)
        )


def test_forward_mode_and_second_derivatives_of_typed_functions() -> None:
    f = typed(lambda x, w: jnp.tanh(lax.psum(x @ w, "tp")), Sliced(1), Sliced(0))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)

    def whole(w: Any) -> Any:
        return jnp.tanh(x @ w)

    _, tangent = jax.jvp(lambda w: f(x, w), (w,), (w,))
    close(tangent, jax.jvp(whole, (w,), (w,))[1])
    hessian = jax.jit(jax.hessian(lambda w: f(x, w).sum()))(w)
    close(hessian, jax.hessian(lambda w: whole(w).sum())(w))
