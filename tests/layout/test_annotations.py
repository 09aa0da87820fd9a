"""Layouts and shapes from annotations."""

from typing import Annotated

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jaxtyping import Array, Float

from jaxcc.layout import Partial, Replicated, Sliced, bind_annotations, bind_shapes, check, on
from jaxcc.testing import raises_layout

MESH = AbstractMesh((2,), ("tp",))


def product(
    x: Annotated[Float[Array, "*batch k"], Sliced(-1)],
    w: Annotated[Float[Array, "k 4"], Sliced(0)],
) -> Annotated[Float[Array, "*batch 4"], Replicated]:
    return lax.psum(x @ w, "tp")


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_layouts_of_parameters_and_result() -> None:
    ins, out = bind_annotations(product, (aval(3, 5, 6), aval(6, 4)))
    assert ins == (Sliced(-1), Sliced(0))
    assert out == Replicated


def test_names_bind_across_arguments() -> None:
    assert bind_shapes(product, (aval(5, 6), aval(6, 4))) == {"*batch": (5,), "k": 6}


@pytest.mark.parametrize(
    "shapes, said",
    [
        (((5, 6), (8, 4)), "dimension 'k' is 8, but 6"),
        (((5, 6), (6, 3)), "dimension '4' is 3, but 4"),
        (((5, 6), (6,)), "its annotation is 'k 4'"),
    ],
)
def test_shape_that_does_not_fit(shapes: tuple[tuple[int, ...], ...], said: str) -> None:
    with raises_layout("LAYOUT_SHAPE") as findings:
        bind_shapes(product, [aval(*shape) for shape in shapes])
    assert said in findings[0].what


def test_result_shape_that_does_not_fit() -> None:
    def square(
        x: Annotated[Float[Array, "a b"], Replicated],
    ) -> Annotated[Float[Array, "a a"], Replicated]:
        return x.T @ x

    with raises_layout("LAYOUT_SHAPE") as findings:
        check(square, aval(3, 5), mesh=MESH, in_layouts=(Replicated,))
    assert "the result has shape (5, 5)" in findings[0].what


def test_parameter_without_a_layout() -> None:
    def f(x: Annotated[jax.Array, on(tp=Sliced(0))], y: jax.Array):
        return x

    with raises_layout("LAYOUT_ANNOTATION") as findings:
        bind_annotations(f, (aval(2), aval(2)))
    assert "'y'" in findings[0].what


def test_tuple_of_results() -> None:
    def f(
        x: Annotated[jax.Array, Sliced(0)],
    ) -> tuple[Annotated[jax.Array, Sliced(0)], Annotated[jax.Array, Replicated]]:
        return x, lax.psum(x.sum(), "tp")

    assert bind_annotations(f, (aval(2),))[1] == (Sliced(0), Replicated)
    check(f, aval(4), mesh=MESH, in_layouts=(Sliced(0),), out_layouts=(Sliced(0), Replicated))


@pytest.mark.parametrize(
    "dims, fitting, other",
    [
        ("", [()], [(1,)]),
        ("...", [(), (3, 4)], []),
        ("... n 3", [(2, 3), (5, 2, 3)], [(3,), (2, 2)]),
        ("*a n", [(2,), (4, 5, 2)], [()]),
        ("n rows=4 _", [(2, 4, 1), (2, 4, 9)], [(2, 3, 1), (2, 4)]),
        ("#n m", [(1, 2), (7, 2)], [(2,)]),
    ],
)
def test_every_kind_of_dimension(dims, fitting, other) -> None:
    def f(x):
        return x

    f.__annotations__["x"] = Annotated[Float[Array, dims], Replicated]
    for shape in fitting:
        bind_shapes(f, (aval(*shape),))
    for shape in other:
        with raises_layout("LAYOUT_SHAPE"):
            bind_shapes(f, (aval(*shape),))


@pytest.mark.parametrize("dims", ["n", "*n", "#n"])
def test_a_name_has_one_size_everywhere(dims) -> None:
    def f(x, tree):
        return x

    f.__annotations__ |= {"x": Annotated[Float[Array, dims], Replicated]}
    f.__annotations__ |= {"tree": Annotated[Float[Array, dims], Replicated]}
    same, other = {"a": aval(5), "b": (aval(5),)}, {"a": aval(5), "b": (aval(6),)}
    bind_shapes(f, (aval(5), same))
    with raises_layout("LAYOUT_SHAPE") as findings:
        bind_shapes(f, (aval(5), other))
    assert "tree['b'][0]" in findings[0].what


def test_none_beside_an_annotation() -> None:
    def f(
        x: Annotated[Float[Array, "k"], Sliced(0)],
        b: Annotated[Float[Array, "k"], Replicated] | None = None,
    ):
        return x

    assert bind_annotations(f, (aval(2), aval(2)))[0] == (Sliced(0), Replicated)
    assert bind_annotations(f, (aval(2), None))[0][0] == Sliced(0)
    with raises_layout("LAYOUT_SHAPE"):
        bind_shapes(f, (aval(2), aval(3)))


def test_an_annotation_that_cannot_be_evaluated_hides_no_other() -> None:
    def f(x, y):
        return x

    f.__annotations__ = {"x": Annotated[jax.Array, Sliced(0)], "y": "Missing", "return": "Gone"}
    with raises_layout("LAYOUT_ANNOTATION") as findings:
        bind_annotations(f, (aval(2), aval(2)))
    assert "'y'" in findings[0].what


@pytest.mark.parametrize("kind, fix", [(Sliced, "write Sliced(dim)"), (Partial, "write Partial()")])
def test_the_class_of_a_layout_is_no_layout(kind, fix) -> None:
    def f(x: Annotated[jax.Array, kind]):
        return x

    def g(x: Annotated[jax.Array, Sliced(0)]) -> Annotated[jax.Array, kind]:
        return x

    for function, what in ((f, "parameter 'x'"), (g, "the result")):
        with raises_layout("LAYOUT_ANNOTATION") as findings:
            bind_annotations(function, (aval(2),))
        assert what in findings[0].what and fix in findings[0].fixes[0]
