"""One kernel for tensors of different shapes, dtypes and sizes, and what is not for one."""

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
from jaxcc import Local, Replicated, Schedule, ScheduleError, on
from jaxcc.program import Op

# Of these, two ranks divide some, three others, four few; nobody divides the rest.
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "kernel": ((6, 8), jnp.float32),
    "tall": ((16, 3, 1), jnp.float32),
    "half": ((12,), jnp.bfloat16),
    "double": ((4, 4), jnp.float64),
    "prime": ((7, 5), jnp.float32),
    "one": ((1,), jnp.float32),
    "number": ((), jnp.float32),
    "many": ((40_009,), jnp.float32),
    "counts": ((5,), jnp.int32),
}
TOLERANCE = {"bfloat16": 2**-7, "float64": 1e-12, "int32": 0.0}


def tree_step(grads: Any, params: Any) -> Any:
    """Each parameter less a part of the ranks' summed gradients."""

    def step(g: Any, p: Any, name: str) -> Any:
        total = jaxcc.name(lax.psum(g, "tp"), f"{name}_sum")
        return jaxcc.name(p - total // 2 if name == "counts" else p - total * 0.5, name)

    return {name: step(grads[name], params[name], name) for name in params}


def tree_schedule(n: int, shapes: Any) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Replicated))(tree_step)
    avals = {name: jax.ShapeDtypeStruct(shape, t) for name, (shape, t) in shapes.items()}
    return typed.schedule(avals, avals)


def on_slices(s: Schedule, names: Any) -> Schedule:
    """Splits each all-reduce that can be, with its update on slices."""
    for name in names:
        try:
            after = s.split(f"{name}_sum").reorder(f"{name}_sum.gather", after=name)
        except ScheduleError:
            continue
        s = after
    return s


def kernel_of(s: Schedule) -> Op:
    (kernel,) = (op for op in s.program.ops if op.body)
    return kernel


def trees(n: int, shapes: Any) -> tuple[Any, Any, Any]:
    """Gradients of all ranks, parameters, and what results in f64."""
    rng = np.random.default_rng()
    grads, params, wanted = {}, {}, {}
    for name, (shape, t) in shapes.items():
        given = rng.integers(-9, 9, (n, *shape)) if t is jnp.int32 else rng.normal(size=(n, *shape))
        grads[name] = np.asarray(jnp.asarray(given, t))
        params[name] = np.asarray(jnp.asarray(rng.integers(1, 5, shape), t))
        total = grads[name].astype(np.float64).sum(0)
        half = total // 2 if t is jnp.int32 else total * 0.5
        wanted[name] = params[name].astype(np.float64) - half
    return grads, params, wanted


def assert_trees_close(got: Any, wanted: Any, n: int) -> None:
    for name, x in wanted.items():
        assert got[name].shape == x.shape
        tolerance = TOLERANCE.get(str(got[name].dtype), 1e-6)
        here = np.asarray(got[name], np.float64)
        np.testing.assert_allclose(here, x, rtol=tolerance * n, atol=tolerance * 4 * n)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_tree_is_one_kernel(n: int, split: bool) -> None:
    with jax.enable_x64(True):
        s = tree_schedule(n, SHAPES)
        s = on_slices(s, SHAPES) if split else s
        names = [op.name for op in s.program.ops]
        s = s.fuse(*names, name="tree")
        assert [op.kind for op in s.program.ops] == ["fused"]
        kinds = {op.kind for op in kernel_of(s).body}
        assert ("reduce_scatter" in kinds) == split and "all_reduce" in kinds
        grads, params, wanted = trees(n, SHAPES)
        run = s.compile("host", donate=["params['kernel']", "params['prime']"] if split else ())
        assert_trees_close(run(grads, params), wanted, n)
        assert_trees_close(s.compile("xla")(grads, params), wanted, n)


def test_results_are_those_of_the_unfused_program_bit_by_bit() -> None:
    with jax.enable_x64(True):
        s = on_slices(tree_schedule(2, SHAPES), SHAPES)
        fused = s.fuse(*(op.name for op in s.program.ops), name="tree")
        grads, params, _ = trees(2, SHAPES)
        one, other = fused.compile("host")(grads, params), s.compile("xla")(grads, params)
    for name in SHAPES:
        assert np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes(), name


