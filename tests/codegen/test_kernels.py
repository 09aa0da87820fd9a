"""Whole kernels: reductions over ranks, broadcasts, slices along any dim, odd sizes, in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxcc.codegen import OutRole, Role

GATHER, SLICE = OutRole.GATHER, OutRole.SLICE


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def adam(g: Any, w: Any, m: Any, v: Any, rate: Any, c1: Any, c2: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return w - rate * (m * c1) / (jnp.sqrt(v * c2) + 1e-8), m, v


ADAM = [Role.REDUCE, Role.WHOLE, Role.SLICE, Role.SLICE, Role.SCALAR, Role.SCALAR, Role.SCALAR]


@pytest.fixture(name="adam_of", scope="module")
def _adam_of(build: Any) -> dict[int, Any]:
    avals = [f32(8)] * 4 + [f32()] * 3
    return {
        n: build(adam, avals, ADAM, [GATHER, SLICE, SLICE], shape=None, ranks=n) for n in (1, 2, 3)
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_place", [{}, {1: 0, 2: 1, 3: 2}])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 64, 1023, 5000])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_adam(ranks: int, size: int, in_place: Any, stream: bool, adam_of: dict[int, Any]) -> None:
    gradients = [normal(r, size) for r in range(ranks)]
    w, m, v = normal(10, size), normal(11, size), normal(12, size) ** 2
    scalars = [np.float32(1e-2), np.float32(1 / 0.3), np.float32(1 / 0.02)]
    args = [gradients, w, m, v, *scalars]
    got = adam_of[ranks](args, (size,), in_place=in_place, stream=stream, tile=1500)
    total = np.sum([g.astype(np.float64) for g in gradients], axis=0)
    double = [np.float64(x) for x in (w, m, v, *scalars)]
    with jax.enable_x64(True):
        want = adam(total, *double)
    for each, true in zip(got, want, strict=True):
        np.testing.assert_allclose(each, np.asarray(true), rtol=2e-5, atol=2e-6)


def test_results_do_not_depend_on_how_the_work_is_cut(adam_of: dict[int, Any]) -> None:
    size = 3001
    args = [normal(1, size), normal(2, size), normal(3, size), normal(4, size) ** 2, 0.1, 2.0, 3.0]
    scalars = [np.float32(x) for x in args[4:]]
    halves = [args[0] * np.float32(0.5)] * 2
    one = adam_of[1]([[args[0]], *args[1:4], *scalars], (size,), tile=3001)
    two = adam_of[2]([halves, *args[1:4], *scalars], (size,), tile=17, stream=True)
    for a, b in zip(one, two, strict=True):
        assert a.tobytes() == b.tobytes()


# (shape, shapes of the operands beside the reduced one)
BROADCASTS: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = [
    ((6, 40), ((40,),)),
    ((6, 40), ((6, 1),)),
    ((6, 40), ((1, 40), (6, 40), ())),
    ((3, 5, 8), ((8,), (5, 1), (3, 1, 1))),
    ((3, 5, 8), ((5, 8), (3, 1, 8))),
    ((2, 3, 4, 5), ((3, 1, 5), (2, 1, 4, 1), (1, 1, 1, 1))),
    ((6, 1), ((6, 1), (1,))),
    ((1, 9), ((9,), (1, 1))),
    ((1, 1), ((1,), (1, 1))),
    ((12,), ((1,), (12,))),
    ((0, 4), ((4,),)),
    ((1500, 3), ((3,), (1500, 1))),
]


@pytest.mark.parametrize("case", BROADCASTS, ids=str)
def test_broadcasts(case: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], build: Any) -> None:
    shape, others = case

    def program(x: Any, *others: Any) -> Any:
        y = jnp.tanh(x)
        for n, other in enumerate(others):
            y = y * other + jnp.exp(other) * (n + 1)
        return y

    args = [normal(n, *s) for n, s in enumerate(others)]
    for ranks in (2, 3):
        x = [normal(20 + r, *shape) for r in range(ranks)]
        avals = [f32(*shape), *(f32(*s) for s in others)]
        roles = [Role.REDUCE, *[Role.WHOLE] * len(others)]
        run = build(program, avals, roles, [GATHER], shape=shape, ranks=ranks)
        want = np.asarray(program(np.sum(x, axis=0, dtype=np.float32), *args))
        for sliced in range(len(shape)):
            (got,) = run([x, *args], shape, sliced=sliced, tile=11)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
        (got,) = run([x, *args], shape, stream=True)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_shapes_of_a_slice_serve_the_whole(build: Any) -> None:
    """A function traced on a rank's block, 2 of 6 columns, gives the kernel of the whole."""

    def tail(x: Any, bias: Any, residual: Any) -> Any:
        return jax.nn.gelu(x + bias) + residual

    whole, ranks = (4, 6), 3
    run = build(
        tail,
        [f32(4, 2), f32(4, 1), f32(4, 2)],
        [Role.REDUCE, Role.WHOLE, Role.SLICE],
        [GATHER],
        shape=whole,
        ranks=ranks,
    )
    x, bias, residual = (
        [normal(r, *whole) for r in range(ranks)],
        normal(8, 4, 1),
        normal(9, *whole),
    )
    (got,) = run([x, bias, residual], whole, sliced=1)
    np.testing.assert_allclose(got, tail(sum(x), bias, residual), rtol=2e-5, atol=1e-6)


