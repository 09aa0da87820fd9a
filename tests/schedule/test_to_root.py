"""An all-reduce as a reduce to one rank and a broadcast from it, and work between the two."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import avals, close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, Sliced
from jaxcc.program import everywhere
from jaxcc.schedule._step import REWRITES, Step

F32 = np.float32


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s){code}")


def schedule_of(f: Any, shapes: Any, layouts: Any, n: int = 2, dtype: Any = F32) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(f)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes))


def to_root(s: Schedule, name: str = "total", after: str = "out", root: int = 0) -> Schedule:
    s = s.split(name, policy="reduce-broadcast", root=root)
    return s.reorder(f"{name}.broadcast", after=after)


@pytest.mark.parametrize(("n", "root"), [(1, 0), (2, 1), (4, 0), (4, 2)])
@pytest.mark.parametrize("check_vma", [True, False])
def test_every_step_computes_the_same(
    tail: Callable[..., Any], n: int, root: int, check_vma: bool
) -> None:
    t = tail(n, check_vma=check_vma)
    s = t.function.schedule(*avals(t.args)).split("total", policy="reduce-broadcast", root=root)
    close(s.compile("xla")(*t.args), t.expected)
    run = s.reorder("total.broadcast", after="out").compile("host")
    assert run.backend == "xla"
    close(run(*t.args), t.expected)
    close(run(*t.args), t.function.reference(*t.args))


def test_golden_text(tail: Callable[..., Any], golden: Callable[[str, str], None]) -> None:
    t = tail(4)
    s = t.function.schedule(*avals(t.args)).split("total", policy="reduce-broadcast", root=2)
    golden("to_root_0", s.text(lines=False))
    golden("to_root_1", s.reorder("total.broadcast", after="out").text(lines=False))


def several(y: Any, b: Any) -> Any:
    """On ranks with zeros `soft` is 0 / 0."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    soft = jaxcc.name(total / jnp.abs(total).max(), "soft")
    positive = jaxcc.name(soft > 0, "positive")
    return jaxcc.name(jnp.exp(soft) + b, "out"), positive, total, soft.sum(), b


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_values_read_elsewhere_are_broadcast_and_other_ranks_do_not_leak(
    n: int, check_vma: bool
) -> None:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Replicated), check_vma=check_vma)
    s = typed(several).schedule(*[jax.ShapeDtypeStruct((4, 3), F32)] * 2)
    s = to_root(s, root=n - 1)
    rng = np.random.default_rng(n)
    y, b = (rng.normal(size=x).astype(F32) for x in ((n, 4, 3), (4, 3)))
    total = y.astype(np.float64).sum(0)
    soft = total / np.abs(total).max()
    expected = (np.exp(soft) + b, soft > 0, total, soft.sum(), b)
    results = s.compile("xla")(y, b)
    for got, wanted in zip(results, expected, strict=True):
        close(got, wanted)
        first, *others = [np.asarray(shard.data) for shard in got.addressable_shards]
        assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("reduce", "whole"), [(lax.psum, np.sum), (lax.pmax, np.max), (lax.pmin, np.min)]
)
def test_sums_maxima_and_minima_of_any_dtype(reduce: Any, whole: Any, dtype: Any) -> None:
    def f(y):
        return jaxcc.name(-jaxcc.name(reduce(y, "tp"), "total"), "out")

    y = np.random.default_rng(0).integers(-9, 9, size=(4, 5)).astype(dtype)
    s = to_root(schedule_of(f, [(5,)], (Local,), n=4, dtype=dtype), root=3)
    np.testing.assert_array_equal(s.compile("xla")(y), -whole(y, axis=0).astype(dtype))


def test_the_bits_of_the_root_arrive() -> None:
    def f(y):
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        return jaxcc.name(-total, "out"), lax.complex(total, -total), total.astype(jnp.int8)

    y = np.array([[0.0, np.inf, -np.inf, np.nan, 1.5, -64]] * 2, F32)
    s = to_root(schedule_of(f, [(6,)], (Local,)))
    for after in ("complex", "convert_element_type"):
        (cast,) = (
            op for op in s.program.ops if op.kind == "broadcast" and s.program.users(op.name)
        )
        s = s.reorder(cast.name, after=after)
    out, both, short = map(np.asarray, s.compile("xla")(y))
    for part in (out, both.imag):
        np.testing.assert_array_equal(part, -2 * y[0])
        assert np.signbit(part[0])
    np.testing.assert_array_equal(short[[0, 4, 5]], [0, 3, -128])


