"""`assert_layout` and `raises_layout`."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxcc
from jaxcc import Partial, Replicated, Sliced, on
from jaxcc.testing import assert_layout, raises_layout

TP2 = AbstractMesh((2,), ("tp",))


@jaxcc.typed(mesh=TP2, in_layouts=(Sliced(1), Sliced(0)))
def layer(x: Any, w: Any) -> Any:
    product = jaxcc.name(x @ w, "product")
    total = jaxcc.name(lax.psum(product, "tp"), "layer/total")
    return total, {"rows": w}


X, W = jnp.ones((4, 8)), jnp.ones((8, 6))


def test_results_and_labels_of_a_typed_function() -> None:
    assert_layout(layer, X, W, product=Partial(), results=(Replicated, Sliced(0)))
    assert_layout(layer, X, W, **{"layer/total": Replicated})
    assert_layout(layer.check(X, W), results=(Replicated, {"rows": on(tp=Sliced(0))}))


def test_another_layout_says_which_and_where_it_comes_from() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_layout(layer, X, W, product=Replicated)
    message = str(raised.value)
    assert message.startswith("'product' in layer is Partial(sum)@tp, not Replicated\n  f32[4,6]")
    assert "made by dot_general at " in message and "test_layouts.py:" in message
    with pytest.raises(AssertionError, match="result 1 of layer is Sliced"):
        assert_layout(layer, X, W, results=Replicated)
    with pytest.raises(AssertionError, match="has 2 results, not 3"):
        assert_layout(layer, X, W, results=(Replicated, Sliced(0), Sliced(0)))
    with pytest.raises(AssertionError, match="no value 'totl'; its labels: layer/total, product"):
        assert_layout(layer, X, W, totl=Replicated)


def test_an_array() -> None:
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("dp", "tp"))
    x = jax.device_put(jnp.ones((4, 4)), sharding)
    assert_layout(x, on(tp=Sliced(1), dp=Sliced(0)))
    with pytest.raises(AssertionError, match=r"the array is Sliced\(0\)@dp Sliced\(1\)@tp, not"):
        assert_layout(x, on(tp=Sliced(1)))
    both = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec(("tp", "dp"))))
    assert_layout(both, on(tp=Sliced(0), dp=Sliced(0)))
    with pytest.raises(AssertionError):
        assert_layout(both, on(dp=Sliced(0), tp=Sliced(0)))


def test_what_asserts_nothing() -> None:
    with pytest.raises(TypeError, match="give results="):
        assert_layout(layer, X, W)
    for args in ((X,), (lambda x: x, X, Replicated)):
        with pytest.raises(TypeError, match="assert_layout takes"):
            assert_layout(*args)


def counted(x: Any, w: Any, b: Any) -> Any:
    return lax.psum(x @ w + b, "tp")


LINE = counted.__code__.co_firstlineno + 1


def check_counted() -> None:
    layouts = (Sliced(1), Sliced(0), Replicated)
    jaxcc.check(counted, X, W, jnp.ones(6), mesh=TP2, in_layouts=layouts)


@pytest.mark.parametrize("line", [None, LINE, "x @ w + b"])
def test_an_expected_finding(line: str | int | None) -> None:
    with raises_layout("LAYOUT_COUNTED", line=line) as findings:
        check_counted()
    assert [finding.code for finding in findings] == ["LAYOUT_COUNTED"]


def test_an_expected_finding_that_does_not_come() -> None:
    with pytest.raises(AssertionError, match="accepted the program"):
        with raises_layout("LAYOUT_COUNTED"):
            layer.check(X, W)
    with pytest.raises(AssertionError, match=r"expected LAYOUT_SCALE, but found\n\[LAYOUT_COUNTED"):
        with raises_layout("LAYOUT_SCALE"):
            check_counted()
    for line in (LINE + 1, "x @ w * b"):
        with pytest.raises(AssertionError, match=r"test_layouts.py:\d+: 'return lax.psum"):
            with raises_layout("LAYOUT_COUNTED", line=line):
                check_counted()
    with pytest.raises(ValueError, match="'LAYOUT_CUNTED'; did you mean LAYOUT_COUNTED"):
        with raises_layout("LAYOUT_CUNTED"):
            check_counted()
    with pytest.raises(ZeroDivisionError):
        with raises_layout("LAYOUT_COUNTED"):
            raise ZeroDivisionError
