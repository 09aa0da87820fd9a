"""`register_layout_rule`: a user's own primitive, and rules that return what is no relation."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc import LayoutError, Partial, Replicated, Sliced, check
from jaxcc._compat import traced_primitive
from jaxcc.layout import _rules
from jaxcc.testing import raises_layout

MESH = AbstractMesh((4,), ("tp",))
OWN = traced_primitive("own", lambda x: x)
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what a test registers."""
    monkeypatch.setattr(_rules, "_computing", dict(_rules._computing))


def own(x):
    return OWN.bind(x)


def test_the_examples_of_the_docstring() -> None:
    @jaxcc.register_layout_rule("own")
    def negate(eqn, x):
        return x.scaled(x.scale)

    report = check(own, X, mesh=MESH, in_layouts=(Partial(),))
    assert report.out_layouts[0]["tp"] == Partial()
    with raises_layout("LAYOUT_SCALE"):
        check(lambda x: own(lax.psum(x, "tp")), X, mesh=MESH, in_layouts=(Replicated,))

    @jaxcc.register_layout_rule("own")
    def gelu(eqn, x):
        if x.partial or not math.isclose(x.scale, 1.0):
            raise LayoutError("LAYOUT_PARTIAL_NONLINEAR", "own needs the whole value")
        return x.scaled(1.0)

    check(own, X, mesh=MESH, in_layouts=(Sliced(1),))
    with raises_layout("LAYOUT_PARTIAL_NONLINEAR", line="OWN.bind(x)"):
        check(own, X, mesh=MESH, in_layouts=(Partial(),))


@pytest.mark.parametrize("returned", [None, "x", [None], [0, 1]])
def test_a_rule_that_returns_no_relation(returned: Any) -> None:
    jaxcc.register_layout_rule("own")(lambda eqn, x: returned)
    with raises_layout("LAYOUT_RULE", line="OWN.bind(x)") as findings:
        check(own, X, mesh=MESH, in_layouts=(Sliced(1),))
    assert "the layout rule of own returned" in findings[0].what
    assert "return a relation" in findings[0].fixes[0]


def test_a_rule_that_returns_too_many_relations() -> None:
    jaxcc.register_layout_rule("own")(lambda eqn, x: [x, x])
    with raises_layout("LAYOUT_RULE") as findings:
        check(own, X, mesh=MESH, in_layouts=(Sliced(1),))
    assert "gives shapes [(8, 4), (8, 4)], not [(8, 4)]" in findings[0].what


def test_the_public_function_says_what_a_rule_is() -> None:
    text = jaxcc.register_layout_rule.__doc__ or ""
    for word in ("rule(eqn, *relations)", "It returns a relation", "LAYOUT_RULE"):
        assert word in text


@pytest.mark.parametrize("layout", [Replicated, Sliced(0)])
@pytest.mark.parametrize("kind", ["ffi_call", "pure_callback", "io_callback"])
def test_code_that_jax_does_not_see_needs_a_rule(kind: str, layout) -> None:
    """It may communicate, so that every rank holds its operands says nothing of its result."""

    def f(x):
        like = jax.ShapeDtypeStruct.like(x)
        if kind == "ffi_call":
            return jax.ffi.ffi_call("someone_elses", like)(x)
        call = jax.pure_callback if kind == "pure_callback" else io_callback
        return call(lambda a: a, like, x)

    aval = jax.ShapeDtypeStruct((8,), jnp.float32)
    with raises_layout("LAYOUT_NO_RULE"):
        check(f, aval, mesh=AbstractMesh((4,), ("tp",)), in_layouts=(layout,))


def test_printing_is_no_effect_on_results() -> None:
    def f(x):
        jax.debug.print("sum {}", x.sum())
        return 2.0 * x

    aval = jax.ShapeDtypeStruct((8,), jnp.float32)
    check(f, aval, mesh=AbstractMesh((4,), ("tp",)), in_layouts=(Sliced(0),), out_layouts=Sliced(0))
