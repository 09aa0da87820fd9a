"""Kernels that reduce rows, or make totals, against NumPy in f64 and XLA."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcc.codegen import OutRole, Role
from jaxcc.layout import CodegenError

RED, WHOLE, SLICE = Role.REDUCE, Role.WHOLE, Role.SLICE
GATHER, OWN, TOTAL = OutRole.GATHER, OutRole.SLICE, OutRole.TOTAL


def softmax(x: Any, w: Any) -> Any:
    return jax.nn.softmax(x + w, axis=-1)


def rms_norm(x: Any, w: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w


def layer_norm(x: Any, w: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + mean


def log_softmax(x: Any, w: Any) -> Any:
    return jax.nn.log_softmax(x * w, axis=-1)


ROWS = [softmax, rms_norm, layer_norm, log_softmax]


@pytest.mark.parametrize("f", ROWS)
@pytest.mark.parametrize(
    ("shape", "ranks"),
    [((8, 5), 2), ((6, 2, 1500), 3), ((4, 1024), 1), ((2, 1), 2), ((9, 4, 7), 3)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_rows(
    f: Callable[..., Any], shape: tuple[int, ...], ranks: int, stream: bool, build: Any
) -> None:
    rng = np.random.default_rng()
    terms = [rng.normal(size=shape).astype(np.float32) for _ in range(ranks)]
    w = rng.normal(size=shape[-1]).astype(np.float32)
    avals = [jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct(w.shape, np.float32)]
    run = build(f, avals, [RED, WHOLE], [GATHER], shape=shape, ranks=ranks)
    (got,) = run([terms, w], shape, tile=1 << 10, stream=stream)
    with jax.enable_x64(True):
        expected = f(np.sum(np.asarray(terms, np.float64), 0), w.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_rows_of_other_floats_are_summed_wide(dtype: str, build: Any) -> None:
    rng, shape = np.random.default_rng(), (4, 3000)
    with jax.enable_x64(dtype == "float64"):
        terms = [jnp.asarray(rng.uniform(0.5, 1, shape), dtype) for _ in range(2)]
        aval = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

        def f(x: Any) -> Any:
            return x / x.sum(-1, keepdims=True)

        (got,) = build(f, [aval], [RED], [GATHER], shape=shape, ranks=2)(
            [[np.asarray(t) for t in terms]], shape
        )
        total = np.asarray(terms[0] + terms[1]).astype(np.float64)
    expected = total / total.sum(-1, keepdims=True)
    tolerance = {"bfloat16": 2e-2, "float16": 3e-3, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance)


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_a_row_with_a_nan_has_no_extreme(reduce: Any, build: Any) -> None:
    x = np.random.default_rng().normal(size=(4, 70)).astype(np.float32)
    x[1, 33], x[2, 5], x[3, 0] = np.nan, np.inf, -np.inf

    def f(x: Any) -> Any:
        return x * 0 + reduce(x, axis=-1, keepdims=True)

    (got,) = build(
        f, [jax.ShapeDtypeStruct(x.shape, x.dtype)], [WHOLE], [GATHER], shape=x.shape, ranks=2
    )([x], x.shape)
    np.testing.assert_array_equal(got, np.asarray(f(jnp.asarray(x))))


@pytest.mark.parametrize(
    ("reduce", "dtype"),
    [
        *((f, np.float32) for f in (jnp.sum, jnp.max, jnp.min)),
        *((f, np.int32) for f in (jnp.sum, jnp.max, jnp.prod)),
        (jnp.min, np.uint8),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 40_001])
@pytest.mark.parametrize("ranks", [1, 3])
def test_totals(reduce: Any, dtype: Any, size: int, ranks: int, build: Any) -> None:
    rng = np.random.default_rng()
    terms = [rng.integers(1, 9, size).astype(dtype) for _ in range(ranks)]

    def f(x: Any) -> Any:
        return x + x, reduce(x), reduce(x * x)

    aval = jax.ShapeDtypeStruct((8,), dtype)
    run = build(f, [aval], [RED], [OWN, TOTAL, TOTAL], shape=None, ranks=ranks)
    double, total, squares = run([terms], (size,), tile=3000)
    x = sum(terms[1:], terms[0])
    np.testing.assert_array_equal(double, x + x)
    _, expected, of_squares = f(jnp.asarray(x))
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    np.testing.assert_allclose(squares, of_squares, rtol=1e-6)


def test_a_total_beside_rows(build: Any) -> None:
    rng, shape = np.random.default_rng(), (12, 5, 9)
    x = rng.normal(size=shape).astype(np.float32)

    def f(x: Any) -> Any:
        y = jax.nn.softmax(x, axis=-1)
        return y, jnp.sum(y * y)

    aval = jax.ShapeDtypeStruct(shape, np.float32)
    y, total = build(f, [aval], [SLICE], [GATHER, TOTAL], shape=shape, ranks=4)(
        [x], shape, sliced=0
    )
    np.testing.assert_allclose(y, jax.nn.softmax(x), rtol=1e-5)
    np.testing.assert_allclose(total, np.square(np.float64(y)).sum(), rtol=1e-6)


def _columns(x: Any) -> Any:
    return x - x.max(0, keepdims=True)


def _everything(x: Any) -> Any:
    return x - x.max()


def _truth(x: Any) -> Any:
    return jnp.where((x > 0).any(-1, keepdims=True), x, 0)


def _two_rows(x: Any) -> Any:
    return jax.nn.softmax(x) + jax.nn.softmax(x, axis=(1, 2))


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (_columns, (4, 6)),
        (_everything, (4, 6)),
        (_truth, (4, 6)),
        (_two_rows, (4, 3, 2)),
        (jax.nn.softmax, (4, 1 << 20)),
    ],
)
def test_what_is_no_row_is_refused(f: Any, shape: tuple[int, ...], build: Any) -> None:
    with pytest.raises(CodegenError) as error:
        aval = jax.ShapeDtypeStruct(shape, np.float32)
        build(f, [aval], [RED], [GATHER], shape=shape, ranks=2)
    assert error.value.code == "CODEGEN_PRIMITIVE"


def test_there_is_no_cuda_form_yet(build: Any) -> None:
    aval = jax.ShapeDtypeStruct((4, 6), np.float32)
    kernel = build(jax.nn.softmax, [aval], [RED], [GATHER], shape=(4, 6), ranks=2).kernel
    with pytest.raises(CodegenError, match="CUDA"):
        _ = kernel.cuda_text
