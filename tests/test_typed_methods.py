"""Typed functions in a class, whose instance is static or a pytree of arrays; and what typed
functions and labels say of themselves.
"""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
import pytest
from jax import lax
from jaxtyping import Array, Float
from oracles import close, mesh_of

import jaxcc
from jaxcc import Replicated, Sliced
from jaxcc.testing import assert_layout, assert_rank_invariant, raises_layout

MESH = mesh_of(2)
RANDOM = np.random.default_rng()


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


class Scaled:
    """Holds no arrays: its instances are static."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.traced = 0

    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), static_argnames="self")
    def total(self, x: Any) -> Any:
        self.traced += 1
        return lax.psum((x * self.scale).sum(), "tp")

    @jaxcc.typed(mesh=MESH, static_argnums=(0, 2))
    def power(self, x: Annotated[Float[Array, "n"], Sliced(0)], k: int) -> Any:
        return x**k * self.scale

    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),))
    def plain(self, x: Any) -> Any:
        return x * self.scale


def test_a_method_is_bound_to_its_instance() -> None:
    x = normal(4)
    whole = x.astype(np.float64)
    for scale in RANDOM.normal(size=3):
        model = Scaled(scale)
        for call in (model.total, model.total.reference, jax.jit(model.total)):
            close(call(x), scale * whole.sum())
        close(Scaled.total(model, x), scale * whole.sum())
        close(model.power(x, 2), whole**2 * scale)
        close(model.power(k=3, x=x), whole**3 * scale)
        close(model.total.schedule(x).compile()(x), scale * whole.sum())
        close(model.total.over(mesh_of(4))(x), scale * whole.sum())
        specs: dict[str, Any] = {"in_specs": jax.P("tp"), "out_specs": jax.P()}
        close(jax.shard_map(model.total.local, mesh=MESH, **specs)(x), scale * whole.sum())
        close(jax.grad(model.total)(x), np.full(4, scale))


def test_an_instance_is_checked_and_compiled_once() -> None:
    first, second, x = Scaled(2.0), Scaled(3.0), normal(4)
    first.total(x)
    before = first.traced
    first.total(x)
    assert first.traced == before and second.traced == 0
    second.total(x)
    assert first.traced == before and second.traced == before


def test_the_assertions_take_methods() -> None:
    model, x = Scaled(2.0), normal(4)
    assert_layout(model.total, x, results=Replicated)
    assert_rank_invariant(model.total, x)
    assert_rank_invariant(model.power, x, 2)
    assert_rank_invariant(Rows(normal(4), normal()).total, x)


@jax.tree_util.register_dataclass
@dataclass
class Rows:
    """A pytree: its instances are arguments with layouts of their own."""

    w: Any
    b: Any

    @jaxcc.typed(
        mesh=MESH,
        in_layouts={"self": {"w": Sliced(0), "b": Replicated}, "x": Sliced(0)},
    )
    def named(self, x: Any) -> Any:
        return self.w * x

    def sum(self, x: Any) -> Any:
        return lax.psum((self.w * x).sum(), "tp") + self.b

    # Layouts in the class itself can be given once there is one.
    total: ClassVar[Any] = None


Rows.total = jaxcc.typed(mesh=MESH, in_layouts=(Rows(Sliced(0), Replicated), Sliced(0)))(Rows.sum)


def test_an_instance_with_arrays_is_an_argument() -> None:
    x = normal(4)
    rows = Rows(normal(4), normal())
    for _ in range(2):
        expected = (rows.w.astype(np.float64) * x).sum() + rows.b
        for call in (rows.total, rows.total.reference, jax.jit(rows.total)):
            close(call(x), expected)
        assert rows.total.check(x).in_names == ("self.w", "self.b", "x")
        # Not a constant: what it holds may change.
        rows.w = normal(4)
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        rows.named(x)
    assert "in_layouts for argument 'self'" in findings[0].what


def test_any_other_instance_is_refused_with_what_to_write() -> None:
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        Scaled(2.0).plain(normal(4))
    assert "'self' of plain is <" in findings[0].what
    assert "static_argnames='self'" in findings[0].fixes[0] and "pytree" in findings[0].fixes[1]


def test_a_typed_function_says_what_it_is() -> None:
    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0), Replicated))
    def layer(x: Any, w: Any) -> Any:
        """Rows."""
        return x * w

    assert repr(layer).startswith("<jaxcc.TypedFunction ") and "layer(x, w)" in repr(layer)
    assert repr(Scaled(1.0).power) == "<jaxcc.TypedFunction Scaled.power(x, k)>"
    assert repr(Scaled.power) == "<jaxcc.TypedFunction Scaled.power(self, x, k)>"
    assert layer.__doc__ == "Rows." and list(inspect.signature(layer).parameters) == ["x", "w"]
    assert list(inspect.signature(Scaled(1.0).power).parameters) == ["x", "k"]


def test_name_says_what_labels_are_for() -> None:
    assert "schedules" in (jaxcc.name.__doc__ or "") and jaxcc.name.__module__ == "jaxcc"
    x = {"a": normal(3), "b": (normal(2),)}
    for found, given in zip(jax.tree.leaves(jaxcc.name(x, "x")), jax.tree.leaves(x), strict=True):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("attribute", jaxcc.__all__)
def test_everything_public_can_be_read_up(attribute: str) -> None:
    found = getattr(jaxcc, attribute)
    assert attribute in dir(jaxcc)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__ and found.__module__.startswith("jaxcc")
