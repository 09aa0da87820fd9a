"""Meshes of two axes, Local and Partial inputs, and what the promise says of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check, on
from jaxcc.testing import assert_rank_invariant, raises_layout

MESH = AbstractMesh((2, 3), ("dp", "tp"))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def mlp(x, up, down):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")


MLP_IN = (on(dp=Sliced(0)), on(tp=Sliced(1)), on(tp=Sliced(0)))


def test_data_and_tensor_parallel_together() -> None:
    shapes = ((12, 6), (6, 12), (12, 6))
    out = on(dp=Sliced(0))
    report = check(mlp, *(aval(*s) for s in shapes), mesh=MESH, in_layouts=MLP_IN)
    (inferred,) = report.out_layouts
    assert inferred["dp"] == Sliced(0) and inferred["tp"] == Replicated
    assert_rank_invariant(
        mlp, *(array(*s) for s in shapes), mesh=MESH, in_layouts=MLP_IN, out_layouts=out
    )


def test_summed_over_the_wrong_axis() -> None:
    def wrong(x, up, down):
        return lax.psum(jax.nn.gelu(x @ up) @ down, "dp")

    with raises_layout("LAYOUT_SUM_OF_SLICES", line='"dp"'):
        check(wrong, aval(12, 6), aval(6, 12), aval(12, 6), mesh=MESH, in_layouts=MLP_IN)


def test_two_axes_on_one_dim_have_an_order() -> None:
    major_first = on(dp=Sliced(0), tp=Sliced(0))

    def gathered(x):
        return lax.all_gather(x, ("dp", "tp"), axis=0, tiled=True)

    def inner_then_outer(x):
        return lax.all_gather(lax.all_gather(x, "tp", axis=0, tiled=True), "dp", axis=0, tiled=True)

    def outer_then_inner(x):
        return lax.all_gather(lax.all_gather(x, "dp", axis=0, tiled=True), "tp", axis=0, tiled=True)

    for f in (gathered, inner_then_outer):
        check(f, aval(12, 4), mesh=MESH, in_layouts=(major_first,), out_layouts=Replicated)
    assert_rank_invariant(
        inner_then_outer,
        array(12, 4),
        mesh=MESH,
        in_layouts=(major_first,),
        out_layouts=Replicated,
    )
    with raises_layout("LAYOUT_RESULT"):
        check(
            outer_then_inner,
            aval(12, 4),
            mesh=MESH,
            in_layouts=(major_first,),
            out_layouts=Replicated,
        )


def test_sum_over_both_axes() -> None:
    def norm(x):
        return jnp.sqrt(lax.psum(jnp.sum(x * x), ("dp", "tp")))

    layout = on(dp=Sliced(0), tp=Sliced(1))
    check(norm, aval(4, 6), mesh=MESH, in_layouts=(layout,), out_layouts=Replicated)
    assert_rank_invariant(
        norm, array(4, 6), mesh=MESH, in_layouts=(layout,), out_layouts=Replicated
    )


def test_sum_over_one_of_two_axes_is_not_enough() -> None:
    def half(x):
        return lax.psum(jnp.sum(x * x), "dp")

    layout = on(dp=Sliced(0), tp=Sliced(1))
    with raises_layout("LAYOUT_RESULT_PARTIAL", line="jnp.sum"):
        check(half, aval(4, 6), mesh=MESH, in_layouts=(layout,), out_layouts=Replicated)


def test_local_gradient_becomes_replicated_by_a_sum() -> None:
    def step(w, gradient):
        return w - 0.1 * lax.pmean(gradient, "tp")

    mesh = AbstractMesh((4,), ("tp",))
    report = check(step, aval(8), aval(8), mesh=mesh, in_layouts=(Replicated, Local))
    assert report.out_layouts[0]["tp"] == Replicated
    assert "Local" in report.notes[0]


def test_local_gradient_scattered_updates_a_slice() -> None:
    def step(w, m, gradient):
        mine = lax.psum_scatter(gradient, "tp", tiled=True)
        m = 0.9 * m + mine
        return lax.all_gather(m, "tp", tiled=True) + w, m

    mesh = AbstractMesh((4,), ("tp",))
    report = check(
        step, aval(8), aval(8), aval(8), mesh=mesh, in_layouts=(Replicated, Sliced(0), Local)
    )
    assert [out["tp"] for out in report.out_layouts] == [Replicated, Sliced(0)]


def test_local_value_is_not_replicated() -> None:
    mesh = AbstractMesh((4,), ("tp",))
    with raises_layout("LAYOUT_RESULT", line="jnp.tanh"):
        check(
            lambda w, g: w + jnp.tanh(g),
            aval(8),
            aval(8),
            mesh=mesh,
            in_layouts=(Replicated, Local),
            out_layouts=Replicated,
        )


def test_other_axes_keep_the_full_promise_beside_a_local_one() -> None:
    def bias_before_the_sum(x, w, b):
        return lax.psum(x @ w + b, "tp")

    layouts = (on(dp=Local, tp=Sliced(1)), on(tp=Sliced(0)), Replicated)
    with raises_layout("LAYOUT_COUNTED", line="x @ w + b"):
        check(bias_before_the_sum, aval(4, 6), aval(6, 4), aval(4), mesh=MESH, in_layouts=layouts)


def test_pending_reductions_of_two_kinds_are_refused() -> None:
    with raises_layout("LAYOUT_ARGUMENT"):
        check(
            lambda x: x,
            aval(4),
            mesh=MESH,
            in_layouts=(on(dp=Partial("sum"), tp=Partial("max")),),
        )


def test_smallest_prime_factor_is_checked_too() -> None:
    def only_on_large_groups(x):
        y = x @ x.T
        return lax.psum(y, "tp") if lax.axis_size("tp") != 2 else y

    mesh = AbstractMesh((4,), ("tp",))
    with pytest.raises(LayoutError):
        check(only_on_large_groups, aval(8, 8), mesh=mesh, in_layouts=(Sliced(1),))
    report = check(lambda x: x + 1, aval(8, 8), mesh=mesh, in_layouts=(Sliced(1),))
    assert report.sizes == ({"tp": 4}, {"tp": 2})
