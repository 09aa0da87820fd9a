"""`assert_rank_invariant` passes right programs and says what wrong ones do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, on
from jaxcc.testing import assert_rank_invariant

TP4 = AbstractMesh((4,), ("tp",))
GRID = AbstractMesh((2, 3), ("dp", "tp"))
ROWS = {"mesh": TP4, "in_layouts": (Sliced(1), Sliced(0), Replicated)}


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(np.random.default_rng().uniform(-1, 1, shape), dtype)


def layer(x: Any, w: Any, b: Any) -> Any:
    return jnp.tanh(lax.psum(x @ w, "tp") + b)


def counted(x: Any, w: Any, b: Any) -> Any:
    return lax.psum(x @ w + b, "tp")


def test_right_and_wrong() -> None:
    args = array(8, 12), array(12, 6), array(6)
    assert_rank_invariant(layer, *args, out_layouts=Replicated, **ROWS)
    with pytest.raises(AssertionError) as raised:
        assert_rank_invariant(counted, *args, out_layouts=Replicated, **ROWS)
    x, w, b = (np.asarray(a, np.float64) for a in args)
    worst = np.abs(3 * b).max()
    message = str(raised.value)
    assert message.startswith("result of counted on tp=4 is not as on one rank: it is Replicated")
    assert f"largest difference {worst:.3g}" in message
    with pytest.raises(AssertionError, match="on tp=2 is"):
        assert_rank_invariant(counted, *args, out_layouts=Replicated, sizes=[{"tp": 2}], **ROWS)


def test_a_typed_function_brings_its_layouts() -> None:
    typed = jaxcc.typed(out_layouts=Replicated, **ROWS)(layer)
    assert_rank_invariant(typed, array(8, 12), array(12, 6), array(6))
    with pytest.raises(jaxcc.LayoutError, match="layouts of its own"):
        assert_rank_invariant(typed, array(8, 12), array(12, 6), array(6), in_layouts=Replicated)


def test_layouts_of_the_result_are_inferred() -> None:
    assert_rank_invariant(lambda x: lax.psum(x, "tp"), array(8), mesh=TP4, in_layouts=(Partial(),))


def test_only_one_rank_differs() -> None:
    def last(x: Any) -> Any:
        off = (lax.axis_index("tp") == lax.axis_size("tp") - 1) & (lax.axis_size("tp") > 1)
        return {"y": x, "z": x.at[2].add(jnp.where(off, 0.5, 0.0))}

    with pytest.raises(AssertionError, match=r"result\['z'\] of last on tp=4") as raised:
        assert_rank_invariant(
            last, array(8), mesh=TP4, in_layouts=(Replicated,), out_layouts=Replicated
        )
    assert "rank tp=3 has" in str(raised.value) and "index [2]" in str(raised.value)


def test_small_groups_are_run_too() -> None:
    def only_large_groups(x: Any) -> Any:
        y = x.sum()
        return lax.psum(y, "tp") if lax.axis_size("tp") > 2 else y

    with pytest.raises(AssertionError, match="on tp=2"):
        assert_rank_invariant(
            only_large_groups,
            array(8),
            mesh=TP4,
            in_layouts=(Sliced(0),),
            out_layouts=Replicated,
        )


def test_gradients_mean_what_they_do_under_the_flag() -> None:
    def gradient(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: lax.psum(((x @ w) ** 2).sum(), "tp"))(w)

    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Replicated, Sliced(0))}
    args = array(4, 3), array(8, 4)
    assert_rank_invariant(gradient, *args, out_layouts=Replicated, **given)
    with pytest.raises(AssertionError):
        assert_rank_invariant(gradient, *args, out_layouts=Replicated, check_vma=False, **given)


NUMBERS = [np.float32, jnp.bfloat16, np.int32, np.uint8, bool]
TERMS = [(op, dtype) for op in ("sum", "max", "min", "prod") for dtype in NUMBERS]


@pytest.mark.parametrize(("op", "dtype"), [*TERMS, ("sum", np.complex64), ("prod", np.complex64)])
def test_terms_of_a_partial_argument_reduce_to_it(op: Any, dtype: Any) -> None:
    x = jnp.asarray(np.random.default_rng().integers(0, 2, (6, 4)) + (dtype is not bool), dtype)

    def reduced(x: Any) -> Any:
        return getattr(jnp, op)(lax.all_gather(x, "tp"), axis=0).astype(x.dtype)

    def same(x: Any) -> Any:
        return x

    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Partial(op),)}
    assert_rank_invariant(reduced, x, out_layouts=Replicated, **given)
    assert_rank_invariant(same, x, out_layouts=Partial(op), **given)
    with pytest.raises(AssertionError, match="result of same"):
        assert_rank_invariant(same, x, out_layouts=Replicated, **given)


def test_a_local_argument() -> None:
    given: dict[str, Any] = {"mesh": GRID, "in_layouts": (on(dp=Local, tp=Sliced(0)),)}
    x = array(6, 4)

    def summed(x: Any) -> Any:
        return lax.psum(x.sum(0), ("dp", "tp"))

    def own(x: Any) -> Any:
        return lax.psum(x.sum(0), "tp")

    def twice(x: Any) -> Any:
        return lax.psum(lax.psum(x.sum(0), ("dp", "tp")), "tp")

    assert_rank_invariant(summed, x, out_layouts=Replicated, **given)
    assert_rank_invariant(own, x, out_layouts=on(dp=Local), **given)
    with pytest.raises(AssertionError, match="not equal on all ranks"):
        assert_rank_invariant(own, x, out_layouts=Replicated, **given)
    with pytest.raises(AssertionError, match="on dp=1, tp=3 is not as on one rank"):
        assert_rank_invariant(twice, x, out_layouts=Replicated, **given)


def test_keys_and_integers() -> None:
    def f(key: Any, ids: Any) -> Any:
        return key, jax.random.bits(key, (3,)), lax.all_gather(ids, "tp", tiled=True)

    args = jax.random.key(3), jnp.arange(12)
    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Replicated, Sliced(0))}
    assert_rank_invariant(f, *args, out_layouts=Replicated, **given)
    with pytest.raises(AssertionError, match=r"result\[2\]"):
        assert_rank_invariant(
            lambda k, i: (*f(k, i)[:2], f(k, i)[2].at[11].add(lax.axis_size("tp"))),
            *args,
            out_layouts=Replicated,
            **given,
        )
    own: dict[str, Any] = {"mesh": TP4, "in_layouts": (Local,)}
    draw: Callable[..., Any] = lambda key: jax.random.normal(key)  # noqa: E731
    with pytest.raises(AssertionError, match="not equal on all ranks"):
        assert_rank_invariant(draw, args[0], out_layouts=Replicated, **own)
    assert_rank_invariant(draw, args[0], out_layouts=Local, **own)


def test_tolerance_is_that_of_the_narrowest_type() -> None:
    def halves(x: Any, w: Any) -> Any:
        y = lax.psum((x @ w).astype(jnp.bfloat16), "tp")
        return y.astype(jnp.float32)

    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Sliced(1), Sliced(0))}
    args = array(8, 64), array(64, 8)
    assert_rank_invariant(halves, *args, out_layouts=Replicated, **given)
    with pytest.raises(AssertionError, match="rtol=1e-05"):
        assert_rank_invariant(halves, *args, out_layouts=Replicated, rtol=1e-5, **given)


def test_two_axes_that_slice_one_dimension() -> None:
    def gathered(x: Any) -> Any:
        return lax.all_gather(x, ("dp", "tp"), tiled=True)

    x = array(12, 2)
    assert_rank_invariant(
        gathered,
        x,
        mesh=GRID,
        in_layouts=(on(dp=Sliced(0), tp=Sliced(0)),),
        out_layouts=Replicated,
    )
    with pytest.raises(AssertionError, match="result"):
        assert_rank_invariant(
            gathered,
            x,
            mesh=GRID,
            in_layouts=(on(tp=Sliced(0), dp=Sliced(0)),),
            out_layouts=Replicated,
        )


def test_the_mesh_that_is_set_does_not_matter() -> None:
    with jax.set_mesh(jax.make_mesh((2, 2), ("dp", "tp"))):
        assert_rank_invariant(
            layer, array(8, 12), array(12, 6), array(6), out_layouts=Replicated, **ROWS
        )


def test_what_is_missing_or_does_not_fit() -> None:
    x = array(8)
    for given in ({}, {"mesh": TP4}, {"in_layouts": (Sliced(0),)}):
        with pytest.raises(jaxcc.LayoutError, match="needs mesh= and in_layouts="):
            assert_rank_invariant(lambda x: x, x, **given)
    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Sliced(0),), "out_layouts": Sliced(0)}
    with pytest.raises(jaxcc.LayoutError, match="axis 'dp'"):
        assert_rank_invariant(lambda x: x, x, sizes=[{"dp": 2}], **given)
    with pytest.raises(jaxcc.LayoutError, match="LAYOUT_INDIVISIBLE"):
        assert_rank_invariant(lambda x: x, array(6), **given)
    with pytest.raises(AssertionError, match="on tp=4, and"):
        assert_rank_invariant(lambda x: (x,) * lax.axis_size("tp"), x, **given)
