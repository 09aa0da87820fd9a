"""overlap: chunks compute what the whole does, to the last bit of a random number, and refusals say
what stands against them.
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

SHAPES = ((4, 10, 8), (8, 6), (6,), (4, 10, 6))


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s)SCHEDULE_{code}")


def layer(x: Any, w: Any, b: Any, r: Any, key: Any) -> Any:
    y = jaxcc.name(x @ w, "layer")
    total = jaxcc.name(lax.psum(y, "tp"), "total") + b
    dropped = jnp.where(jax.random.bernoulli(key, 0.7, total.shape), total / 0.7, 0)
    return jaxcc.name(dropped + r, "out")


def fused(n: int = 2, dim: int = 0) -> tuple[Any, Schedule, tuple[Any, ...]]:
    """The layer with its fused all-reduce, and fresh arguments."""
    layouts = (Sliced(2), Sliced(0), Replicated, Replicated, Replicated)
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(layer)
    rng = np.random.default_rng()
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    args = (*arrays, jax.random.key(int(rng.integers(2**31))))
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    s = (
        typed.schedule(*avals, args[-1])
        .split("total", dim=dim)
        .reorder("total.gather", after="out")
    )
    return typed, s.fuse("total.scatter", ..., "total.gather", name="fused"), args


@pytest.mark.parametrize(
    ("n", "dim", "chunks"), [(1, 0, 2), (2, 0, 4), (4, 0, 3), (2, 1, 2), (2, 2, 3)]
)
def test_chunks_are_the_whole(n: int, dim: int, chunks: int) -> None:
    """Against one rank; and against the whole bit by bit, so that dropout drops the same."""
    typed, s, args = fused(n, dim)
    o = s.overlap("layer", "fused", chunks=chunks)
    expected = typed.reference(*args)
    for backend in ("xla", "host"):
        got = o.compile(backend)(*args)
        close(got, expected)
        whole = s.compile(backend)(*args)
        np.testing.assert_array_equal(np.asarray(got) == args[3], np.asarray(whole) == args[3])
        close(got, whole)


def test_golden_text(golden: Callable[[str, str], None]) -> None:
    _, s, _ = fused()
    golden("overlapped", s.overlap("layer", "fused", chunks=4).text(lines=False))


def test_json_gives_it_again() -> None:
    typed, s, args = fused()
    o = s.overlap("layer", "fused", chunks=4, name="both")
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    again = typed.schedule(*avals, args[-1]).apply(o.to_json())
    assert str(again) == str(o)
    assert again.steps == o.steps


def test_gradients_are_those_of_the_source() -> None:
    typed, s, args = fused()
    run = s.overlap("layer", "fused", chunks=2).compile("xla")
    got = jax.grad(lambda w: (run(args[0], w, *args[2:]) ** 2).sum())(args[1])
    close(got, jax.grad(lambda w: (typed(args[0], w, *args[2:]) ** 2).sum())(args[1]))


def test_a_whole_all_reduce_and_a_value_that_others_read() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jaxcc.name(x @ w, "y")
        return jaxcc.name(lax.psum(y, "tp"), "total"), jnp.max(lax.pmax(y, "tp"))

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Local))(f)
    rng = np.random.default_rng()
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((2, 5, 4), (2, 4, 3)))
    s = typed.schedule(*(jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in (x, w)))
    products = x.astype(np.float64) @ w.astype(np.float64)
    for dim in (0, 1):
        total, largest = s.overlap("y", "total", chunks=3, dim=dim).compile()(x, w)
        close(total, products.sum(0))
        close(largest, products.max())


def hand_over(y: Any, bias: Any) -> Any:
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    work = jaxcc.name(jnp.tanh(total + bias), "work")
    stages = lax.axis_size("pp")
    to_next = [(i, (i + 1) % stages) for i in range(stages)]
    return jaxcc.name(lax.ppermute(work, "pp", to_next), "sent")


@pytest.mark.parametrize("kernel", [False, True])
def test_reduce_send_gather(kernel: bool, golden: Callable[[str, str], None]) -> None:
    mesh = jax.make_mesh(
        (2, 2), ("pp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    typed = jaxcc.typed(mesh=mesh, in_layouts=(on(pp=Local, tp=Local), Replicated))(hand_over)
    s = typed.schedule(*(jax.ShapeDtypeStruct(a, jnp.float32) for a in ((4, 6), (6,))))
    s = s.split("total").reorder("total.gather", after="sent")
    if kernel:
        s = s.fuse("total.scatter", ..., "work", name="first")
    else:
        s = s.fuse("add", ..., "work", name="between")
    first = ("first",) if kernel else ("total.scatter", "between")
    o = s.overlap(*first, "sent", "total.gather", chunks=3)
    golden("overlapped_kernel_sent" if kernel else "overlapped_sent", o.text(lines=False))
    rng = np.random.default_rng()
    y, bias = (rng.normal(size=a).astype(np.float32) for a in ((2, 2, 4, 6), (6,)))
    expected = np.tanh(y.astype(np.float64).sum(1) + bias)[::-1]
    for backend in ("xla", "host"):
        close(o.compile(backend)(y, bias), expected)


def test_what_does_not_depend_is_refused() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jaxcc.name(x @ w, "y")
        other = jaxcc.name(lax.psum(jnp.sin(x), "tp"), "other")
        total = jaxcc.name(lax.psum(jnp.tanh(y), "tp"), "total")
        return other, total

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Local))(f)
    s = typed.schedule(*(jax.ShapeDtypeStruct((4, 4), jnp.float32),) * 2)
    with refused("NOT_DEPENDENT.*'other' does not depend on 'y'"):
        s.overlap("y", "other", chunks=2)
    with refused("NOT_DEPENDENT.*between them lies tanh"):
        s.overlap("y", "total", chunks=2)
    with refused("NOT_DEPENDENT.*the other way round"):
        s.overlap("tanh", "y", chunks=2)
    with refused("NOT_FOUND"):
        s.overlap("y", "nothing", chunks=2)


def test_what_cannot_be_cut_is_refused() -> None:
    _, s, _ = fused()
    with refused("CHUNKS.*'total.scatter' .reduce_scatter. cuts or puts together dimension 0"):
        s.overlap("layer", "fused", chunks=2, dim=0)
    with refused("CHUNKS.*no 11 chunks"):
        s.overlap("layer", "fused", chunks=11)
    with refused("CHUNKS.*which has size 6.*fix: chunks=6"):
        s.overlap("layer", "fused", chunks=7, dim=2)
    with refused("ARGUMENT.*no dimension 3"):
        s.overlap("layer", "fused", chunks=2, dim=3)

    def f(x: Any) -> Any:
        y = jaxcc.name(jnp.cumsum(x @ x, axis=0), "y")
        return jaxcc.name(lax.psum(y, "tp"), "total")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((4, 4), jnp.float32))
    with refused("CHUNKS.*is not known to run on a part of its result"):
        s.overlap("y", "total", chunks=2)


def test_arguments_that_are_refused() -> None:
    _, s, _ = fused()
    with refused("ARGUMENT.*1 chunks"):
        s.overlap("layer", "fused", chunks=1)
    with refused("ARGUMENT.*two or more"):
        s.overlap("layer", chunks=2)
    with refused("ARGUMENT.*'b' is taken"):
        s.overlap("layer", "fused", chunks=2, name="b")
    o = s.overlap("layer", "fused", chunks=2)
    with refused("NOT_FOUND.*'layer' is already part of 'overlapped'"):
        o.overlap("layer", "fused", chunks=2)
    with refused("NOT_POINTWISE|ARGUMENT"):
        o.fuse("overlapped", name="f")
