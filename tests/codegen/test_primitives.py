"""Each primitive, for each dtype that it takes, against XLA's evaluation of the same jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcc._compat import IDENTITIES
from jaxcc.codegen import OutRole, Role
from jaxcc.codegen._primitives import RULES
from jaxcc.schedule.verbs._pointwise import POINTWISE

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int32", "int64", "uint32", "uint64", "int16", "uint16", "int8", "uint8")

# Programs of two arrays and a bool array; for each dtype, all are outputs of one kernel.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, p: x + y,
    "sub": lambda x, y, p: x - y,
    "mul": lambda x, y, p: x * y,
    "div": lambda x, y, p: lax.div(x, y),
    "rem": lambda x, y, p: lax.rem(x, y),
    "neg": lambda x, y, p: -x,
    "sign": lambda x, y, p: lax.sign(x),
    "max": lambda x, y, p: lax.max(x, y),
    "min": lambda x, y, p: lax.min(x, y),
    "clamp": lambda x, y, p: lax.clamp(jnp.asarray(1, x.dtype), x, y),
    "square": lambda x, y, p: lax.square(x),
    "integer_pow 2": lambda x, y, p: lax.integer_pow(x, 2),
    "integer_pow 7": lambda x, y, p: lax.integer_pow(x, 7),
    "integer_pow 0": lambda x, y, p: lax.integer_pow(x, 0),
    "select": lambda x, y, p: jnp.where(p, x, y),
    "eq": lambda x, y, p: x == y,
    "ne": lambda x, y, p: x != y,
    "lt": lambda x, y, p: x < y,
    "le": lambda x, y, p: x <= y,
    "gt": lambda x, y, p: x > y,
    "ge": lambda x, y, p: x >= y,
    "constants": lambda x, y, p: (x + 1) * 3,
    "literal output": lambda x, y, p: jnp.full_like(x, 2),
    "input as output": lambda x, y, p: y,
    "to bool": lambda x, y, p: x.astype(bool),
    "from bool": lambda x, y, p: p.astype(x.dtype),
}
SIGNED: dict[str, Callable[..., Any]] = {"abs": lambda x, y, p: lax.abs(x)}
FLOATING: dict[str, Callable[..., Any]] = {
    **SIGNED,
    "integer_pow -3": lambda x, y, p: lax.integer_pow(x, -3),
    "sqrt": lambda x, y, p: lax.sqrt(x),
    "rsqrt": lambda x, y, p: lax.rsqrt(x),
    "cbrt": lambda x, y, p: lax.cbrt(x),
    "exp": lambda x, y, p: lax.exp(x),
    "exp2": lambda x, y, p: lax.exp2(x),
    "expm1": lambda x, y, p: lax.expm1(x),
    "log": lambda x, y, p: lax.log(x),
    "log1p": lambda x, y, p: lax.log1p(x),
    "tanh": lambda x, y, p: lax.tanh(x),
    "logistic": lambda x, y, p: lax.logistic(x),
    "erf": lambda x, y, p: lax.erf(x),
    "erfc": lambda x, y, p: lax.erfc(x),
    "sin": lambda x, y, p: lax.sin(x),
    "cos": lambda x, y, p: lax.cos(x),
    "tan": lambda x, y, p: lax.tan(x),
    "asin": lambda x, y, p: lax.asin(x / 4),
    "acos": lambda x, y, p: lax.acos(x / 4),
    "atan": lambda x, y, p: lax.atan(x),
    "atan2": lambda x, y, p: lax.atan2(x, y),
    "sinh": lambda x, y, p: lax.sinh(x),
    "cosh": lambda x, y, p: lax.cosh(x),
    "asinh": lambda x, y, p: lax.asinh(x),
    "acosh": lambda x, y, p: lax.acosh(x),
    "atanh": lambda x, y, p: lax.atanh(x / 4),
    "erf_inv": lambda x, y, p: lax.erf_inv(x / 4),
    "lgamma": lambda x, y, p: lax.lgamma(x),
    "digamma": lambda x, y, p: lax.digamma(x),
    "nextafter": lambda x, y, p: lax.nextafter(x, y),
    "bitcast": lambda x, y, p: lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}"),
    "pow": lambda x, y, p: lax.pow(lax.abs(x), y),
    "pow int": lambda x, y, p: lax.pow(x, p.astype(jnp.int32) * 3),
    "floor": lambda x, y, p: lax.floor(x),
    "ceil": lambda x, y, p: lax.ceil(x),
    "round": lambda x, y, p: lax.round(x),
    "round even": lambda x, y, p: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "is_finite": lambda x, y, p: lax.is_finite(x),
    "nan": lambda x, y, p: jnp.where(p, jnp.nan, x),
    "infinity": lambda x, y, p: jnp.where(p, -jnp.inf, x).astype(x.dtype),
}
BITWISE: dict[str, Callable[..., Any]] = {
    "and": lambda x, y, p: x & y,
    "or": lambda x, y, p: x | y,
    "xor": lambda x, y, p: x ^ y,
    "not": lambda x, y, p: ~x,
}
SHIFTS: dict[str, Callable[..., Any]] = {
    "shift_left": lambda x, y, p: lax.shift_left(x, y),
    "shift_right_logical": lambda x, y, p: lax.shift_right_logical(x, y),
    "shift_right_arithmetic": lambda x, y, p: lax.shift_right_arithmetic(x, y),
    "population_count": lambda x, y, p: lax.population_count(x),
    "clz": lambda x, y, p: lax.clz(x),
    "select of 3": lambda x, y, p: lax.select_n(jnp.clip(x, 0, 2).astype(jnp.int32), x, y, x + y),
}
BOOLEAN: dict[str, Callable[..., Any]] = {
    **BITWISE,
    "eq": ARITHMETIC["eq"],
    "lt": ARITHMETIC["lt"],
    "max": ARITHMETIC["max"],
    "select": ARITHMETIC["select"],
}


def _convert(dtype: str, x: Any, y: Any, p: Any) -> Any:
    return x.astype(dtype)


def _bitcast(dtype: str, x: Any, y: Any, p: Any) -> Any:
    return lax.bitcast_convert_type(x, dtype)


def _programs(dtype: str) -> dict[str, Callable[..., Any]]:
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return BOOLEAN
    programs = dict(ARITHMETIC)
    if jnp.issubdtype(kind, jnp.floating):
        programs |= FLOATING
    else:
        programs |= BITWISE | SHIFTS
        if kind.itemsize > 1:
            programs["bitcast"] = partial(_bitcast, f"float{8 * kind.itemsize}")
            if kind.itemsize == 2:
                programs["bitcast to bfloat16"] = partial(_bitcast, "bfloat16")
        programs |= SIGNED if jnp.issubdtype(kind, jnp.signedinteger) else {}
    return programs | {f"to {to}": partial(_convert, to) for to in (*FLOATS, *INTEGERS)}


def _values(dtype: str, rng: np.random.Generator, size: int) -> Any:
    """Random numbers of all sizes, and the edges of the dtype."""
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return rng.random(size) < 0.5
    if jnp.issubdtype(kind, jnp.floating):
        values = rng.normal(0, 2, size)
        values[::7] = np.round(values[::7] * 2) / 2
        values[: len(EDGES)] = rng.permutation(EDGES)
        with np.errstate(over="ignore"):
            return values.astype(kind)
    info = np.iinfo(kind)
    values = rng.integers(info.min, info.max, size, dtype=kind, endpoint=True)
    values[::2] = rng.integers(0, 12, len(values[::2]))
    values[:6] = [0, 1, info.max, info.min, info.max - 1, info.min + 1]
    return np.concatenate([values[:6], rng.permutation(values[6:])])


# XLA rounds several times on its way to these in half types.
ROUNDED_OFTEN = {"exp2", "integer_pow 7", "integer_pow -3", "constants"}
# Near their roots XLA has few digits of these, which test_math.py holds against SciPy.
WITH_ROOTS = {"lgamma", "digamma"}
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e9, -3e9, 1e20, -1e20, 65519.0, 65520.0, 300.0, -1.0]


@pytest.fixture(name="outcome", scope="module", params=[*FLOATS, *INTEGERS, "bool"])
def _outcome(request: Any, build: Any) -> Any:
    """(dtype, for each program: name, kernel's result, XLA's)."""
    dtype: str = request.param
    programs = _programs(dtype)
    rng = np.random.default_rng(3)
    size = 307
    x, y, p = _values(dtype, rng, size), _values(dtype, rng, size), rng.random(size) < 0.5

    def every(x: Any, y: Any, p: Any) -> Any:
        return [program(x, y, p) for program in programs.values()]

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct((8,), a.dtype) for a in (x, y, p)]
        outputs = [OutRole.GATHER, *[OutRole.SLICE] * len(programs)][: len(programs)]
        run = build(
            every, avals, [Role.WHOLE, Role.SLICE, Role.WHOLE], outputs, shape=None, ranks=2
        )
        got = run([x, y, p], (size,), tile=100)
        want = [np.asarray(each) for each in jax.jit(every)(x, y, p)]
    return dtype, list(zip(programs, got, want, strict=True)), (x, y)


def test_as_xla(outcome: Any) -> None:
    dtype, results, (x, y) = outcome
    for name, got, want in results:
        assert got.dtype == want.dtype, name
        if not jnp.issubdtype(want.dtype, jnp.floating):
            bad = np.flatnonzero(got != want)
            assert not len(bad), (
                f"{name}: {x[bad][:4]}, {y[bad][:4]} -> {got[bad][:4]}, not {want[bad][:4]}"
            )
            continue
        half = (4 if name in ROUNDED_OFTEN else 2) * float(jnp.finfo(want.dtype).eps)
        tolerance = {2: half, 4: 1e-5, 8: 1e-14}[want.dtype.itemsize]
        smallest = 6e-8 if dtype == "float16" else 1e-37
        if name in WITH_ROOTS:
            smallest = tolerance
        np.testing.assert_allclose(
            got.astype(float), want.astype(float), rtol=tolerance, atol=smallest, err_msg=name
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_have_xlas_order(build: Any, dtype: str) -> None:
    def every(x: Any, y: Any, z: Any) -> Any:
        return [lax.max(x, y), lax.min(x, y), lax.clamp(x, y, z)]

    zeros = np.meshgrid(*[np.array([0.0, -0.0])] * 3)
    # As many as a vector takes.
    args = [np.tile(each.reshape(-1), 9).astype(jnp.dtype(dtype)) for each in zeros]
    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct((8,), each.dtype) for each in args]
        run = build(every, avals, [Role.WHOLE] * 3, [OutRole.GATHER] * 3, shape=None, ranks=1)
        want = jax.jit(every)(*args)
    for got, as_xla in zip(run(args, args[0].shape), want, strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), np.asarray(as_xla).view(np.uint8))


@pytest.mark.parametrize(("exponent", "mantissa", "least"), [(5, 10, 2.0**-14), (8, 7, 2.0**-126)])
def test_reduced_precision_has_no_subnormal_numbers(
    build: Any, exponent: int, mantissa: int, least: float
) -> None:
    rng = np.random.default_rng()
    near = least * (1 + rng.uniform(-(2.0**-8), 2.0**-8, 4000)) * rng.choice([-1, 1], 4000)
    edges = least * (1 - np.ldexp(1.0, -np.arange(5, 15)))
    wide = rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 5, 4000)
    x = np.concatenate([near, edges, -edges, wide, [0.0, -0.0, np.inf, np.nan]]).astype(np.float32)
    # Subnormal operands are 0 to the processor while XLA runs.
    x = x[(np.abs(x) >= np.finfo(np.float32).tiny) | (x == 0) | np.isnan(x)]

    def reduced(x: Any) -> list[Any]:
        return [lax.reduce_precision(x, exponent, mantissa)]

    avals = [jax.ShapeDtypeStruct((8,), x.dtype)]
    run = build(reduced, avals, [Role.WHOLE], [OutRole.GATHER], shape=None, ranks=1)
    (found,), (wanted,) = run([x], x.shape), jax.jit(reduced)(x)
    np.testing.assert_array_equal(found, np.asarray(wanted))


def test_all_that_may_run_on_slices_may_run_in_kernels() -> None:
    several_results = {"threefry2x32"}
    assert set(RULES) - several_results == POINTWISE - IDENTITIES
