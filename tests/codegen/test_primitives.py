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


def _reduced(bits: tuple[int, int], x: Any, y: Any, p: Any) -> Any:
    return lax.reduce_precision(x, *bits)


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
    "integer_pow 1": lambda x, y, p: lax.integer_pow(x, 1),
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
# Each is rounded as XLA rounds it: the results are the same, bit for bit.
ROUNDED: dict[str, Callable[..., Any]] = {
    **SIGNED,
    "integer_pow -1": lambda x, y, p: lax.integer_pow(x, -1),
    "integer_pow -2": lambda x, y, p: lax.integer_pow(x, -2),
    "integer_pow -3": lambda x, y, p: lax.integer_pow(x, -3),
    "div 3": lambda x, y, p: x / 3,
    "div 0.07": lambda x, y, p: x / 0.07,
    "div largest": lambda x, y, p: x / float(jnp.finfo(x.dtype).max),
    "div 0": lambda x, y, p: x / 0,
    "sqrt": lambda x, y, p: lax.sqrt(x),
    "nextafter": lambda x, y, p: lax.nextafter(x, y),
    "bitcast": lambda x, y, p: lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}"),
    "floor": lambda x, y, p: lax.floor(x),
    "ceil": lambda x, y, p: lax.ceil(x),
    "round": lambda x, y, p: lax.round(x),
    "round even": lambda x, y, p: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "is_finite": lambda x, y, p: lax.is_finite(x),
    "nan": lambda x, y, p: jnp.where(p, jnp.nan, x),
    "infinity": lambda x, y, p: jnp.where(p, -jnp.inf, x).astype(x.dtype),
    **{
        f"reduce_precision {bits}": partial(_reduced, bits)
        for bits in ((5, 10), (8, 7), (8, 23), (4, 3), (5, 2), (2, 1), (11, 52))
    },
}
ROUNDED_HALVES = {
    "exp2": lambda x, y, p: lax.exp2(x),
    "logistic": lambda x, y, p: lax.logistic(x),
}
FLOATING: dict[str, Callable[..., Any]] = {
    **ROUNDED,
    **ROUNDED_HALVES,
    "rsqrt": lambda x, y, p: lax.rsqrt(x),
    "cbrt": lambda x, y, p: lax.cbrt(x),
    "exp": lambda x, y, p: lax.exp(x),
    "expm1": lambda x, y, p: lax.expm1(x),
    "log": lambda x, y, p: lax.log(x),
    "log1p": lambda x, y, p: lax.log1p(x),
    "tanh": lambda x, y, p: lax.tanh(x),
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
    "pow": lambda x, y, p: lax.pow(lax.abs(x), y),
    "pow int": lambda x, y, p: lax.pow(x, p.astype(jnp.int32) * 3),
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


def _edges(dtype: str) -> Any:
    """Numbers where something changes: of floats NaN of both signs, infinities, zeros, subnormal
    numbers, the least normal and the largest.
    """
    kind = jnp.dtype(dtype)
    if jnp.issubdtype(kind, jnp.floating):
        info = jnp.finfo(kind)
        least, tiny, largest = (float(x) for x in (info.smallest_subnormal, info.tiny, info.max))
        edges = [0.0, 1.0, 2.5, 300.0, 65519.0, 65520.0, 3e9, 1e20, np.inf, np.nan, largest]
        edges += [tiny, 1.5 * tiny, least, 3 * least, 0.75 * tiny, tiny - least]
        with np.errstate(over="ignore"):
            return np.array([*edges, *np.negative(edges)]).astype(kind)
    info = np.iinfo(kind)
    return np.array([0, 1, 3, info.max, info.min, info.max - 1, info.min + 1], kind)


def _values(dtype: str, rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    """Two arrays: all pairs of edges, and random numbers of all sizes."""
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return rng.random(size) < 0.5, rng.random(size) < 0.5
    edges = _edges(dtype)
    x, y = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    more = _randoms(kind, rng, size), _randoms(kind, rng, size)
    return np.concatenate([x, more[0]]), np.concatenate([y, more[1]])


def _randoms(kind: Any, rng: np.random.Generator, size: int) -> Any:
    if jnp.issubdtype(kind, jnp.floating):
        values = rng.normal(0, 2, size)
        values[::7] = np.round(values[::7] * 2) / 2
        return values.astype(kind)
    info = np.iinfo(kind)
    values = rng.integers(info.min, info.max, size, dtype=kind, endpoint=True)
    values[::2] = rng.integers(0, 12, len(values[::2]))
    return values


# Near their roots XLA has few digits of these, which test_math.py holds against SciPy.
WITH_ROOTS = {"lgamma", "digamma"}


@pytest.fixture(name="outcome", scope="module", params=[*FLOATS, *INTEGERS, "bool"])
def _outcome(request: Any, build: Any) -> Any:
    """(dtype, for each program: name, kernel's result, XLA's)."""
    dtype: str = request.param
    programs = _programs(dtype)
    rng = np.random.default_rng()
    x, y = _values(dtype, rng, 307)
    size = len(x)
    p = rng.random(size) < 0.5

    def every(x: Any, y: Any, p: Any) -> Any:
        return [program(x, y, p) for program in programs.values()]

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct((8,), a.dtype) for a in (x, y, p)]
        outputs = [OutRole.GATHER, *[OutRole.SLICE] * len(programs)][: len(programs)]
        run = build(
            every, avals, [Role.WHOLE, Role.SLICE, Role.WHOLE], outputs, shape=None, ranks=2
        )
        got = run([x, y, p], (size,), tile=100, flush=True)
        want = [np.asarray(each) for each in jax.jit(every)(x, y, p)]
    return dtype, list(zip(programs, got, want, strict=True)), (x, y)


def _subnormal(x: Any) -> Any:
    return (x != 0) & (np.abs(x) < jnp.finfo(x.dtype).tiny)


def _same(a: Any, b: Any) -> Any:
    """Where two arrays hold the same number, zeros with their sign; or both NaN."""
    if not jnp.issubdtype(b.dtype, jnp.floating):
        return a == b
    with np.errstate(invalid="ignore"):  # NaN that signals
        a, b = a.astype(float), b.astype(float)
    return (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)


def _is_rounded(name: str, dtype: str) -> bool:
    """Whether XLA's result has one right value."""
    half = name in ROUNDED_HALVES and jnp.dtype(dtype).itemsize == 2
    return half or name not in FLOATING or name in ROUNDED


def test_as_xla_to_the_last_bit(outcome: Any) -> None:
    dtype, results, (x, y) = outcome
    for name, got, want in results:
        assert got.dtype == want.dtype, name
        if not _is_rounded(name, dtype):
            continue
        bad = ~_same(got, want)
        if dtype == "bfloat16" and name in ("max", "min"):
            # Whether XLA keeps subnormal numbers here depends on what stands around it.
            bad &= ~_subnormal(x) & ~_subnormal(y)
        at = np.flatnonzero(bad)[:4]
        assert not len(at), f"{name}: {x[at]}, {y[at]} -> {got[at]}, not {want[at]}"


def test_functions_as_xla(outcome: Any) -> None:
    dtype, results, (x, y) = outcome
    for name, got, want in results:
        if _is_rounded(name, dtype):
            continue
        # XLA takes some subnormal operands for 0, others not; which ones changes with its version.
        normal = ~_subnormal(x) & ~_subnormal(y)
        got, want = got[normal], want[normal]
        info = jnp.finfo(want.dtype)
        tolerance = {2: 2 * float(info.eps), 4: 1e-5, 8: 1e-14}[want.dtype.itemsize]
        smallest = tolerance if name in WITH_ROOTS else float(info.tiny)
        np.testing.assert_allclose(
            got.astype(float), want.astype(float), rtol=tolerance, atol=smallest, err_msg=name
        )
        zeros = (got == 0) & (want == 0)
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]), name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_as_xla(build: Any, dtype: str) -> None:
    programs = {**ROUNDED, **ROUNDED_HALVES, "constants": ARITHMETIC["constants"]}
    # A kernel makes NaN that signals quiet.
    del programs["bitcast"]
    programs |= {f"to {to}": partial(_convert, to) for to in (*FLOATS, *INTEGERS, "bool")}
    x = np.arange(1 << 16, dtype=np.uint16).view(jnp.dtype(dtype))
    p = np.random.default_rng().random(x.size) < 0.5

    def every(x: Any, p: Any) -> Any:
        return [program(x, x, p) for program in programs.values()]

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct((8,), each.dtype) for each in (x, p)]
        outputs = [OutRole.GATHER] * len(programs)
        run = build(every, avals, [Role.WHOLE] * 2, outputs, shape=None, ranks=1)
        got = run([x, p], x.shape, flush=True)
        # XLA before 0.12 crashes where it compiles all of them as one program.
        want = [np.asarray(jax.jit(program)(x, x, p)) for program in programs.values()]
    for name, ours, as_xla in zip(programs, got, want, strict=True):
        at = np.flatnonzero(~_same(ours, as_xla))[:4]
        assert not len(at), f"{name}: {x[at]} -> {ours[at]}, not {as_xla[at]}"


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reduced_precision_of_any_bits(build: Any, dtype: str) -> None:
    size = jnp.dtype(dtype).itemsize
    x = np.random.default_rng().integers(0, 256, (40_000, size), np.uint8).view(dtype).reshape(-1)
    programs = {name: f for name, f in ROUNDED.items() if name.startswith("reduce_precision")}

    def every(x: Any) -> list[Any]:
        return [program(x, x, x) for program in programs.values()]

    with jax.enable_x64(True):
        avals, outputs = [jax.ShapeDtypeStruct((8,), dtype)], [OutRole.GATHER] * len(programs)
        run = build(every, avals, [Role.WHOLE], outputs, shape=None, ranks=1)
        got = run([x], x.shape, flush=True)
        want = [np.asarray(each) for each in jax.jit(every)(x)]
    for name, ours, as_xla in zip(programs, got, want, strict=True):
        at = np.flatnonzero(~_same(ours, as_xla))[:4]
        assert not len(at), f"{name}: {x[at]} -> {ours[at]}, not {as_xla[at]}"


def test_all_that_may_run_on_slices_may_run_in_kernels() -> None:
    several_results = {"threefry2x32"}
    assert set(RULES) - several_results == POINTWISE - IDENTITIES
