"""reorder past reductions, changes of shape and sends: slices, and the all-reduces they need."""

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


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def moved(
    f: Any, n: int, *shapes: tuple[int, ...], dim: int = 0, after: str = "out", layouts: Any = None
) -> tuple[Any, Schedule]:
    """The typed function of a Local first argument, and its all-reduce split and gathered after
    `after`.
    """
    layouts = layouts or (Local, *[Replicated] * (len(shapes) - 1))
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(f)
    s = typed.schedule(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return typed, s.split("total", dim=dim).reorder("total.gather", after=after)


def kinds(s: Schedule) -> list[str]:
    return [op.kind for op in s.program.ops]


def total(y: Any) -> Any:
    return jaxcc.name(lax.psum(y, "tp"), "total")


def rms_norm(y: Any, scale: Any) -> Any:
    t = total(y)
    return jaxcc.name(t * lax.rsqrt(jnp.mean(t * t, -1, keepdims=True) + 1e-6) * scale, "out")


def rms_norm64(t: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return t / np.sqrt((t * t).mean(-1, keepdims=True) + 1e-6) * scale


def layer_norm(y: Any, scale: Any) -> Any:
    t = total(y)
    spread = jnp.var(t, -1, keepdims=True)
    return jaxcc.name(
        (t - jnp.mean(t, -1, keepdims=True)) * lax.rsqrt(spread + 1e-6) * scale, "out"
    )


def layer_norm64(t: np.ndarray, scale: np.ndarray) -> np.ndarray:
    middle = t - t.mean(-1, keepdims=True)
    return middle / np.sqrt(t.var(-1, keepdims=True) + 1e-6) * scale


def softmax(y: Any, scale: Any) -> Any:
    return jaxcc.name(jax.nn.softmax(total(y) * scale), "out")


def softmax64(t: np.ndarray, scale: np.ndarray) -> np.ndarray:
    e = np.exp(t * scale - (t * scale).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dim", [0, 1, 2], ids="dim{}".format)
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    ("f", "f64"),
    [(rms_norm, rms_norm64), (layer_norm, layer_norm64), (softmax, softmax64)],
    ids=["rms_norm", "layer_norm", "softmax"],
)
def test_norms_run_on_slices(f: Any, f64: Any, n: int, dim: int) -> None:
    """Along another dimension than the gathered one they need no communication of their own."""
    typed, s = moved(f, n, (4, 4, 8), (8,), dim=dim)
    assert ("all_reduce" in kinds(s)) == (dim == 2)
    y, scale = arrays((n, 4, 4, 8), (8,), seed=n)
    expected = f64(y.astype(np.float64).sum(0), scale.astype(np.float64))
    close(s.compile("xla")(y, scale), expected)
    close(typed.reference(y, scale), expected)


def test_golden_texts(golden: Callable[[str, str], None]) -> None:
    golden("rms_norm_rows", moved(rms_norm, 2, (4, 6), (6,))[1].text(lines=False))
    golden("rms_norm_columns", moved(rms_norm, 2, (4, 6), (6,), dim=1)[1].text(lines=False))
    golden("lamb", moved(lamb, 2, *LAMB, after="new_w")[1].text(lines=False))


def lamb(g: Any, w: Any, m: Any, v: Any, lr: Any) -> tuple[Any, Any, Any]:
    g = total(g)
    m = jaxcc.name(0.9 * m + 0.1 * g, "new_m")
    v = jaxcc.name(0.99 * v + 0.01 * g * g, "new_v")
    u = jaxcc.name(m / (jnp.sqrt(v) + 1e-6) + 0.01 * w, "update")
    w_norm, u_norm = jnp.linalg.norm(w), jnp.sqrt(jnp.sum(u * u))
    ratio = jnp.where(w_norm > 0, jnp.where(u_norm > 0, w_norm / u_norm, 1.0), 1.0)
    return jaxcc.name(w - lr * ratio * u, "new_w"), m, v


LAMB = ((8, 6), (8, 6), (8, 6), (8, 6), ())


def lamb64(g: Any, w: Any, m: Any, v: Any, lr: Any) -> tuple[Any, Any, Any]:
    g, w, m, v = (np.asarray(a, np.float64) for a in (g, w, m, v))
    g = g.sum(0)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    u = m / (np.sqrt(v) + 1e-6) + 0.01 * w
    return w - float(lr) * np.linalg.norm(w) / np.linalg.norm(u) * u, m, v


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_lamb_keeps_its_state_sliced(n: int, dim: int) -> None:
    shapes = ((8, 4), (8, 4), (8, 4), (8, 4), ())
    typed, s = moved(lamb, n, *shapes, dim=dim, after="new_w")
    assert kinds(s).count("all_reduce") == 1
    s = s.as_slice("m", "v", "new_m", "new_v")
    s = s.fuse("total.scatter", ..., "update", name="moments")
    g, w, m, v = arrays((n, 8, 4), *shapes[1:4], seed=n)
    args = (g, w, m, abs(v), np.float32(0.1))
    for expected in (lamb64(*args), typed.reference(*args)):
        for backend in ("xla", "host"):
            results = s.compile(backend)(*args)
            for got, one in zip(results, expected, strict=True):
                close(got, one)
    assert results[1].addressable_shards[0].data.size == 32 // n


def test_a_norm_of_all_through_a_flat_view() -> None:
    """The blocks of rows stay together, those of columns do not."""

    def f(y: Any) -> Any:
        t = total(y)
        return jaxcc.name(t / jnp.linalg.norm(t.ravel()), "out")

    _, s = moved(f, 2, (4, 6))
    (y,) = arrays((2, 4, 6))
    t = y.astype(np.float64).sum(0)
    close(s.compile("xla")(y), t / np.linalg.norm(t))
    with pytest.raises(ScheduleError, match="SCHEDULE_NOT_POINTWISE.*do not lie together"):
        moved(f, 2, (4, 6), dim=1)


REDUCTIONS = {
    "sum": (jnp.sum, np.sum, "sum"),
    "max": (jnp.max, np.max, "maximum"),
    "min": (jnp.min, np.min, "minimum"),
    "any": (lambda t, axis: jnp.any(t > 1, axis=axis), lambda t, axis: (t > 1).any(axis), "max"),
    "all": (lambda t, axis: jnp.all(t < 1, axis=axis), lambda t, axis: (t < 1).all(axis), "min"),
    "mean": (jnp.mean, np.mean, "sum"),
}


@pytest.mark.parametrize("axis", [0, 1, (1, 2)])
@pytest.mark.parametrize("which", REDUCTIONS)
def test_reductions_along_and_across_the_gathered_dimension(which: str, axis: Any) -> None:
    reduce, reduce64, op = REDUCTIONS[which]

    def f(y: Any) -> Any:
        r = jaxcc.name(reduce(total(y), axis=axis), "r")
        return jaxcc.name(jnp.where(r > 0, r, 2 * r), "out"), r

    _, s = moved(f, 2, (3, 4, 2), dim=1)
    along = 1 in (axis if isinstance(axis, tuple) else (axis,))
    ops = [one.params["op"] for one in s.program.ops if one.kind == "all_reduce"]
    assert ops == ([op] if along else [])
    (y,) = arrays((2, 3, 4, 2))
    r = np.asarray(reduce64(y.astype(np.float64).sum(0), axis=axis))
    out, reduced = s.compile("xla")(y)
    close(out, np.where(r > 0, r, 2 * r))
    close(reduced, r)


def test_a_product_of_rows() -> None:
    def f(y: Any) -> Any:
        return jaxcc.name(jnp.prod(total(y), axis=1), "out")

    _, s = moved(f, 2, (4, 3))
    (y,) = arrays((2, 4, 3))
    close(s.compile("xla")(y), y.astype(np.float64).sum(0).prod(1))


def test_the_reduction_itself_may_be_the_last_operation() -> None:
    """It is Replicated then, and no gather is left."""

    def f(y: Any) -> Any:
        return jaxcc.name(jnp.sum(jnp.square(total(y))), "out")

    _, s = moved(f, 2, (4, 3))
    assert "all_gather" not in kinds(s) and s.program.outputs == ("out.all_reduce",)
    (y,) = arrays((2, 4, 3))
    close(s.compile("xla")(y), np.square(y.astype(np.float64).sum(0)).sum())


def shuffled(t: Any, table: Any) -> Any:
    """Each value is sliced along another dimension: 0, 1, 2, 1, 0."""
    t = jnp.tanh(t)[None] * 2
    t = jnp.transpose(t, (2, 0, 1)) + table.T[:, None, :]
    t = jnp.squeeze(t, 1).reshape(3, 4, 1)
    return jnp.transpose(t[:, :, 0]) * table


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_gathered_dimension_is_followed_through_changes_of_shape(n: int) -> None:
    def f(y: Any, table: Any) -> Any:
        return jaxcc.name(shuffled(total(y), table), "out")

    _, s = moved(f, n, (4, 3), (4, 3))
    y, table = arrays((n, 4, 3), (4, 3))
    t = y.astype(np.float64).sum(0)
    close(s.compile("xla")(y, table), (2 * np.tanh(t) + table) * table)


def test_values_of_several_dimensions_are_gathered_each_along_its_own() -> None:
    def f(y: Any) -> Any:
        t = total(y)
        turned = jaxcc.name(jnp.transpose(t), "turned")
        largest = jaxcc.name(jnp.max(turned, axis=0), "largest")
        return jaxcc.name(jnp.exp(largest), "out"), turned, largest, jnp.sort(turned, axis=1)

    _, s = moved(f, 2, (4, 3))
    gathers = {op.name: op.params["dim"] for op in s.program.ops if op.kind == "all_gather"}
    assert gathers == {"total.gather": 0, "turned.gather": 1, "largest.gather": 0}
    (y,) = arrays((2, 4, 3))
    t = y.astype(np.float64).sum(0)
    expected = (np.exp(t.max(1)), t.T, t.max(1), np.sort(t.T, axis=1))
    for got, one in zip(s.compile("xla")(y), expected, strict=True):
        close(got, one)


def test_scalars_choose_and_clamp() -> None:
    def f(y: Any, low: Any, high: Any) -> Any:
        t = total(y)
        t = lax.select(low < high, lax.clamp(low, t, high), t)
        return jaxcc.name(lax.select(jnp.sum(t) > 0, t, -t), "out")

    _, s = moved(f, 2, (4, 3), (), ())
    (y,) = arrays((2, 4, 3))
    t = np.clip(y.astype(np.float64).sum(0), -0.5, 0.75)
    got = s.compile("xla")(y, np.float32(-0.5), np.float32(0.75))
    close(got, t if t.sum() > 0 else -t)


def test_whole_values_inside_are_sliced_again() -> None:
    """A reduced value that is broadcast back to the gathered dimension is computed per block."""

    def f(y: Any) -> Any:
        t = total(y)
        mean = jnp.broadcast_to(jnp.mean(t, axis=0), t.shape)
        cumulated = jnp.cumsum(jnp.sum(t, axis=0))
        return jaxcc.name(t - 2 * mean + cumulated, "out")

    _, s = moved(f, 2, (4, 3))
    (y,) = arrays((2, 4, 3))
    t = y.astype(np.float64).sum(0)
    close(s.compile("xla")(y), t - 2 * t.mean(0) + np.cumsum(t.sum(0)))


def test_a_fused_operation_reads_the_gathered_value_by_its_new_name() -> None:
    def f(y: Any, z: Any) -> Any:
        t, u = total(y), jaxcc.name(lax.psum(z, "tp"), "u")
        middle = jaxcc.name(t * 2, "middle")
        return jaxcc.name(jnp.exp(-middle), "out"), jaxcc.name(u + middle, "sum")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Local))(f)
    s = typed.schedule(*[jax.ShapeDtypeStruct((4, 3), jnp.float32)] * 2)
    s = s.split("total").split("u").reorder("u.gather", after="sum")
    s = s.fuse("u.scatter", ..., "u.gather", name="fused").reorder("total.gather", after="out")
    y, z = arrays((2, 4, 3), (2, 4, 3))
    t, u = (a.astype(np.float64).sum(0) for a in (y, z))
    for backend in ("xla", "host"):
        out, both = s.compile(backend)(y, z)
        close(out, np.exp(-2 * t))
        close(both, u + 2 * t)


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s){code}")


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda t: jnp.prod(t, axis=0), "NOT_POINTWISE.*multiplies along the gathered dimension 0"),
        (lambda t: jnp.argmax(t, axis=0), "NOT_POINTWISE.*argmax"),
        (lambda t: jnp.cumsum(t, axis=0), "NOT_POINTWISE.*see a part"),
        (lambda t: t + t.T, "SLICED_TWICE.*along dimension 0 and .* along dimension 1"),
        (lambda t: t.T.reshape(2, 8), "NOT_POINTWISE.*do not lie together"),
        (lambda t: lax.fori_loop(0, 2, lambda _, x: jnp.sin(x), t), "NOT_POINTWISE.*scan|while"),
        (
            lambda t: lax.reduce_and(lax.convert_element_type(t, jnp.int32), (0,)),
            "NOT_POINTWISE.*combines bits",
        ),
    ],
)
def test_what_needs_more_than_a_slice_is_refused(work: Any, code: str) -> None:
    with refused(f"SCHEDULE_{code}.*reorder 'total.gather' only up to"):
        moved(lambda y: jaxcc.name(work(total(y)) * 2, "out"), 2, (4, 4))


