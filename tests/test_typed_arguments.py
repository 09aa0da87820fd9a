"""How typed functions are called: keywords, defaults, static arguments, empty ones, scalars; and
what is said of arguments that cannot be.
"""

import functools
import re
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array, Float
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, on
from jaxcc.testing import raises_layout

MESH = mesh_of(2)
RANDOM = np.random.default_rng()


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def test_keyword_only_arguments_and_defaults() -> None:
    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(1), Sliced(0), Replicated, Replicated))
    def layer(x: Any, w: Any, scale: Any = 2.0, *, b: Any) -> Any:
        assert isinstance(scale, float) or scale.shape == ()
        return lax.psum(x @ w, "tp") * scale + b

    x, w, b = normal(3, 4), normal(4, 5), normal(5)
    product = x.astype(np.float64) @ w
    close(layer(x, w, b=b), product * 2 + b)
    close(layer(b=b, w=w, x=x), product * 2 + b)
    close(layer(x, w, 3.0, b=b), product * 3 + b)
    close(layer(x, b=b, scale=np.float32(4), w=w), product * 4 + b)
    close(layer.reference(x, w, b=b), product * 2 + b)
    close(layer.schedule(x, w, b=b).compile()(x, w, b=b), product * 2 + b)
    assert layer.check(x, w, b=b).in_names == ("x", "w", "b")


def test_layouts_by_parameter() -> None:
    layouts = dict(b=Replicated, x=Sliced(1), w=Sliced(0), more=Replicated)

    @jaxcc.typed(mesh=MESH, in_layouts=layouts)
    def layer(x: Any, w: Any, b: Any = None, **more: Any) -> Any:
        y = lax.psum(x @ w, "tp") + sum(more.values())
        return y if b is None else y + b

    x, w, b = normal(3, 4), normal(4, 5), normal(5)
    product = x.astype(np.float64) @ w
    close(layer(x, w), product)
    close(layer(x, w, None), product)
    close(layer(x, w, b), product + b)
    close(layer(x, w, one=b, two=b), product + 2 * b.astype(np.float64))


def test_arguments_in_a_star() -> None:
    @jaxcc.typed(mesh=MESH, in_layouts=Sliced(0))
    def total(first: Any, *others: Any, minus: bool = False) -> Any:
        return first - sum(others) if minus else first + sum(others)

    a, b, c = normal(4), normal(4), normal(4)
    close(total(a, b, c), a.astype(np.float64) + b + c)
    close(total(a), a)
    report = total.check(a, b, c)
    assert report.in_names == ("first", "others[0]", "others[1]")


@pytest.mark.parametrize("chosen", [{"static_argnames": "mode"}, {"static_argnums": 1}])
def test_static_arguments(chosen: dict[str, Any]) -> None:
    traced: list[str] = []

    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), **chosen)
    def reduced(x: Any, mode: str = "sum") -> Any:
        traced.append(mode)
        y = lax.psum(x.sum(), "tp")
        return y / (x.size * lax.axis_size("tp")) if mode == "mean" else y

    x = normal(6)
    whole = x.astype(np.float64)
    for call in (reduced, reduced.reference, jax.jit(reduced, static_argnames="mode")):
        close(call(x), whole.sum())
        close(call(x, "mean"), whole.mean())
        close(call(x, mode="sum"), whole.sum())
    close(reduced.schedule(x, "mean").compile()(x), whole.mean())
    reduced.check(x, "mean")
    before = len(traced)
    reduced(x, mode="mean")
    reduced.check(x, "mean")
    assert len(traced) == before
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        reduced(x, mode=["mean"])
    assert "'mode' of reduced is ['mean'], which is not hashable" in findings[0].what
    assert "tuple" in findings[0].fixes[0]


def test_static_values_of_one_hash_are_told_apart() -> None:
    @jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), static_argnames=("k",))
    def times(x: Any, k: Any) -> Any:
        return x * (10 if k is True else k)

    x = normal(4)
    for k, factor in ((1, 1), (True, 10), (1.0, 1)):
        close(times(x, k), factor * x.astype(np.float64))


@pytest.mark.parametrize(
    "chosen, said",
    [
        ({"static_argnames": "mood"}, "static_argnames names 'mood', which is no parameter"),
        ({"static_argnums": 5}, "static_argnums names argument 5, but there are 2 positional ones"),
    ],
)
def test_static_arguments_that_are_not_there(chosen: dict[str, Any], said: str) -> None:
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), **chosen)(lambda x, mode: x)
    assert said in findings[0].what