def test_two_broadcasts_from_one_root_become_one() -> None:
    def f(x, y):
        a = jaxcc.name(lax.psum(x, "tp"), "a")
        return jaxcc.name(a * jaxcc.name(lax.psum(y, "tp"), "b"), "out")

    made = schedule_of(f, [(4,), (4,)], (Local, Local))
    s = to_root(to_root(made, "a"), "b")
    assert [op.kind for op in s.program.ops].count("broadcast") == 1
    x, y = np.random.default_rng(0).normal(size=(2, 2, 4)).astype(F32)
    close(s.compile("xla")(x, y), x.astype(float).sum(0) * y.astype(float).sum(0))
    with refused("SCHEDULE_ROOTED.*'out' reads values that different ranks hold"):
        to_root(to_root(made, "a"), "b", root=1)


@pytest.mark.parametrize("n", [2, 4])
def test_saved_steps_apply(n: int) -> None:
    s = to_root(schedule_of(several, [(4, 3), (4, 3)], (Local, Replicated)), root=1)
    other = schedule_of(several, [(4, 3), (4, 3)], (Local, Replicated), n)
    assert other.apply(s.to_json()).steps == s.steps


def test_what_is_only_broadcast_to_be_returned_may_be_dead() -> None:
    s = to_root(schedule_of(several, [(4, 3), (4, 3)], (Local, Replicated))).dead("positive")
    assert "positive" not in [op.name for op in s.program.ops]


def halves(y: Any, z: Any, r: Any) -> Any:
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    other = jaxcc.name(lax.psum(z, "tp"), "other")
    return jaxcc.name(jnp.log(total) * r, "out"), other


@pytest.mark.parametrize("sliced", [False, True])
def test_the_derivative_has_nothing_of_other_ranks(sliced: bool) -> None:
    """Of the program itself, as slices are returned: log(0) of ranks that have zeros is -inf."""
    s = to_root(schedule_of(halves, [(4,)] * 3, (Local, Local, Replicated)))
    s = s.split("other").as_slice("other.gather") if sliced else s
    run = s.compile("xla")
    y, z, r = np.random.default_rng(0).uniform(1, 2, size=(3, 2, 4)).astype(F32)
    grad = jax.grad(lambda y, r: run(y, z, r)[0].sum(), argnums=(0, 1))(y, r[0])
    total = y.astype(np.float64).sum(0)
    close(grad[0], np.stack([r[0] / total] * 2))
    close(grad[1], np.log(total))
    kinds = {op.kind for op in everywhere(s.program).ops}
    assert "all_reduce" in kinds and not kinds & {"reduce", "broadcast"}