def test_dims_of_size_1_come_and_go(build: Any) -> None:
    def program(x: Any, scale: Any) -> Any:
        column = lax.squeeze(lax.expand_dims(scale, (0,)), (0,)).reshape(5, 1)
        return (x.reshape(5, 1, 7) * 2).reshape(5, 7) * column

    x, scale = normal(0, 5, 7), normal(1, 5)
    run = build(
        program, [f32(5, 7), f32(5)], [Role.SLICE, Role.WHOLE], [SLICE], shape=(5, 7), ranks=2
    )
    np.testing.assert_allclose(run([x, scale], (5, 7))[0], x * 2 * scale[:, None], rtol=1e-6)


def test_inner_functions_are_inlined(build: Any) -> None:
    def twice(x: Any) -> Any:
        return jax.nn.relu(jax.nn.silu(x)) + jax.nn.relu(-x)

    def program(x: Any) -> Any:
        return jax.checkpoint(twice)(jax.lax.stop_gradient(x)) + jax.jit(twice)(x * 2)

    x = normal(0, 99)
    run = build(program, [f32(9)], [Role.WHOLE], [GATHER], shape=None, ranks=2)
    np.testing.assert_allclose(run([x], x.shape)[0], program(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "uint8"])
def test_reductions_over_ranks(op: str, dtype: str, build: Any) -> None:
    rng = np.random.default_rng(5)
    x = [(rng.normal(size=301) * 3).astype(np.int8).astype(dtype) for _ in range(3)]
    if jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        x = [each + (rng.random(301) / 8).astype(dtype) for each in x]
    with jax.enable_x64(True):
        aval = jax.ShapeDtypeStruct((8,), x[0].dtype)
        run = build(lambda x: x, [aval], [Role.REDUCE], [GATHER], shape=None, ranks=3, op=op)
    (got,) = run([x], (301,))
    reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op].reduce
    if not jnp.issubdtype(x[0].dtype, jnp.floating):
        np.testing.assert_array_equal(got, reduce(x, axis=0, dtype=x[0].dtype))
        return
    # Half types accumulate in f32 and are rounded once; three terms of at most 10 may cancel.
    want = reduce([each.astype(np.float64) for each in x], axis=0)
    eps = float(jnp.finfo(got.dtype).eps)
    smallest = 6e-8 if dtype == "float16" else 0
    atol = smallest + 20 * min(eps, 2.0**-23)
    np.testing.assert_allclose(got.astype(float), want, rtol=0.51 * eps, atol=atol)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("max", [1, 1, -np.inf, 0.0, -0.0]),
        ("min", [1, 1, np.inf, 0.0, -0.0]),
        ("maximum", [np.nan, np.nan, np.nan, 0.0, 0.0]),
        ("minimum", [np.nan, np.nan, np.nan, -0.0, -0.0]),
    ],
)
def test_nan_and_zeros_of_ranks(op: str, expected: list[float], build: Any) -> None:
    """As XLA's all-reduces have them, or as its reductions."""
    run = build(lambda x: x, [f32(4)], [Role.REDUCE], [GATHER], shape=None, ranks=2, op=op)
    a = np.array([np.nan, 1, np.nan, 0.0, -0.0], np.float32)
    b = np.array([1, np.nan, -np.nan, -0.0, 0.0], np.float32)
    (got,) = run([[a, b]], (5,))
    np.testing.assert_array_equal(got, np.array(expected, np.float32))
    np.testing.assert_array_equal(np.signbit(got[3:]), np.signbit(expected[3:]))