def test_a_reshape_that_the_ranks_do_not_divide_is_refused() -> None:
    with refused("SCHEDULE_NOT_POINTWISE.*whose dimension 0 the 4 ranks do not divide"):
        moved(lambda y: jaxcc.name(total(y).reshape(2, 6), "out"), 4, (4, 3))


def test_reorder_past_a_fused_operation_is_refused() -> None:
    def f(y: Any, z: Any) -> Any:
        u = jaxcc.name(lax.psum(z, "tp"), "u")
        return jaxcc.name(u + total(y), "out")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Local))(f)
    s = typed.schedule(*[jax.ShapeDtypeStruct((4, 6), jnp.float32)] * 2)
    s = s.split("total", dim=1).split("u", dim=0).reorder("u.gather", after="out")
    s = s.fuse("u.scatter", ..., "u.gather", name="fused")
    with refused("SCHEDULE_NOT_POINTWISE.*'fused' .*fused already; reorder first"):
        s.reorder("total.gather", after="fused")


def test_a_gather_into_a_new_dimension_is_refused() -> None:
    def f(y: Any) -> Any:
        return jaxcc.name(jaxcc.name(lax.all_gather(y, "tp"), "g") * 2, "out")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local,), out_layouts=None)(
        lambda y: f(y).sum(0)
    )
    with refused("SCHEDULE_WRONG_OPERATION.*tiled=True"):
        typed.schedule(jax.ShapeDtypeStruct((4,), jnp.float32)).reorder("g", after="out")
