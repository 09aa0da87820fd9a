"""Groups other than one reduce-scatter with its work: many tensors, work alone, work and a send;
and those that may not be.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, Sliced, on


def schedule_of(f: Any, *shapes: tuple[int, ...], layouts: Any = Local, n: int = 2) -> Schedule:
    layouts = layouts if isinstance(layouts, tuple) else (layouts,) * len(shapes)
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(f)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def psum(x: Any, name: str) -> Any:
    return jaxcc.name(lax.psum(x, "tp"), name)


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s)SCHEDULE_{code}")


def two(a: Any, b: Any) -> tuple[Any, Any]:
    """Two sums, one of which is also read by the other's work."""
    x, y = psum(a, "x"), psum(b, "y")
    return jaxcc.name(jnp.tanh(x), "p"), jaxcc.name(x * y, "q")


@pytest.mark.parametrize("n", [1, 2, 4])
def test_two_sums_and_two_gathers_are_one_kernel(
    n: int, golden: Callable[[str, str], None]
) -> None:
    s = schedule_of(two, (4, 3), (4, 3), n=n).split("x").split("y")
    s = s.reorder("x.gather", after="p").reorder("y.gather", after="q")
    s = s.fuse("x.scatter", "y.scatter", ..., "x.gather", "y.gather", name="both")
    (both,) = (op for op in s.program.ops if op.body)
    assert [op.kind for op in both.body].count("reduce_scatter") == 2
    if n == 2:
        golden("two_sums", s.text(lines=False))
    a, b = arrays((n, 4, 3), (n, 4, 3))
    x, y = (v.astype(np.float64).sum(0) for v in (a, b))
    for backend in ("xla", "host"):
        p, q = s.compile(backend)(a, b)
        close(p, np.tanh(x))
        close(q, x * y)


def test_sums_that_have_nothing_in_common_are_one_kernel() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        return psum(a, "x"), psum(b, "y"), psum(c, "z")

    s = schedule_of(f, *[(4, 3)] * 3).split("x").split("y").split("z")
    s = s.fuse(*(f"{v}.{part}" for v in "xyz" for part in ("scatter", "gather")), name="all")
    given = arrays(*[(2, 4, 3)] * 3)
    for got, x in zip(s.compile("host")(*given), given, strict=True):
        close(got, x.astype(np.float64).sum(0))


def test_several_gathers_alone_are_one_kernel() -> None:
    def f(a: Any, b: Any) -> Any:
        x = jaxcc.name(lax.all_gather(a * 2, "tp", tiled=True), "x")
        return x, jaxcc.name(lax.all_gather(b, "tp", tiled=True), "y")

    s = schedule_of(f, (8, 3), (8, 3), layouts=Sliced(0)).fuse("x", "y", name="both")
    a, b = arrays((8, 3), (8, 3))
    for backend in ("xla", "host"):
        x, y = s.compile(backend)(a, b)
        close(x, 2 * a)
        close(y, b)


def test_blocks_that_are_alike_are_gathered() -> None:
    """A Replicated operand is the rank's block, not a whole array to take a block of."""

    def f(v: Any) -> Any:
        g = jaxcc.name(lax.all_gather(v, "tp", tiled=True), "g")
        return g.sum(0) / lax.axis_size("tp")

    s = schedule_of(f, (4, 3), layouts=Replicated).fuse("g", name="fused")
    (v,) = arrays((4, 3))
    close(s.compile("host")(v), v.astype(np.float64).sum(0))


def test_a_kernel_does_not_become_part_of_another() -> None:
    def f(a: Any, b: Any) -> Any:
        return psum(a, "x"), psum(b, "y")

    s = schedule_of(f, (4, 3), (6, 3)).split("x").split("y")
    with refused("NOT_POINTWISE.*kernel already"):
        s.fuse("x.scatter", "x.gather", name="f").fuse("f", "y.scatter", name="g")


