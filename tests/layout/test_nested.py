"""A `shard_map` inside the function, and whole programs that call `shard_map`: what the checker
decides, held against JAX running them on devices."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import jaxcc
from jaxcc import Replicated, Sliced, check, on
from jaxcc.testing import assert_rank_invariant, raises_layout

P = PartitionSpec
AXES = ("dp", "tp")
AUTO = (AxisType.Auto,) * 2
MESH = AbstractMesh((2, 2), AXES, axis_types=AUTO)
X, W, V = (8, 12), (12, 16), (16, 12)
ROWS = on(dp=Sliced(0))


def column(x: Any, w: Any) -> Any:
    """A product whose columns are sliced over tp, gathered by the spec."""
    specs = (P(), P(None, "tp"))
    return jax.shard_map(jnp.dot, in_specs=specs, out_specs=P(None, "tp"), axis_names={"tp"})(x, w)


def row(x: Any, w: Any) -> Any:
    """A product whose contraction is sliced over tp."""

    def dot(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "tp")

    specs = (P(None, "tp"), P("tp"))
    return jax.shard_map(dot, in_specs=specs, out_specs=P(), axis_names={"tp"})(x, w)


def mlp(x: Any, w: Any, v: Any) -> Any:
    return row(jax.nn.gelu(column(x, w)), v)


def mlp_in_one(x: Any, w: Any, v: Any) -> Any:
    def block(x: Any, w: Any, v: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ w) @ v, "tp")

    specs = (P(), P(None, "tp"), P("tp"))
    return jax.shard_map(block, in_specs=specs, out_specs=P(), axis_names={"tp"})(x, w, v)


def layers(x: Any, w: Any, v: Any) -> Any:
    return lax.scan(lambda x, _: (x + mlp_in_one(x, w, v), None), x, None, length=3)[0]


def by_rank(x: Any, w: Any, v: Any) -> Any:
    def block(x: Any) -> Any:
        here = lax.axis_index("tp") * x.shape[1] + jnp.arange(x.shape[1])
        return x * here

    spec = P(None, "tp")
    return jax.shard_map(block, in_specs=spec, out_specs=spec, axis_names={"tp"})(x)


def loss(x: Any, w: Any, v: Any) -> Any:
    return lax.pmean(jnp.mean(jnp.square(mlp(x, w, v))), "dp")


def gradients(x: Any, w: Any, v: Any) -> Any:
    # Under check_vma=True JAX sums the gradients of what is Replicated over dp.
    return jax.grad(loss, argnums=(1, 2))(x, w, v)


def sum_over_both(x: Any, w: Any, v: Any) -> Any:
    def block(x: Any) -> Any:
        return lax.psum(x.sum(0), ("dp", "tp"))

    return jax.shard_map(block, in_specs=P(("dp", "tp")), out_specs=P())(x)


def training_step(x: Any, w: Any, v: Any) -> Any:
    def error(w: Any, v: Any) -> Any:
        def block(x: Any, w: Any, v: Any) -> Any:
            y = lax.psum(jax.nn.gelu(x @ w) @ v, "tp")
            return lax.psum(jnp.square(y).sum(), "dp")

        specs = (P("dp"), P(None, "tp"), P("tp"))
        return jax.shard_map(block, in_specs=specs, out_specs=P())(x, w, v)

    value, (dw, dv) = jax.value_and_grad(error, argnums=(0, 1))(w, v)
    return value, w - 0.1 * dw, v - 0.1 * dv


def of_all(f: Any, ins: Any, outs: Any, check_vma: bool = True) -> Any:
    return jax.shard_map(f, in_specs=ins, out_specs=outs, check_vma=check_vma)


def gradient_without_vma(x: Any, w: Any, v: Any) -> Any:
    """JAX divides what comes back by the ranks of the axes that out_specs leaves out."""

    def block(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "tp")

    product = of_all(block, (P(None, "tp"), P("tp")), P(), check_vma=False)
    return jax.grad(lambda w: jnp.square(product(x, w)).sum())(w)


def gradient_of_a_bias_of_rank_0(x: Any, w: Any, v: Any) -> Any:
    def block(x: Any, w: Any, b: Any) -> Any:
        return lax.psum(x @ w + jnp.where(lax.axis_index("tp") == 0, b, 0), "tp")

    biased = of_all(block, (P("dp", "tp"), P("tp"), P()), P("dp"))
    return jax.grad(lambda b: jnp.sin(biased(x, w, b)).sum())(v[:, 0])


def gradient_of_a_sliced_vocabulary(x: Any, w: Any, v: Any) -> Any:
    """A table of 16 rows over tp, read at ids and scored against them."""
    ids = jnp.argsort(jnp.argsort(x[:, 0]))

    def loss(table: Any) -> Any:
        rows = of_all(lambda i, t: jaxcc.comm.embed(i, t, "tp"), (P("dp"), P("tp")), P("dp"))(
            ids, table
        )
        mean = of_all(
            lambda z, i: lax.pmean(jaxcc.comm.cross_entropy(z, i, "tp").mean(), "dp"),
            (P("dp", "tp"), P("dp")),
            P(),
        )
        return mean(rows @ table.T, ids)

    return jax.grad(loss)(v)


@partial(jax.shard_map, in_specs=(P("dp", "tp"), P("tp")), out_specs=P("dp"))
def decorated(x: Any, w: Any) -> Any:
    return lax.psum(x @ w, "tp")


def decorated_outside(x: Any, w: Any, v: Any) -> Any:
    return jax.jit(decorated)(x, w) @ v


def read_around(x: Any, w: Any, v: Any) -> Any:
    total = x.sum(1, keepdims=True)
    x = lax.with_sharding_constraint(x, P("dp"))
    return of_all(lambda x: x + total, P(None, "tp"), P(None, "tp"))(x)


@dataclass(frozen=True)
class Case:
    """A function, the axes of which it is one rank, and the layouts of `x` and of its results; the
    weights are Replicated."""

    f: Callable[..., Any]
    axis_names: tuple[str, ...]
    x: Any = Replicated
    outs: Any = Replicated

    def __str__(self) -> str:
        return f"{self.f.__name__}-{'-'.join(self.axis_names) or 'whole'}"

    @property
    def how(self) -> dict[str, Any]:
        ins = (self.x, Replicated, Replicated)
        return {"in_layouts": ins, "out_layouts": self.outs, "axis_names": self.axis_names}


RIGHT = [
    *(Case(f, ("dp",), ROWS, ROWS) for f in (mlp, mlp_in_one, layers, by_rank)),
    *(Case(f, ("dp",), ROWS) for f in (loss, gradients)),
    *(Case(f, ()) for f in (mlp, layers, by_rank, sum_over_both, training_step)),
    *(
        Case(f, ())
        for f in (
            gradient_without_vma,
            gradient_of_a_bias_of_rank_0,
            gradient_of_a_sliced_vocabulary,
            decorated_outside,
            read_around,
        )
    ),
]


def inputs() -> list[Any]:
    rng = np.random.default_rng()
    return [0.3 * rng.standard_normal(shape, dtype=np.float32) for shape in (X, W, V)]


def by_jax(case: Case, dp: int, tp: int, args: list[Any]) -> list[Any]:
    """The results on devices, with no part of jaxcc."""
    devices = np.array(jax.devices()[: dp * tp]).reshape(dp, tp)
    mesh, f = Mesh(devices, AXES, axis_types=AUTO), case.f
    if case.axis_names:
        x, outs = (P("dp") if one == ROWS else P() for one in (case.x, case.outs))
        f = jax.shard_map(
            f, in_specs=(x, P(), P()), out_specs=outs, axis_names=set(case.axis_names)
        )
    with jax.set_mesh(mesh):
        return [np.asarray(y) for y in jax.tree.leaves(jax.jit(f)(*args))]


# JAX traces a gradient inside the outer function, but cannot lower what it keeps for it; and a
# shard_map keeps the first mesh that it runs on.
LOWERED = [case for case in RIGHT if case.f not in (gradients, decorated_outside)]


@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_right_programs_are_accepted_and_devices_agree(case: Case) -> None:
    args = inputs()
    check(case.f, *args, mesh=MESH, **case.how)
    expected = by_jax(case, 1, 1, args)
    for found, one in zip(by_jax(case, 2, 2, args), expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-4 * np.abs(one).max())


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_right_programs_pass_when_they_are_run_for_all_ranks_on_one_device(case: Case) -> None:
    assert_rank_invariant(case.f, *inputs(), mesh=MESH, rtol=1e-4, atol=1e-3, **case.how)


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_a_mesh_that_is_set_does_not_matter(case: Case) -> None:
    devices = np.array(jax.devices()[:2]).reshape(2, 1)
    with jax.set_mesh(Mesh(devices, AXES, axis_types=AUTO)):
        assert check(case.f, *inputs(), mesh=MESH, **case.how).proved


def smapped(f: Callable[..., Any], ins: Any, outs: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda *args: jax.shard_map(
        f, in_specs=ins, out_specs=outs, axis_names={"tp"}, **kwargs
    )(*args)


TERM = smapped(lambda x, w: x @ w, (P(None, "tp"), P("tp")), P(), check_vma=False)
SIDE_BY_SIDE = smapped(lambda x, w: x @ w, (P(None, "tp"), P("tp")), P(None, "tp"))
ONE_BLOCK = smapped(lambda x, w: 2 * x, (P(None, "tp"), P()), P(), check_vma=False)
OTHER_DIM = smapped(lambda x, w: 2 * x, (P("tp"), P()), P(None, "tp"))
COPIES = smapped(lambda x, w: x, (P(), P()), P("tp"))
LOCAL_MEAN = smapped(lambda x, w: lax.psum(x.mean(1), "tp"), (P(None, "tp"), P()), P())
COUNTED = smapped(lambda x, w: lax.psum(x.sum(0), "tp"), (P(), P()), P())
WRONG = {
    "the sum is left out": (TERM, "LAYOUT_PARTIAL_NONLINEAR"),
    "terms of a sum are laid side by side": (SIDE_BY_SIDE, "LAYOUT_PARTIAL_NONLINEAR"),
    "a block is taken for the whole": (ONE_BLOCK, "LAYOUT_RESULT"),
    "blocks are put together along another dimension": (OTHER_DIM, "LAYOUT_RESULT"),
    "copies are put together": (COPIES, "LAYOUT_RESULT"),
    "a local mean is summed": (LOCAL_MEAN, "LAYOUT_SCALE"),
    "what every rank holds is summed": (COUNTED, "LAYOUT_SCALE"),
}


@pytest.mark.parametrize("axis_names", [("dp",), ()], ids=["nested", "whole"])
@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_refused(mistake: str, axis_names: tuple[str, ...]) -> None:
    f, code = WRONG[mistake]
    x = ROWS if axis_names else Replicated
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (8, 8))]
    with raises_layout(code):
        check(f, *types, mesh=MESH, in_layouts=(x, Replicated), axis_names=axis_names)


def test_a_gradient_that_is_not_summed_over_the_other_axis_is_refused() -> None:
    def gradient(x: Any, w: Any, v: Any) -> Any:
        # Not multiplied by 2: a mean over the rows of this rank of dp alone.
        return jax.grad(lambda w: jnp.mean(mlp(x, w, v)))(w)

    args = inputs()
    with raises_layout("LAYOUT_SCALE"):
        check(
            gradient,
            *args,
            mesh=MESH,
            in_layouts=(ROWS, Replicated, Replicated),
            axis_names={"dp"},
        )


def test_the_report_shows_entering_and_leaving() -> None:
    report = check(
        mlp, *inputs(), mesh=MESH, in_layouts=(ROWS, Replicated, Replicated), axis_names={"dp"}
    )
    rows = [line for line in report.lines if line.op.endswith("_shard_map")]
    assert [line.op.split("_")[0] for line in rows] == [*["enter"] * 2, "leave"] * 2
    assert rows[2].layout == "Sliced(0)@dp" and "Sliced(1)@tp" in rows[1].layout
    assert [(one.kind, one.axes, one.count) for one in report.communication] == [
        ("all-reduce", ("tp",), 1)
    ]


BLOCKS: dict[str, Any] = {"in_specs": P("tp"), "out_specs": P("tp")}


@pytest.mark.parametrize(
    "f",
    [
        mlp,
        lambda *a: jax.shard_map(jnp.sin, **BLOCKS)(a[0]),
        lambda *a: jax.shard_map(jnp.sin, mesh=MESH, **BLOCKS)(a[0]),
    ],
    ids=["over some axes", "over all axes", "with a mesh of its own"],
)
def test_where_no_axis_is_left_for_a_shard_map_axis_names_is_the_way(f: Any) -> None:
    with raises_layout("LAYOUT_NESTED") as findings:
        check(f, *inputs(), mesh=MESH, in_layouts=Replicated)
    assert "axis_names=" in findings[0].fixes[0]


def test_a_shard_map_over_a_mesh_with_other_axes_is_told_so() -> None:
    other = AbstractMesh((2, 2), ("rows", "tp"), axis_types=AUTO)
    with raises_layout("LAYOUT_NESTED", line="mesh=other") as findings:
        check(
            lambda x: jax.shard_map(jnp.sin, mesh=other, **BLOCKS)(x),
            inputs()[0],
            mesh=MESH,
            in_layouts=Replicated,
            axis_names=(),
        )
    assert "mesh=" in findings[0].fixes[0]


@pytest.mark.parametrize("flag", [True, False])
def test_the_report_says_which_flag_the_shard_map_inside_has(flag: bool) -> None:
    def f(x: Any) -> Any:
        return jax.shard_map(jnp.sin, check_vma=flag, **BLOCKS)(x)

    report = check(jax.jit(f), inputs()[0], mesh=MESH, in_layouts=Replicated, axis_names=())
    other = [note for note in report.notes if f"check_vma={flag}" in note]
    assert bool(other) is not flag and not any(f"check_vma={not flag}" in n for n in report.notes)


@pytest.mark.parametrize("jit", [False, True])
def test_a_shard_map_with_a_mesh_of_its_own_is_checked_and_stays_as_it_is(jit: bool) -> None:
    x, w, _ = inputs()
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), AXES, axis_types=AUTO)
    given = {"mesh": mesh, "in_specs": (P("dp", "tp"), P("tp")), "out_specs": P("dp")}
    f = jax.shard_map(lambda x, w: lax.psum(x @ w, "tp"), **given)
    f = jax.jit(f) if jit else f
    groups = check(f, x, w, mesh=AbstractMesh((4, 2), AXES), in_layouts=Replicated, axis_names=())
    assert groups.sizes[0] == {"dp": 4, "tp": 2}
    np.testing.assert_allclose(f(x, w), x @ w, rtol=1e-4, atol=1e-4)
    wrong = jax.shard_map(lambda x, w: x @ w, **given, check_vma=False)
    with raises_layout("LAYOUT_PARTIAL_NONLINEAR"):
        check(wrong, x, w, mesh=mesh, in_layouts=Replicated, axis_names=())


def test_a_shard_map_without_a_mesh_is_free_for_any_mesh_after_the_check() -> None:
    x = inputs()[0]
    sine = jax.shard_map(jnp.sin, in_specs=P("tp"), out_specs=P("tp"))
    check(sine, x, mesh=AbstractMesh((1, 4), AXES), in_layouts=Replicated, axis_names=())
    with jax.set_mesh(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), AXES, axis_types=AUTO)):
        np.testing.assert_allclose(sine(x), np.sin(x), rtol=1e-5, atol=1e-6)


def test_axis_names_are_those_of_the_mesh_and_layouts_speak_of_them() -> None:
    def checked(f: Any, axis_names: Any, layouts: Any = Replicated) -> jaxcc.LayoutReport:
        return check(f, *inputs(), mesh=MESH, in_layouts=layouts, axis_names=axis_names)

    for names in ({"pp"}, [["dp"]]):
        with raises_layout("LAYOUT_AXIS"):
            checked(mlp, names)
    for names, layouts in ((3, Replicated), ({"dp"}, on(tp=Sliced(0)))):
        with raises_layout("LAYOUT_ARGUMENT"):
            checked(mlp, names, layouts)
    assert checked(mlp, "dp").out_layouts[0] == on(dp=Replicated, tp=Replicated)


@pytest.mark.parametrize(
    "f",
    [
        lambda *args: of_all(jnp.sin, P("zz"), P("zz"))(args[0]),
        lambda *args: lax.psum(args[0], "tp"),
    ],
    ids=["of no mesh", "that is left out"],
)
def test_an_axis_that_the_function_cannot_use_is_named(f: Any) -> None:
    with raises_layout("LAYOUT_AXIS"):
        check(f, *inputs(), mesh=MESH, in_layouts=Replicated, axis_names=())