def test_none_and_empty_trees_hold_no_arrays() -> None:
    def f(x: Any, bias: Any, extra: Any) -> Any:
        assert extra in ({}, [(), None])
        return {"y": x if bias is None else x + bias, "nothing": None, "empty": ()}

    typed = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0), Replicated, Sliced(3)))(f)
    x = normal(4, 2)
    for extra in ({}, [(), None]):
        for call in (typed, typed.reference):
            out = call(x, None, extra)
            close(out["y"], x)
            assert out["nothing"] is None and out["empty"] == ()
            close(call(x, normal(2) * 0, extra)["y"], x)


def test_a_function_that_returns_nothing() -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),))(lambda x: None)
    assert f(normal(4)) is None
    assert f.check(normal(4)).out_layouts == ()


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    rows: Any
    total: Any


def test_a_dataclass_comes_in_and_goes_out() -> None:
    layouts = Pair(Sliced(0), Replicated)

    @jaxcc.typed(mesh=MESH, in_layouts=(layouts,), out_layouts=layouts)
    def step(p: Pair) -> Pair:
        return Pair(p.rows * p.total, lax.psum(p.rows.sum(), "tp"))

    rows, total = normal(4), normal()
    for out in (step(Pair(rows, total)), step.reference(Pair(rows, total))):
        assert isinstance(out, Pair)
        close(out.rows, rows.astype(np.float64) * total)
        close(out.total, rows.astype(np.float64).sum())
    assert step.check(Pair(rows, total)).in_names == ("p.rows", "p.total")


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, x: Annotated[Float[Array, "n"], Sliced(0)]) -> Any:
        return lax.psum((x * self.scale).sum(), "tp")


def test_bound_methods_and_partial_functions() -> None:
    x = normal(4)
    whole = x.astype(np.float64)
    close(jaxcc.typed(mesh=MESH)(Model(3.0).apply)(x), 3 * whole.sum())

    def scaled(k: float, x: Annotated[Array, Sliced(0)], power: int = 1) -> Any:
        return k * x**power

    f = jaxcc.typed(mesh=MESH)(functools.partial(scaled, 2.0, power=3))
    close(f(x), 2 * whole**3)
    close(f.reference(x=x), 2 * whole**3)
    assert f.__name__ == "scaled"


def test_python_scalars_stay_weak() -> None:
    """As under `jax.jit`: they do not make a half-precision result wider."""
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0), Replicated))(lambda x, k: x * k)
    for dtype in (jnp.bfloat16, np.float32, np.int32):
        x = jnp.arange(4, dtype=dtype)
        assert f(x, 2).dtype == jax.jit(jnp.multiply)(x, 2).dtype == dtype
        assert f(x, 2.0).dtype == jax.jit(jnp.multiply)(x, 2.0).dtype
        close(f(x, 2.0), 2 * np.arange(4.0))
    assert f(jnp.ones(4, jnp.bfloat16), np.float32(2)).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.bool_, np.complex64, np.float16])
def test_dtypes(dtype: Any) -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),))(
        lambda x: (x, lax.all_gather(x, "tp", tiled=True))
    )
    x = (10 * normal(4, 3)).astype(dtype)
    for y in (*f(x), *f.reference(x)):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x)


def test_random_keys_are_arrays() -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0), Replicated))(
        lambda x, key: x * jax.random.normal(key, ())
    )
    x, key = normal(4), jax.random.key(int(RANDOM.integers(1000)))
    close(f(x, key), x * np.float64(jax.random.normal(key, ())))
    close(f(x, jax.random.key_data(key).view(np.uint32)), f(x, key))
    assert f.check(x, key).in_types[1].startswith("key<")


@pytest.mark.parametrize("layout", [Sliced(0), Sliced(1), Replicated])
def test_a_mesh_of_one_rank(layout: Any) -> None:
    f = jaxcc.typed(mesh=mesh_of(1), in_layouts=(layout,), out_layouts=layout)(jnp.sin)
    x = normal(3, 5)
    for call in (f, jax.jit(f), f.reference):
        close(call(x), np.sin(x.astype(np.float64)))
    close(jax.grad(lambda x: f(x).sum())(x), np.cos(x.astype(np.float64)))