def test_what_a_kernel_cannot_return_is_refused() -> None:
    """Only a block of a whole value would be written."""

    def f(a: Any, w: Any) -> Any:
        double = jaxcc.name(w * 2, "double")
        return jaxcc.name(psum(a, "x") + double, "out"), jnp.sum(double)

    s = schedule_of(f, (4, 3), (4, 3), layouts=(Local, Replicated)).split("x")
    with refused(r"TWO_GROUPS.*'double' f32\[4,3\] has nothing to do with the group's collectives"):
        s.fuse("x.scatter", "double", name="f")


def test_a_gather_that_is_read_in_its_group_names_the_reorder() -> None:
    def f(a: Any, w: Any) -> Any:
        work = jaxcc.name(jnp.tanh(psum(a, "x") * w), "work")
        return jaxcc.name(work + 1, "out"), jnp.cumsum(work, axis=0)

    s = schedule_of(f, (4, 3), (4, 3), layouts=(Local, Replicated)).split("x")
    with refused(r"WRONG_OPERATION.*reorder\('x.gather', after='out'\) first, so that 'mul' runs"):
        s.fuse("x.scatter", ..., "x.gather", ..., "out", name="f")
    s = s.reorder("x.gather", after="out").fuse("x.scatter", ..., "x.gather", name="f")
    a, w = arrays((2, 4, 3), (4, 3))
    work = np.tanh(a.astype(np.float64).sum(0) * w)
    out, cumulated = s.compile("host")(a, w)
    close(out, work + 1)
    close(cumulated, np.cumsum(work, axis=0))


def test_a_gather_that_cannot_move_is_read_outside() -> None:
    s = schedule_of(lambda a: jaxcc.name(psum(a, "x") + psum(a, "x").T, "out"), (4, 4))
    s = s.split("x")
    gather = next(op.name for op in s.program.ops if op.kind == "all_gather")
    with refused(f"WRONG_OPERATION.*'{gather}' is gathered and then read.*fix: (reorder|leave)"):
        s.fuse("x.scatter", gather, "out", name="f")


def work(a: Any, b: Any) -> Any:
    t = jaxcc.name(jnp.tanh(a + b), "t")
    u = jaxcc.name(t + t + t, "u")
    return jaxcc.name(lax.psum(jnp.sum(u - b), "tp"), "out")


def test_work_alone_is_a_named_group(golden: Callable[[str, str], None]) -> None:
    s = schedule_of(work, (4, 3), (3,), layouts=(Sliced(0), Replicated))
    s = s.fuse("t", ..., "u", name="chain")
    golden("chain", s.text(lines=False))
    run = s.compile("host")
    assert run.backend == "xla"
    a, b = arrays((4, 3), (3,))
    close(run(a, b), (3 * np.tanh(a.astype(np.float64) + b) - b).sum())


def test_a_group_of_work_becomes_part_of_a_kernel() -> None:
    def f(a: Any, w: Any) -> Any:
        t = jaxcc.name(psum(a, "x") * w, "t")
        return jaxcc.name(jnp.exp(-t), "out")

    s = schedule_of(f, (4, 3), (4, 3), layouts=(Local, Replicated)).split("x")
    s = s.reorder("x.gather", after="out").fuse("t", ..., "out", name="work")
    s = s.fuse("x.scatter", "work", "x.gather", name="kernel")
    (kernel,) = (op for op in s.program.ops if op.body)
    assert not any(part.body for part in kernel.body)
    a, w = arrays((2, 4, 3), (4, 3))
    close(s.compile("host")(a, w), np.exp(-a.astype(np.float64).sum(0) * w))


