"""What each verb does on programs other than the tail, and what it refuses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, Sliced

F32 = jnp.float32


def schedule_of(
    f: Callable[..., Any], shapes: list[tuple[int, ...]], layouts: Any, n: int = 2, dtype: Any = F32
) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(f)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes))


def momentum(g: Any, w: Any, m: Any, lr: Any) -> tuple[Any, Any]:
    """A step of SGD with momentum; g is each rank's own."""
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    m = jaxcc.name(0.9 * m + total, "new_m")
    return jaxcc.name(w - lr * m, "new_w"), m


MOMENTUM = (Local, Replicated, Replicated, Replicated)


def momentum64(g: Any, w: Any, m: Any, lr: Any) -> tuple[Any, Any]:
    g, w, m = (np.asarray(a, np.float64) for a in (g, w, m))
    m = 0.9 * m + g.sum(0)
    return w - float(lr) * m, m


@pytest.mark.parametrize("n", [1, 2, 4])
def test_state_stays_sliced_between_calls(n: int) -> None:
    rng = np.random.default_rng(n)
    g = rng.normal(size=(n, 8, 3)).astype(np.float32)
    w, m = (rng.normal(size=(8, 3)).astype(np.float32) for _ in range(2))
    lr = np.float32(0.1)
    s = schedule_of(momentum, [(8, 3), (8, 3), (8, 3), ()], MOMENTUM, n)
    s = s.split("total").reorder("total.gather", after="new_w").as_slice("m", "new_m")
    s = s.fuse("total.scatter", ..., "total.gather", name="update")
    expected = momentum64(g, w, m, lr)
    for run in (s.compile("xla"), s.compile("host"), s.compile("host", donate=["w", "m"])):
        new_w, new_m = run(g, w, m, lr)
        close(new_w, expected[0])
        close(new_m, expected[1])
        assert new_m.addressable_shards[0].data.shape == (8 // n, 3)
    again = run(g, new_w, new_m, lr)
    close(again[0], momentum64(g, *expected, lr)[0])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dimension_can_be_scattered(dim: int, golden: Callable[[str, str], None]) -> None:
    """Broadcast operands are sliced exactly where they have the scattered dimension."""

    def f(y: Any, rows: Any, cols: Any, full: Any) -> Any:
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        return jaxcc.name(jnp.tanh(total * rows[:, None, None] + cols) * full, "out")

    shapes = [(4, 6, 8), (4,), (8,), (4, 6, 8)]
    s = schedule_of(f, shapes, (Local, Replicated, Replicated, Replicated))
    s = s.split("total", dim=dim).reorder("total.gather", after="out")
    golden(f"dim_{dim}", s.text(lines=False))
    s = s.fuse("total.scatter", ..., "total.gather", name="fused")
    rng = np.random.default_rng(dim)
    y = rng.normal(size=(2, 4, 6, 8)).astype(np.float32)
    rows, cols, full = (rng.normal(size=x).astype(np.float32) for x in shapes[1:])
    y64 = y.astype(np.float64).sum(0)
    expected = np.tanh(y64 * rows[:, None, None] + cols) * full
    for backend in ("xla", "host"):
        close(s.compile(backend)(y, rows, cols, full), expected)


def test_values_read_elsewhere_are_gathered() -> None:
    def f(y: Any) -> Any:
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        middle = jaxcc.name(total * 2, "middle")
        return jaxcc.name(jnp.exp(-middle), "out"), middle.sum(), total

    s = schedule_of(f, [(4, 2)], (Local,)).split("total").reorder("total.gather", after="out")
    y = np.random.default_rng(0).normal(size=(2, 4, 2)).astype(np.float32)
    t = y.astype(np.float64).sum(0)
    for backend in ("xla", "host"):
        out, middle, total = s.fuse("total.scatter", ..., "total.gather", name="f").compile(
            backend
        )(y)
        close(out, np.exp(-2 * t))
        close(middle, 2 * t.sum())
        close(total, t)


def test_captured_arrays_and_integer_inputs() -> None:
    table = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def f(y: Any, keep: Any) -> Any:
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        return jaxcc.name(jnp.where(keep > 2, total * table, -total), "out")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))(f)
    s = typed.schedule(jax.ShapeDtypeStruct((4, 6), F32), jax.ShapeDtypeStruct((6,), jnp.int32))
    s = s.split("total").reorder("total.gather", after="out")
    s = s.fuse("total.scatter", ..., "total.gather", name="fused")
    y = np.random.default_rng(1).normal(size=(2, 4, 6)).astype(np.float32)
    keep = np.arange(6, dtype=np.int32)
    total = y.astype(np.float64).sum(0)
    close(s.compile("host")(y, keep), np.where(keep > 2, total * table, -total))


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s){code}")


def tail(x: Any, w: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(x @ w, "tp"), "total")
    soft = jaxcc.name(jax.nn.softmax(total + b), "soft")
    return jaxcc.name(soft * 2, "out")


def made() -> Schedule:
    return schedule_of(tail, [(4, 8), (8, 6), (6,)], (Sliced(1), Sliced(0), Replicated))


def test_split_refuses() -> None:
    with refused("SCHEDULE_NOT_FOUND.*close to it are total"):
        made().split("totale")
    with refused("SCHEDULE_NOT_FOUND.*split into total.scatter and total.gather"):
        made().split("total").split("total")
    with refused("SCHEDULE_WRONG_OPERATION.*acts on all_reduce"):
        made().split("out")
    with refused("SCHEDULE_ARGUMENT.*no dimension 7"):
        made().split("total", dim=7)
    assert made().split("total", dim=-1).steps == made().split("total", dim=1).steps
    odd = schedule_of(lambda y: jaxcc.name(lax.psum(y, "tp"), "total"), [(3, 5)], (Local,))
    with refused("SCHEDULE_INDIVISIBLE.*no dimension"):
        odd.split("total")
    top = schedule_of(lambda y: jaxcc.name(lax.pmax(y, "tp"), "total"), [(4,)], (Local,))
    with refused("SCHEDULE_WRONG_OPERATION.*only a sum"):
        top.split("total")