@pytest.mark.parametrize("layout", [Sliced(0), Sliced(1), Replicated])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_an_axis_of_one_rank_beside_another(layout: Any, kind: AxisType) -> None:
    mesh = jax.make_mesh((1, 2), ("dp", "tp"), axis_types=(kind,) * 2, devices=jax.devices()[:2])

    @jaxcc.typed(mesh=mesh, in_layouts=(on(dp=layout, tp=Sliced(1)),))
    def rows(x: Any) -> Any:
        return lax.psum(jnp.sin(x).sum(1), "tp")

    x = normal(3, 4)
    whole = x.astype(np.float64)
    for call in (rows, jax.jit(rows), rows.reference):
        close(call(x), np.sin(whole).sum(1))
    with jax.set_mesh(mesh):
        close(jax.grad(lambda x: rows(x).sum())(jnp.asarray(x)), np.cos(whole))


@pytest.mark.parametrize("layout", [Partial(), Local])
def test_scalars(layout: Any) -> None:
    total = jaxcc.typed(mesh=MESH, in_layouts=(layout,))(lambda x: lax.psum(x, "tp"))
    x = normal(2)
    for call in (total, total.reference):
        close(call(x), x.astype(np.float64).sum())


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)])
def test_dimensions_of_no_size(shape: tuple[int, ...]) -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), out_layouts=(Sliced(0), Replicated))(
        lambda x: (x * 2, lax.psum(x.sum(), "tp"))
    )
    assert f.check(np.ones(shape)).out_layouts[1]["tp"] == Replicated
    doubled, total = f.reference(np.ones(shape))
    assert doubled.shape == shape and total == 0


@pytest.mark.parametrize(
    "args, layouts, code, said",
    [
        (("text",), (Replicated,), "LAYOUT_ARGUMENT", "'x' of f is 'text', not an array"),
        ((object,), (Replicated,), "LAYOUT_ARGUMENT", "argument 'x' of f is <class 'object'>"),
        ((2**40,), (Replicated,), "LAYOUT_ARGUMENT", "1099511627776"),
        (({"a": "b"},), (Replicated,), "LAYOUT_ARGUMENT", "argument 'x['a']' of f is 'b'"),
        ((1.0,), (Sliced(0),), "LAYOUT_ARGUMENT", "x has shape (), which has no dimension 0"),
        ((np.ones(3),), (Sliced(0),), "LAYOUT_INDIVISIBLE", "dimension 0 of x is 3"),
        ((np.ones(4),), (on(dp=Sliced(0)),), "LAYOUT_ARGUMENT", "'dp', but the mesh has tp"),
        ((np.ones(4),), (Sliced(0),) * 2, "LAYOUT_ARGUMENT", "a tuple of 2"),
        ((np.ones(4),), {"y": Sliced(0)}, "LAYOUT_ARGUMENT", "'y', which is no argument"),
        ((np.ones(4),), {}, "LAYOUT_ARGUMENT", "no layout for argument 'x'"),
        ((), (Sliced(0),), "LAYOUT_ARGUMENT", "f: missing a required argument: 'x'"),
        ((1, 2), (Sliced(0),), "LAYOUT_ARGUMENT", "f: too many positional arguments"),
    ],
)
def test_arguments_that_cannot_be(args: Any, layouts: Any, code: str, said: str) -> None:
    def f(x: Any) -> Any:
        return x

    typed = jaxcc.typed(mesh=MESH, in_layouts=layouts)(f)
    for call in (typed, typed.check, typed.reference, typed.schedule):
        with raises_layout(code) as findings:
            call(*args)
        assert said in findings[0].what


@pytest.mark.parametrize(
    "out_layouts, said",
    [
        ((Sliced(0), Sliced(0)), "out_layouts does not match the structure of the values"),
        ({"z": Sliced(0)}, "out_layouts does not match the structure of the values"),
        ({"y": Sliced(1)}, "result 0 has shape (4,), which has no dimension 1"),
        ({"y": "rows"}, "out_layouts['y'] has to be a layout, not 'rows'"),
    ],
)
def test_out_layouts_that_do_not_fit(out_layouts: Any, said: str) -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),), out_layouts=out_layouts)(lambda x: {"y": x})
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        f(normal(4))
    assert said in findings[0].what


def test_what_the_function_raises_is_its_own_error() -> None:
    def f(x: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today") as caught:
        jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),))(f)(normal(4))
    assert any("tp=2" in note for note in caught.value.__notes__)


def test_a_collective_over_no_axis_of_the_mesh() -> None:
    f = jaxcc.typed(mesh=MESH, in_layouts=(Sliced(0),))(lambda x: lax.psum(x, "rows"))
    with raises_layout("LAYOUT_AXIS") as findings:
        f(normal(4))
    assert re.search("'rows'.*'tp'", findings[0].what)