def test_tensors_that_are_computed_alike_share_a_program() -> None:
    shapes = {f"w{i}": ((3 * i + 1, 5), jnp.float32) for i in range(40)}
    s = tree_schedule(2, shapes)
    s = s.fuse(*(op.name for op in s.program.ops), name="tree")
    grads, params, wanted = trees(2, shapes)
    run = s.compile("host")
    assert_trees_close(run(grads, params), wanted, 2)
    call = run.lower().as_text()
    assert call.count("jaxcc_fused") == 1
    assert "kinds = dense<[2, 1, 0, 1]>" in call


@pytest.mark.parametrize("n", [2, 4])
def test_different_work_on_different_shapes(n: int, golden: Callable[[str, str], None]) -> None:
    """A row reduction and a total, a cut along the last dim, plain work, and whole arrays."""

    def f(a: Any, b: Any, c: Any, d: Any, bias: Any) -> Any:
        x, y, z, v = (
            jaxcc.name(lax.psum(one, "tp"), name)
            for one, name in ((a, "x"), (b, "y"), (c, "z"), (d, "v"))
        )
        rows = jaxcc.name(jax.nn.softmax(x + bias), "rows")
        relu = jaxcc.name(jnp.maximum(y, 0), "relu")
        squares = jaxcc.name(jnp.sum(relu * relu), "squares")
        return (
            rows,
            relu,
            squares,
            jaxcc.name(z * 2, "doubled"),
            jaxcc.name(jnp.exp(v), "v2"),
        )

    shapes = [(8, 6), (3, 8), (4, 2), (5,)]
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(*[Local] * 4, Replicated))(f)
    s = typed.schedule(*(jax.ShapeDtypeStruct(t, jnp.float32) for t in (*shapes, (6,))))
    s = s.split("x").reorder("x.gather", after="rows")
    s = s.split("y", dim=1).reorder("y.gather", after="squares")
    s = s.split("z", dim=0).reorder("z.gather", after="doubled")
    s = s.fuse(*(op.name for op in s.program.ops if op.kind != "squeeze"), name="all")
    if n == 2:
        golden("shapes", s.text(lines=False))
    rng = np.random.default_rng()
    a, b, c, d = (rng.normal(size=(n, *t)).astype(np.float32) for t in shapes)
    bias = rng.normal(size=6).astype(np.float32)
    x, y, z, v = (t.astype(np.float64).sum(0) for t in (a, b, c, d))
    e = np.exp(x + bias - (x + bias).max(-1, keepdims=True))
    for backend in ("host", "xla"):
        rows, relu, squares, twice, v2 = s.compile(backend)(a, b, c, d, bias)
        close(rows, e / e.sum(-1, keepdims=True))
        close(relu, np.maximum(y, 0))
        close(squares, (np.maximum(y, 0) ** 2).sum())
        close(twice, 2 * z)
        np.testing.assert_allclose(v2, np.exp(v), rtol=1e-5)