def layer(y: Any, own: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    mixed = jaxcc.name(total + own, "mixed")
    again = jaxcc.name(lax.psum(total * own, "tp"), "again")
    looped = lax.fori_loop(0, 2, lambda _, t: t * 2, total)
    return mixed, again, jaxcc.name(looped + 1, "looped"), jaxcc.name(total * b, "out")


def made() -> Schedule:
    return schedule_of(layer, [(4,)] * 3, (Local, Local, Replicated))


def test_split_refuses() -> None:
    for root in (2, -1):
        with refused("SCHEDULE_ARGUMENT.*the ranks of 'tp' are 0 to 1"):
            made().split("total", policy="reduce-broadcast", root=root)
    for root in (0.0, True):
        with refused(f"SCHEDULE_ARGUMENT.*root is {root}, not int"):
            made().split("total", policy="reduce-broadcast", root=root)  # pyright: ignore[reportArgumentType]
    with refused("SCHEDULE_ARGUMENT.*policy is 'ring', not 'reduce-scatter' or 'reduce-broadcast'"):
        made().split("total", policy="ring")  # pyright: ignore[reportArgumentType]
    with refused("SCHEDULE_ARGUMENT.*slices no dimension"):
        made().split("total", policy="reduce-broadcast", dim=0)
    with refused("SCHEDULE_ARGUMENT.*reduce-scatter has no root"):
        made().split("total", root=1)
    with refused("SCHEDULE_WRONG_OPERATION.*acts on all_reduce"):
        made().split("out", policy="reduce-broadcast")
    with refused("SCHEDULE_NOT_FOUND.*split into total.reduce and total.broadcast"):
        made().split("total", policy="reduce-broadcast").split("total")


def test_an_all_reduce_over_two_axes_has_no_root() -> None:
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"))
    layouts = jaxcc.on(dp=Local, tp=Local)
    f = jaxcc.typed(mesh=mesh, in_layouts=layouts)(
        lambda y: jaxcc.name(lax.psum(y, ("dp", "tp")), "total")
    )
    with refused("SCHEDULE_WRONG_OPERATION.*only a reduction over one axis has a root"):
        f.schedule(jax.ShapeDtypeStruct((4,), F32)).split("total", policy="reduce-broadcast")


def test_reorder_refuses() -> None:
    s = made().split("total", policy="reduce-broadcast")
    with refused("SCHEDULE_ROOTED.*one rank's 'mixed', which is Local"):
        s.reorder("total.broadcast", after="mixed")
    with refused("SCHEDULE_ROOTED.*'again' .all_reduce. lies between"):
        s.reorder("total.broadcast", after="again")
    with refused("SCHEDULE_ROOTED.*(while|scan). lies between"):
        s.reorder("total.broadcast", after="looped")
    with refused("SCHEDULE_WRONG_OPERATION.*acts on all_gather"):
        s.reorder("total.reduce", after="out")
    with refused("SCHEDULE_NOT_FOUND"):
        s.reorder("total.broadcast", after="nothing")
    s = schedule_of(lambda y, z: several(y, z), [(4, 3)] * 2, (Local, Replicated))
    s = s.split("total", policy="reduce-broadcast")
    with refused("SCHEDULE_NOT_POINTWISE|SCHEDULE_NO_COLLECTIVE"):
        s.fuse("total.reduce", ..., "total.broadcast", name="f")


def test_a_sliced_operand_is_not_the_roots_to_broadcast() -> None:
    def f(y, z):
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        return jaxcc.name(total + z, "out")

    s = schedule_of(f, [(1,), (4,)], (Local, Sliced(0)))
    with refused("SCHEDULE_ROOTED.*'out', which is Sliced"):
        to_root(s)


def replaced(program: Any, name: str, **changes: Any) -> list[Any]:
    return [replace(op, **changes) if op.name == name else op for op in program.ops]


def skip(program: Any) -> Any:
    """Reads what only the root has, on every rank."""
    return program.with_ops(replaced(program, "out", inputs=("total.reduce", "b")))


def collect(program: Any) -> Any:
    return program.with_ops(replaced(program, "mul", inputs=("total.reduce", "own")))


def loop(program: Any) -> Any:
    (op,) = (op for op in program.ops if op.has_inner_jaxprs)
    given = tuple("total.reduce" if x == "total.broadcast" else x for x in op.inputs)
    return program.with_ops(replaced(program, op.name, inputs=given))


def another(program: Any) -> Any:
    params = {"axes": ("tp",), "root": 1}
    return program.with_ops(replaced(program, "total.broadcast", params=params))


def inside(program: Any) -> Any:
    (cast,) = (op for op in program.ops if op.name == "total.broadcast")
    return program.with_ops(replaced(program, cast.name, kind="fused", body=(cast,)))


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        (skip, "'out' is returned"),
        (collect, "'again' .all_reduce. reads on every rank"),
        (loop, "(while|scan). reads on every rank"),
        (another, "'total.broadcast' broadcasts from another rank"),
        (inside, "holds a reduce or a broadcast inside"),
    ],
)
def test_rewrites_that_leak_what_other_ranks_hold_are_noticed(
    monkeypatch: pytest.MonkeyPatch, rewrite: Any, said: str
) -> None:
    monkeypatch.setitem(REWRITES, "leak", rewrite)
    s = made().split("total", policy="reduce-broadcast")
    assert s.layouts["total.reduce"] == "on rank 0 of tp"
    with refused(f"SCHEDULE_ROOTED.*{said}"):
        s.then(Step("leak", {}))
