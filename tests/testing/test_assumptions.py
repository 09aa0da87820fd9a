"""`assert_assumptions` holds what the checker takes on trust against what is computed."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc import Partial, Replicated, Sliced, on
from jaxcc.layout import unsafe_assume
from jaxcc.testing import assert_assumptions

TP4 = AbstractMesh((4,), ("tp",))
GRID = AbstractMesh((2, 3), ("dp", "tp"))


def array(*shape: int) -> Any:
    return np.random.default_rng().uniform(-1, 1, shape).astype(np.float32)


def reversed_by_a_ring(x: Any) -> Any:
    """Blocks in the opposite order: a ppermute, which the checker cannot follow."""
    n = lax.axis_size("tp")
    y = lax.ppermute(x, "tp", [(r, n - 1 - r) for r in range(n)])
    return unsafe_assume(y[::-1], Sliced(0), "tp") * 2


def test_a_claim_that_holds_and_one_that_does_not() -> None:
    given: dict[str, Any] = {"mesh": TP4, "in_layouts": (Sliced(0),)}
    assert_assumptions(reversed_by_a_ring, array(8, 2), **given)

    def not_reversed(x: Any) -> Any:
        n = lax.axis_size("tp")
        y = lax.ppermute(x, "tp", [(r, (r + 1) % n) for r in range(n)])
        return unsafe_assume(y, Sliced(0), "tp")

    with pytest.raises(AssertionError) as raised:
        assert_assumptions(not_reversed, array(8, 2), **given)
    message = str(raised.value)
    assert message.startswith(r"not_reversed assumes Sliced(0)@tp at")
    assert re.search(r"test_assumptions\.py:\d+, but on tp=4 rank tp=\d has", message)


def test_claims_in_loops_functions_and_of_several_axes() -> None:
    def f(x: Any, wrong: Any) -> Any:
        @jax.jit
        def inner(y: Any) -> Any:
            total = unsafe_assume(y.sum(0), on(dp=Replicated, tp=Partial()))
            return lax.psum(total, "tp")

        def step(carry: Any, row: Any) -> Any:
            row = unsafe_assume(row + wrong * lax.axis_index("dp"), Sliced(-1), "tp")
            return carry + 1, row

        rows = lax.scan(step, 0, x.T[:, None])[1]
        return inner(x), rows

    given: dict[str, Any] = {"mesh": GRID, "in_layouts": (on(tp=Sliced(0)), Replicated)}
    assert_assumptions(f, array(6, 2), np.float32(0), **given)
    with pytest.raises(AssertionError, match=r"rank dp=1, tp=\d"):
        assert_assumptions(f, array(6, 2), np.float32(1), **given)


@pytest.mark.parametrize("kind", ["while", "cond"])
def test_a_claim_where_it_cannot_be_tested(kind: str) -> None:
    def claim(x: Any) -> Any:
        return unsafe_assume(x, Sliced(0), "tp")

    def f(x: Any) -> Any:
        if kind == "cond":
            return lax.cond(x[0] > 0, claim, lambda x: x, x)
        return lax.while_loop(lambda x: x[0] > 0, lambda x: claim(x) - 1, x)

    with pytest.raises(jaxcc.LayoutError, match=f"inside {kind} cannot be tested"):
        assert_assumptions(f, array(8), mesh=TP4, in_layouts=(Sliced(0),))


def test_a_program_without_claims_tests_nothing() -> None:
    with pytest.raises(AssertionError, match="no unsafe_assume"):
        assert_assumptions(lambda x: x, array(8), mesh=TP4, in_layouts=(Sliced(0),))


def test_another_number_of_claims_on_one_rank() -> None:
    def f(x: Any) -> Any:
        for _ in range(lax.axis_size("tp")):
            x = unsafe_assume(x, Sliced(0), "tp")
        return x

    with pytest.raises(AssertionError, match="4 assumptions on tp=4, and to 1 on one rank"):
        assert_assumptions(f, array(8), mesh=TP4, in_layouts=(Sliced(0),))


def test_it_changes_nothing_that_is_computed() -> None:
    x = jnp.asarray(array(3, 4))

    def f(x: Any) -> Any:
        return (unsafe_assume(jnp.sin(x), Sliced(0), "tp") ** 2).sum()

    def plain(x: Any) -> Any:
        return (jnp.sin(x) ** 2).sum()

    def tangent(g: Any) -> Any:
        return lambda x: jax.jvp(g, (x,), (x,))[1]

    transforms: list[Any] = [jax.jit, jax.grad, jax.vmap, jax.hessian, tangent]
    for transform in transforms:
        np.testing.assert_allclose(transform(f)(x), transform(plain)(x), rtol=1e-6)
    whole = unsafe_assume({"a": x}, on(tp=Replicated))
    np.testing.assert_array_equal(whole["a"], x)
    for over, moved in ((0, Sliced(1)), (1, Sliced(0))):
        claim = jax.vmap(lambda row: unsafe_assume(row, Sliced(0), "tp"), over)
        eqns = jax.make_jaxpr(claim)(x).eqns
        assert [e.params["layout"] for e in eqns if "layout" in e.params] == [on(tp=moved)]


def test_claims_that_say_nothing() -> None:
    x = array(3)
    with pytest.raises(jaxcc.LayoutError, match="needs the axis"):
        unsafe_assume(x, Sliced(0))
    with pytest.raises(jaxcc.LayoutError, match="leave out axis_name"):
        unsafe_assume(x, on(tp=Sliced(0)), "tp")
    with pytest.raises(jaxcc.LayoutError, match="no dimension 1"):
        unsafe_assume(x, Sliced(1), "tp")