@pytest.mark.parametrize("op", ["psum", "pmax", "pmin"])
def test_a_whole_all_reduce_with_its_work(op: str) -> None:
    def f(a: Any, w: Any) -> Any:
        return jaxcc.name(jaxcc.name(getattr(lax, op)(a, "tp"), "x") * w, "out")

    typed = jaxcc.typed(mesh=mesh_of(3), in_layouts=(Local, Replicated))(f)
    s = typed.schedule(*(jax.ShapeDtypeStruct(t, jnp.float32) for t in ((7, 5), (5,))))
    s = s.fuse("x", "out", name="both")
    rng = np.random.default_rng()
    a, w = rng.normal(size=(3, 7, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    reduced = {"psum": np.sum, "pmax": np.max, "pmin": np.min}[op](a.astype(np.float64), axis=0)
    close(s.compile("host")(a, w), reduced * w)


def test_an_all_reduce_over_two_axes() -> None:
    mesh = jax.make_mesh(
        (2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    typed = jaxcc.typed(mesh=mesh, in_layouts=(on(dp=Local, tp=Local),))(
        lambda a: jaxcc.name(jnp.square(jaxcc.name(lax.psum(a, ("dp", "tp")), "x")), "out")
    )
    s = typed.schedule(jax.ShapeDtypeStruct((7,), jnp.float32)).fuse("x", "out", name="both")
    a = np.random.default_rng().normal(size=(2, 2, 7)).astype(np.float32)
    close(s.compile("host")(a), a.astype(np.float64).sum((0, 1)) ** 2)


def test_an_empty_tensor_among_others() -> None:
    """Made inside: on jaxlib 0.11 an empty argument of any shard_map crashes XLA."""

    def f(a: Any) -> Any:
        x = jaxcc.name(lax.psum(a, "tp"), "x")
        return x, jaxcc.name(lax.psum(a[:0], "tp"), "none").sum()

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((3, 5), jnp.float32)).fuse("x", "none", name="both")
    a = np.random.default_rng().normal(size=(2, 3, 5)).astype(np.float32)
    x, none = s.compile("host")(a)
    close(x, a.astype(np.float64).sum(0))
    assert none == 0


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s)SCHEDULE_{code}")


def test_what_one_kernel_does_not_hold() -> None:
    mesh = jax.make_mesh(
        (2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )

    def f(a: Any, b: Any) -> Any:
        x, y = jaxcc.name(lax.psum(a, "tp"), "x"), jaxcc.name(lax.psum(a, "dp"), "y")
        m = jaxcc.name(lax.pmax(a, "tp"), "m")
        mixed = jaxcc.name(x * m, "mixed")
        own = jaxcc.name(x * b, "own")
        rows = jaxcc.name(x.sum(1), "rows")
        wide = jaxcc.name(jnp.broadcast_to(jaxcc.name(x[:1] * 1, "narrow"), (3, 4, 4)) * 2, "wide")
        return mixed, own, rows, wide, y

    both = on(dp=Local, tp=Local)
    typed = jaxcc.typed(mesh=mesh, in_layouts=both)(f)
    s = typed.schedule(*[jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 2)
    with refused("TWO_GROUPS.*'x' and 'y': they do not run over one axis"):
        s.fuse("x", "y", name="f")
    with refused("TWO_GROUPS.*'x' and 'm': a kernel reduces all that one loop reads in one way"):
        s.fuse("x", "m", "mixed", name="f")
    with refused("WRONG_OPERATION.*whole all-reduce.*'b', which 'own' reads, may differ.*split"):
        s.fuse("x", "own", name="f")
    with refused("WRONG_OPERATION.*whole all-reduce.*'rows' .reduce_sum. needs more.*split"):
        s.fuse("x", "rows", name="f")
    split = s.split("x")
    with refused("WRONG_OPERATION.*'m' is a whole all-reduce.*'x.gather' makes blocks.*split"):
        split.fuse("x.gather", "m", "mixed", name="f")
    with refused("TWO_GROUPS.*do not run over one axis"):
        split.fuse("x.scatter", "y", name="f")


def test_a_reduced_value_that_the_group_makes_is_refused() -> None:
    def f(a: Any) -> Any:
        x = jaxcc.name(lax.psum(jaxcc.name(a * 2, "twice"), "tp"), "x")
        return jaxcc.name(lax.pmax(jaxcc.name(x * 2, "own"), "tp"), "again")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((3,), jnp.float32))
    with refused("WRONG_OPERATION.*'again' reduces 'own', which is computed inside the group"):
        s.fuse("x", "own", "again", name="f")
    with refused("WRONG_OPERATION.*'x' reduces 'twice'|TWO_GROUPS|WRONG_OPERATION"):
        s.fuse("twice", "x", name="f")


def test_values_of_two_shapes_that_depend_on_each_other_are_refused() -> None:
    def f(a: Any) -> Any:
        x = jaxcc.name(lax.psum(a, "tp"), "x")
        return jaxcc.name(x * 2, "twice"), jaxcc.name(x[None] + jnp.ones((2, 3)), "wide")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((3,), jnp.float32))
    with refused(r"TWO_GROUPS.*'twice' f32\[3\] and 'wide' f32\[2,3\].*leave 'wide' out"):
        s.fuse("x", "twice", ..., "wide", name="f")


@pytest.mark.parametrize("names", [("part", ..., "out"), ("part",)])
def test_a_scatter_over_two_axes_is_refused(names: Any) -> None:
    def f(x: Any) -> Any:
        part = jaxcc.name(lax.psum_scatter(x, ("dp", "tp"), tiled=True), "part")
        return jaxcc.name(part * 2, "out")

    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    typed = jaxcc.typed(mesh=mesh, in_layouts=on(dp=Local, tp=Local))(f)
    schedule = typed.schedule(jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(ScheduleError) as caught:
        schedule.fuse(*names, name="fused")
    assert caught.value.code == "SCHEDULE_WRONG_OPERATION" and "one axis" in str(caught.value)
