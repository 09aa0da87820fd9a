"""Functions of doubles (ffi/protocol/math64.h, trig64.h) against long doubles and against XLA."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from jaxcc.codegen import OutRole, Role

Function = Callable[..., Any]
Long = np.longdouble
TINY = 2.0**-1022


def _erf(x: Any) -> Any:
    """The series of positive terms 2 / sqrt(pi) exp(-x^2) sum of 2^n x^(2 n + 1) / (2 n + 1)!!."""
    a = np.clip(x, -7, 7)
    term, total = a, a
    for n in range(1, 250):
        term = term * (2 * a * a / (2 * n + 1))
        total = total + term
    return np.where(np.isnan(x), x, 2 / np.sqrt(_pi()) * np.exp(-a * a) * total)


def _erfc(x: Any) -> Any:
    """1 - erf, and from 1 on the continued fraction."""
    a = np.clip(x, 1, 30)
    fraction = a
    for n in range(400, 0, -1):
        fraction = a + Long(n) / 2 / fraction
    large = np.exp(-a * a) / (np.sqrt(_pi()) * fraction)
    return np.where(x < 1, 1 - _erf(x), np.where(np.isnan(x), x, large))


def _pi() -> Any:
    return 4 * np.arctan(Long(1))


# name: (JAX, long double, where results are finite)
FUNCTIONS: dict[str, tuple[Function, Function, tuple[float, float]]] = {
    "exp": (lax.exp, np.exp, (-750, 710)),
    "exp2": (lax.exp2, np.exp2, (-1080, 1025)),
    "expm1": (lax.expm1, np.expm1, (-50, 710)),
    "log": (lax.log, np.log, (0, 1.7e308)),
    "log1p": (lax.log1p, np.log1p, (-1, 1.7e308)),
    "tanh": (lax.tanh, np.tanh, (-25, 25)),
    "logistic": (lax.logistic, lambda x: 1 / (1 + np.exp(-x)), (-750, 750)),
    "erf": (lax.erf, _erf, (-7, 7)),
    "erfc": (lax.erfc, _erfc, (-6, 28)),
    "rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x), (0, 1.7e308)),
    "cbrt": (lax.cbrt, np.cbrt, (-8e307, 8e307)),
    "sin": (lax.sin, np.sin, (-8e307, 8e307)),
    "cos": (lax.cos, np.cos, (-8e307, 8e307)),
    "tan": (lax.tan, np.tan, (-8e307, 8e307)),
}
SPECIAL = np.array(
    [0.0, np.inf, 1.0, 1.5, 0.5, 2.0, 3.0, 1e308, np.finfo(float).max, TINY, 3e-308, 1e-310, 5e-324]
    + [709.78, 709.79, 708.3, 745.1, 746.0, 1022.0, 1023.9, 1024.0, 1075.0, 1e-17, 1e-300, 20.0]
    + [
        27.2,
        27.3,
        2.0**53,
        2.0**53 + 2,
        2.0**52 + 1,
        2.0**51 + 0.5,
        1e22,
        1e300,
        0.94,
        1.0 - 2**-53,
    ]
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, [np.nan]])
# Of all doubles one of those nearest to a multiple of pi / 2: J.-M. Muller, Elementary Functions.
NEAREST = 6381956970095103.0 * 2.0**797


def _random(rng: np.random.Generator, size: int) -> Any:
    """Numbers of all magnitudes and signs."""
    spread = np.ldexp(rng.uniform(1, 2, size), rng.integers(-1021, 1023, size))
    return spread * rng.choice([-1, 1], size)


def _inputs(rng: np.random.Generator, low: float, high: float) -> Any:
    near = rng.normal(0, 1, 4000)
    quarters = rng.integers(1, 2**40, 2000) * (math.pi / 2)
    middle = np.ldexp(rng.normal(0, 1, 4000), rng.integers(-60, 10, 4000))
    some = [rng.uniform(low / 2, high / 2, 4000) * 2, _random(rng, 4000), near, 1 + near * 1e-3]
    both = np.concatenate([*some, quarters, middle, [NEAREST]])
    return np.concatenate([both[(both >= low) & (both <= high)], SPECIAL])


def _build(build: Any, functions: list[Function], operands: int) -> Any:
    def every(*args: Any) -> Any:
        return [function(*args) for function in functions]

    avals = [jax.ShapeDtypeStruct((8,), np.float64)] * operands
    outputs = [OutRole.GATHER] * len(functions)
    return build(every, avals, [Role.WHOLE] * operands, outputs, shape=None, ranks=1)


@pytest.fixture(name="computed", scope="module")
def _computed(build: Any) -> dict[str, tuple[Any, Any]]:
    """Inputs and results of each function, from one kernel."""
    rng = np.random.default_rng()
    with jax.enable_x64(True):
        run = _build(build, [function for function, _, _ in FUNCTIONS.values()], 1)
    inputs = [_inputs(rng, *interval) for _, _, interval in FUNCTIONS.values()]
    return {
        name: (x, run([x], x.shape)[n])
        for n, (name, x) in enumerate(zip(FUNCTIONS, inputs, strict=True))
    }


def _check(got: Any, true: Any, *args: Any) -> None:
    """At most 4 ulp from `true`, long doubles; a subnormal result may be flushed to zero."""
    with np.errstate(all="ignore"):
        want = true.astype(float)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    # Next to the largest double, the last bit decides whether a result is infinite.
    edge = (np.abs(true) > 1.7976931e308) & np.isfinite(true)
    infinite = np.isinf(want) & ~edge
    np.testing.assert_array_equal(got[infinite], want[infinite])
    zero = true == 0
    np.testing.assert_array_equal(got[zero], want[zero])
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    subnormal = np.abs(want) < TINY
    assert np.all(np.abs(got[subnormal] - want[subnormal]) <= TINY)
    tested = np.isfinite(want) & ~edge & ~subnormal
    error = np.abs(got[tested].astype(Long) - true[tested]) / np.spacing(np.abs(want[tested]))
    worst = int(np.argmax(error))
    at = [arg[tested][worst].item().hex() for arg in args]
    assert error[worst] <= 4, f"{error[worst]:.2f} ulp at {at}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_4_ulp_of_long_double(name: str, computed: dict[str, tuple[Any, Any]]) -> None:
    x, got = computed[name]
    with np.errstate(all="ignore"):
        true = FUNCTIONS[name][1](x.astype(Long))
    _check(got, true, x)


def _as_xla(function: Function, got: Any, *args: Any) -> None:
    # While XLA runs, the processor takes subnormal numbers for zero; here it does not.
    normal = np.logical_and.reduce([(np.abs(x) >= TINY) | (x == 0) | np.isnan(x) for x in args])
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(function)(*args))
    got, want = got[normal], want[normal]
    # XLA's exp2(1024) is next to the largest double.
    finite = np.abs(want) < 1.79e308
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-12, atol=TINY)
    zero = (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_as_xla(name: str, computed: dict[str, tuple[Any, Any]]) -> None:
    x, got = (values[-len(SPECIAL) :] for values in computed[name])
    _as_xla(FUNCTIONS[name][0], got, x)


def test_pow_within_4_ulp_and_special_values_as_xla(build: Any) -> None:
    rng = np.random.default_rng()
    with jax.enable_x64(True):
        run = _build(build, [lax.pow], 2)
    x = np.abs(np.concatenate([_random(rng, 8000), 1 + rng.normal(0, 1e-6, 4000)]))
    # Results of all magnitudes.
    y = rng.uniform(-745, 710, len(x)) / np.log(x)
    y[::5] = rng.integers(-5, 5, len(y[::5]))
    with np.errstate(all="ignore"):
        # The C library's own pow of long doubles.
        true = np.power(x.astype(Long), y.astype(Long))
    _check(run([x, y], x.shape)[0], true, x, y)
    bases, exponents = (each.reshape(-1).copy() for each in np.meshgrid(SPECIAL, SPECIAL))
    got = run([bases, exponents], bases.shape)[0]
    _as_xla(lax.pow, got, bases, exponents)