def test_numbers(build: Any) -> None:
    """A 0-d array is one element, of rank 0."""
    for shape in ((), None):
        run = build(
            lambda x, y: (x * y, x),
            [f32(), f32()],
            [Role.REDUCE, Role.WHOLE],
            [GATHER, GATHER],
            shape=shape,
            ranks=2,
        )
        got = run([[np.float32(2), np.float32(3)], np.float32(4)], ())
        assert [float(each) for each in got] == [20, 5]


UNARY = [
    jnp.tanh,
    jnp.abs,
    jnp.negative,
    jax.nn.sigmoid,
    jnp.square,
    jnp.sin,
    jax.nn.relu,
    jnp.floor,
]
BINARY = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    jnp.minimum,
    lambda a, b: jnp.where(a < b, a, b),
]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_programs(data: Any, build: Any) -> None:
    """A random graph of pointwise functions of operands with random shapes, on 1 to 3 ranks."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    ranks = data.draw(st.integers(1, 3))
    roles = data.draw(st.lists(st.sampled_from(list(Role)), min_size=1, max_size=4))
    shapes: list[tuple[int, ...]] = []
    for role in roles:
        whole = role in (Role.REDUCE, Role.SLICE)
        ones = [size if whole or data.draw(st.booleans()) else 1 for size in shape]
        shapes.append(() if role is Role.SCALAR else tuple(ones))
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), max_size=8)
    )
    outputs = data.draw(
        st.lists(st.sampled_from([OutRole.GATHER, OutRole.SLICE]), min_size=1, max_size=2)
    )

    def program(*args: Any) -> Any:
        values = list(args)
        for function, a, b in steps:
            x, y = values[a % len(values)], values[b % len(values)]
            both = [*UNARY, *BINARY][function % (len(UNARY) + len(BINARY))]
            values.append(
                both(x) if function % (len(UNARY) + len(BINARY)) < len(UNARY) else both(x, y)
            )
        return [jnp.broadcast_to(value, shape) for value in values[-len(outputs) :]][: len(outputs)]

    outputs = outputs[: len(roles) + len(steps)]
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    args = [rng.normal(size=s).astype(np.float32) for s in shapes]
    parts = [
        [rng.integers(-8, 8, arg.shape).astype(np.float32) / 4 for _ in range(ranks)]
        for arg in args
    ]
    given_args = [parts[n] if role is Role.REDUCE else args[n] for n, role in enumerate(roles)]
    whole_args = [
        sum(x) if role is Role.REDUCE else x for x, role in zip(given_args, roles, strict=True)
    ]
    run = build(program, [f32(*s) for s in shapes], roles, outputs, shape=shape, ranks=ranks)
    sliced = data.draw(st.integers(0, len(shape) - 1))
    got = run(given_args, shape, sliced=sliced, tile=data.draw(st.integers(1, 20)))
    for each, want in zip(got, program(*whole_args), strict=True):
        np.testing.assert_allclose(each, np.asarray(want), rtol=1e-4, atol=1e-5)