def test_reorder_refuses() -> None:
    with refused("SCHEDULE_NOT_DEPENDENT"):
        made().split("total").reorder("total.gather", after="dot_general")
    with refused("SCHEDULE_WRONG_OPERATION"):
        made().split("total").reorder("total.scatter", after="out")


def test_as_slice_refuses() -> None:
    s = schedule_of(momentum, [(8, 3), (8, 3), (8, 3), ()], MOMENTUM).split("total")
    with refused("SCHEDULE_READ_WHOLE.*reads all of 'm'"):
        s.as_slice("m")
    s = s.reorder("total.gather", after="new_w")
    with refused("SCHEDULE_READ_WHOLE.*gathered only to be returned"):
        s.as_slice("mul_1")
    with refused("SCHEDULE_READ_WHOLE"):
        s.as_slice("m", "m")
    with refused("SCHEDULE_NOT_FOUND"):
        s.as_slice("nothing")


def test_fuse_refuses() -> None:
    s = made().split("total")
    with refused("SCHEDULE_ARGUMENT.*neither first nor last"):
        s.fuse(..., "total.gather", name="f")
    with refused("SCHEDULE_WRONG_OPERATION.*is gathered and then read"):
        s.fuse("total.gather", ..., "out", name="f")
    with refused("SCHEDULE_NOT_POINTWISE.*dot_general"):
        s.fuse("dot_general", "total.scatter", name="f")
    with refused("SCHEDULE_NOT_POINTWISE.*dot_general.*leave"):
        made().fuse("dot_general", "total", name="f")
    with refused("SCHEDULE_WRONG_OPERATION|SCHEDULE_NOT_POINTWISE"):
        s.fuse("dot_general", ..., "total.gather", name="f")
    fused = s.fuse("total.scatter", "total.gather", name="f")
    with refused("SCHEDULE_NOT_FOUND.*already fused"):
        fused.split("total.scatter")
    with refused("SCHEDULE_ARGUMENT.*taken"):
        s.fuse("total.scatter", "total.gather", name="out")


def test_an_operation_outside_between_two_inside_is_a_cycle() -> None:
    def f(y: Any) -> Any:
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        a = jaxcc.name(total * 2, "a")
        return jaxcc.name(jnp.sin(a) + total, "out"), a

    s = schedule_of(f, [(4,)], (Local,)).split("total").reorder("total.gather", after="out")
    with refused("SCHEDULE_CYCLE"):
        s.fuse("total.scatter", "out", "total.gather", name="f")


def test_schedules_are_values() -> None:
    s = made()
    s.split("total")
    assert s.steps == () and "total.scatter" not in str(s)


def test_compile_refuses() -> None:
    s = made()
    with pytest.raises(jaxcc.BackendError, match="BACKEND_UNKNOWN.*auto, host, xla"):
        s.compile("gpu")
    with refused("SCHEDULE_ARGUMENT.*no input 'q'"):
        s.compile(donate=["q"])
    with refused("SCHEDULE_ARGUMENT.*compiled for"):
        s.compile()(np.zeros((4, 8), np.float32))
    with pytest.raises(jaxcc.LayoutError, match="LAYOUT_INDIVISIBLE"):
        schedule_of(tail, [(4, 9), (9, 6), (6,)], (Sliced(1), Sliced(0), Replicated))


def bias(y: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    return jaxcc.name(total + b, "out")


@pytest.mark.parametrize("backend", ["host", "xla"])
@pytest.mark.parametrize(
    ("y", "b"),
    [
        (np.zeros((2, 4, 8), np.float32), np.zeros(4, np.float32)),
        (np.zeros((2, 4, 8), np.float32), np.zeros(16, np.float32)),
        (np.zeros((2, 4, 8), np.float32), np.zeros(1, np.float32)),
        (np.zeros((2, 4, 8), np.float32), np.zeros(8, np.int32)),
        (np.zeros((2, 4, 8), np.float32), jnp.zeros(8, jnp.bfloat16)),
        (np.zeros((2, 2, 8), np.float32), np.zeros(8, np.float32)),
        (np.zeros((4, 4, 8), np.float32), np.zeros(8, np.float32)),
        (np.zeros((4, 8), np.float32), np.zeros(8, np.float32)),
    ],
)
def test_a_compiled_program_refuses_other_shapes_and_dtypes(backend: str, y: Any, b: Any) -> None:
    """A kernel would read past the end of a buffer, or take its bits for another dtype's."""
    s = schedule_of(bias, [(4, 8), (8,)], (Local, Replicated))
    s = s.split("total").reorder("total.gather", after="out")
    run = s.fuse("total.scatter", ..., "total.gather", name="fused").compile(backend)
    with refused("SCHEDULE_ARGUMENT.*was compiled for [yb]: f32"):
        run(y, b)
    with refused("SCHEDULE_ARGUMENT.*was compiled for [yb]: f32"):
        run(b=b, y=y)
    mine = jax.shard_map(
        run.local, mesh=mesh_of(2), in_specs=(P("tp"), P()), out_specs=P(), check_vma=False
    )
    with refused("SCHEDULE_ARGUMENT.*was compiled for [yb]: f32"):
        mine(y.reshape(-1, *y.shape[2:]) if y.ndim == 3 else y[:2], b)
    close(run(y=np.ones((2, 4, 8), np.float32), b=np.ones(8, np.float32)), np.full((4, 8), 3.0))