@pytest.mark.parametrize("after", ["work", "out"])
def test_a_gather_moves_past_a_group_of_work(after: str) -> None:
    def f(a: Any, w: Any) -> Any:
        t = jaxcc.name(psum(a, "x") * w, "t")
        u = jaxcc.name(jnp.exp(-t), "u")
        return jaxcc.name(u - jnp.sum(u * w, axis=0), "out"), t

    s = schedule_of(f, (4, 3), (4, 3), layouts=(Local, Replicated)).split("x")
    s = s.fuse("t", ..., "u", name="work").reorder("x.gather", after=after)
    (group,) = (op for op in s.program.ops if op.body)
    assert [t.shape for t in group.types] == [(2, 3), (2, 3)]
    s = s.fuse("x.scatter", "work", name="kernel")
    a, w = arrays((2, 4, 3), (4, 3))
    t = a.astype(np.float64).sum(0) * w
    out, product = s.compile("host")(a, w)
    close(out, np.exp(-t) - (np.exp(-t) * w).sum(0))
    close(product, t)


def hand_over(y: Any, bias: Any) -> Any:
    t = jaxcc.name(jnp.tanh(y + bias), "t")
    n = lax.axis_size("pp")
    sent = lax.ppermute(t, "pp", [(i, (i + 1) % n) for i in range(n)])
    sent = jaxcc.name(sent, "sent")
    return jaxcc.name(sent + sent, "out")


def stages() -> Schedule:
    mesh = jax.make_mesh((2,), ("pp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    typed = jaxcc.typed(mesh=mesh, in_layouts=(on(pp=Local), Replicated))(hand_over)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 3), (3,))))


def test_work_and_the_send_of_its_result(golden: Callable[[str, str], None]) -> None:
    s = stages().fuse("add", ..., "sent", name="handed")
    golden("handed", s.text(lines=False))
    y, bias = arrays((2, 4, 3), (3,))
    expected = 2 * np.tanh(y.astype(np.float64) + bias)[::-1]
    for backend in ("xla", "host"):
        close(s.compile(backend)(y, bias), expected)


def test_fusions_with_sends_that_are_refused() -> None:
    with refused("WRONG_OPERATION.*received and then read.*leave 'out' out"):
        stages().fuse("t", "sent", "out", name="f")

    def f(y: Any) -> Any:
        t = psum(y, "t")
        n = lax.axis_size("tp")
        back = lax.ppermute(t, "tp", [(i, i) for i in range(n)])
        sent = lax.ppermute(t, "tp", [(i, (i + 1) % n) for i in range(n)])
        return jaxcc.name(back * 1, "b"), jaxcc.name(sent * 1, "s")

    s = schedule_of(f, (4, 3)).split("t")
    with refused("TWO_GROUPS.*'ppermute' sends over 'tp', which the group's collectives run over"):
        s.fuse("t.gather", "ppermute", name="f")
    with refused("TWO_GROUPS.*same ranks of one axis"):
        s.fuse("ppermute", "ppermute_1", name="f")


def test_what_no_group_holds_is_refused() -> None:
    def f(a: Any) -> Any:
        looped = lax.fori_loop(0, 2, lambda _, x: jnp.sin(x), jaxcc.name(a * 2, "before"))
        return jaxcc.name(jnp.cumsum(looped + 1), "out"), jnp.broadcast_to(a, (2, 3))

    s = schedule_of(f, (3,), layouts=Replicated)
    loop = next(op.name for op in s.program.ops if op.has_inner_jaxprs)
    with refused("NOT_POINTWISE.*a loop, a branch or another"):
        s.fuse("before", loop, name="f")
    with refused("NOT_POINTWISE.*does not treat every element by itself"):
        s.fuse("out", name="f")
    with refused("NO_COLLECTIVE"):
        s.fuse("broadcast_in_dim", name="f")


def test_a_cycle_through_work_outside_is_refused() -> None:
    def f(a: Any) -> Any:
        t = jaxcc.name(a * 2, "t")
        return jaxcc.name(t + jnp.cumsum(t), "out")

    with refused("CYCLE"):
        schedule_of(f, (3,), layouts=Replicated).fuse("t", "out", name="f")
