"""What the author of a function that cannot be traced reads."""

import traceback

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check

MESH = AbstractMesh((4,), ("tp",))
ROWS = (Sliced(1), Sliced(0))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X, W = aval(8, 16), aval(16, 8)


def refused(f, *args, in_layouts, mesh=MESH) -> LayoutError:
    with pytest.raises(LayoutError) as error:
        check(f, *args, mesh=mesh, in_layouts=in_layouts)
    return error.value


OVER_MODEL = {
    "psum": lambda x: lax.psum(x, "model"),
    "pmean": lambda x: lax.pmean(x, "model"),
    "pmax": lambda x: lax.pmax(x, "model"),
    "all_gather": lambda x: lax.all_gather(x, "model"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "model", 0, 0, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "model", [(0, 1)]),
    "axis_index": lambda x: x * lax.axis_index("model"),
    "axis_size": lambda x: x * lax.axis_size("model"),
    "one of two": lambda x: lax.psum(x, ("tp", "model")),
    "in vmap": lambda x: jax.vmap(lambda y: lax.psum(y, "model"), axis_name="i")(x),
    "in jit": lambda x: jax.jit(lambda y: lax.psum(y, "model"))(x),
}


@pytest.mark.parametrize("name", OVER_MODEL)
def test_axis_that_is_not_there(name: str) -> None:
    f = OVER_MODEL[name]
    error = refused(f, X, in_layouts=(Sliced(1),))
    assert error.code == "LAYOUT_AXIS"
    assert "the axis 'model' is not one of the mesh, which has 'tp'" in str(error)
    (finding,) = error.findings
    assert finding.line is not None
    assert (finding.line.file, finding.line.line) == (__file__, f.__code__.co_firstlineno)


def test_typed_names_the_axis_and_those_of_the_mesh() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    f = jaxcc.typed(mesh=mesh, in_layouts=(Replicated,))(lambda x: lax.psum(x, "model"))
    with pytest.raises(LayoutError, match="(?s)'model'.*'dp', 'tp'"):
        f.check(X)


def test_an_axis_of_vmap_is_not_taken_for_one_of_the_mesh() -> None:
    def f(x):
        return jax.vmap(lambda y: lax.psum(y, "i"), axis_name="i")(x)

    with pytest.raises(LayoutError, match="LAYOUT_UNSUPPORTED.*the axis of a vmap"):
        check(f, X, mesh=MESH, in_layouts=(Sliced(1),), check_vma=False)


def product(x, w):
    y = x * 2
    return y @ w["w"]


def test_shapes_that_do_not_fit() -> None:
    error = refused(product, X, {"w": W}, in_layouts=(Sliced(1), Sliced(1)))
    text = str(error)
    assert error.code == "LAYOUT_TRACE"
    assert "dot_general requires contracting dimensions to have the same shape" in text
    assert f"test_failures.py:{product.__code__.co_firstlineno + 2}:12 in product" in text
    assert "argument 'x': whole f32[8,16] Sliced(1)@tp, per rank f32[8,4]" in text
    assert "argument 'w['w']': whole f32[16,8] Sliced(1)@tp, per rank f32[16,2]" in text
    assert isinstance(error.__cause__, TypeError)
    assert str(error.__cause__).splitlines()[0] in text


def test_local_and_partial_arguments_are_seen_whole() -> None:
    text = str(refused(lambda x, y: x @ y, X, X, in_layouts=(Local, Partial())))
    assert "'x': whole f32[8,16] Local@tp, per rank f32[8,16]" in text
    assert "'y': whole f32[8,16] Partial(sum)@tp, per rank f32[8,16]" in text


def branch(x):
    if x.sum() > 0:
        return x
    return -x


def count(x):
    return [x for _ in range(x.sum().astype(int))]


@pytest.mark.parametrize("f, name", [(branch, "TracerBool"), (count, "TracerInteger")])
def test_python_that_needs_a_value(f, name) -> None:
    error = refused(f, X, in_layouts=(Sliced(1),))
    text = str(error)
    assert error.code == "LAYOUT_TRACE" and name in text
    assert f":{f.__code__.co_firstlineno + 1}:" in text
    # jaxcc's own functions are none of the reader's business.
    assert "per_rank at" not in text
    assert "jax.numpy.where" in text


def test_a_smaller_group_says_so_and_shows_the_arguments() -> None:
    text = str(refused(lambda x: x.reshape(2, 3) * 2, aval(8, 3), in_layouts=(Sliced(0),)))
    assert "LAYOUT_TRACE" in text and "tp=2" in text
    assert "argument 'x': whole f32[8,3] Sliced(0)@tp, per rank f32[4,3]" in text
    assert "it can be traced on the mesh" in text and "lax.axis_size('tp')" in text


class Own(Exception):
    pass


@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), Own("mine")])
def test_the_users_own_errors_pass_with_a_note(error) -> None:
    def f(x):
        raise error

    with pytest.raises(type(error), match="mine") as raised:
        check(f, X, mesh=MESH, in_layouts=(Sliced(1),))
    assert raised.value is error
    assert "per rank f32[8,4]" in "".join(traceback.format_exception_only(error))


def test_an_interrupt_passes() -> None:
    def f(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(f, X, mesh=MESH, in_layouts=(Sliced(1),))


def test_the_users_own_error_on_a_smaller_group_is_the_cause() -> None:
    def f(x):
        assert x.shape == (8, 4), "only four ranks"
        return x

    error = refused(f, X, in_layouts=(Sliced(1),))
    assert error.code == "LAYOUT_TRACE" and "only four ranks" in str(error)
    assert isinstance(error.__cause__, AssertionError)


def test_a_layout_error_passes_unchanged() -> None:
    inner = LayoutError("LAYOUT_ARGUMENT", "of the library inside")

    def f(x):
        raise inner

    assert refused(f, X, in_layouts=(Sliced(1),)) is inner
