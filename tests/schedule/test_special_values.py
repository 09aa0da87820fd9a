"""NaN, infinities, signed zeros and subnormal numbers: a kernel gives what XLA gives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from oracles import mesh_of

import jaxcc
from jaxcc import Local, Replicated, ScheduleError, comm

COLLECTIVES = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}
DTYPES = ("float32", "float64", "bfloat16", "float16")


def specials(dtype: str, *more: float) -> np.ndarray:
    """Both signs of zero, of subnormal numbers and the least normal one, of infinity and NaN."""
    info = jnp.finfo(jnp.dtype(dtype))
    tiny, least = float(info.tiny), float(info.smallest_subnormal)
    values = [0.0, least, 5 * least, tiny - least, tiny, np.inf, np.nan, *more]
    return np.array([*values, *np.negative(values)]).astype(jnp.dtype(dtype))


def chosen(rng: np.random.Generator, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return values[rng.integers(0, len(values), shape)]


def same(got: Any, expected: Any) -> None:
    """The same numbers, zeros with their sign; NaN where the other has it."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    got, expected = got.astype(float), expected.astype(float)
    np.testing.assert_array_equal(got, expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("op", COLLECTIVES)
def test_all_reduces(op: str, n: int) -> None:
    """In one process XLA leaves NaN out of max and min, whichever rank has it; alone and fused,
    so does a kernel."""
    rng, mesh = np.random.default_rng(), mesh_of(n)

    def f(*terms: Any) -> Any:
        totals = [jaxcc.name(COLLECTIVES[op](x, "tp"), f"total {i}") for i, x in enumerate(terms)]
        return [jaxcc.name(-x, f"out {i}") for i, x in enumerate(totals)]

    def alone(*terms: Any) -> Any:
        return [comm.all_reduce(x, "tp", op=op, backend="host", mesh=mesh) for x in terms]

    terms: list[np.ndarray] = []
    for dtype in DTYPES:
        values = specials(dtype, 1.0, 2.0)
        if op == "sum":
            # A kernel rounds a sum of half types once; these are not rounded.
            exact = np.abs(values.astype(float)) < float(jnp.finfo(values.dtype).tiny) / 2
            values = values[exact | ~np.isfinite(values)]
        terms.append(chosen(rng, values, (n, 777)))
    with jax.enable_x64(True):
        s = jaxcc.typed(mesh=mesh, in_layouts=Local)(f).schedule(
            *(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in terms)
        )
        names = [f"{part} {i}" for i in range(len(terms)) for part in ("total", "out")]
        kernel = s.fuse(*names, name="kernel").compile("host")
        ranks = jax.jit(
            jax.shard_map(alone, mesh=mesh, in_specs=P("tp"), out_specs=P("tp"), check_vma=False)
        )
        expected = s.compile("xla")(*terms)
        for fused, plain, as_xla in zip(kernel(*terms), ranks(*terms), expected, strict=True):
            same(fused, as_xla)
            for rank in np.asarray(plain):
                same(-rank, as_xla)


WORK: dict[str, Callable[[Any], Any]] = {
    "clip": lambda x: jnp.clip(x, -1, 1),
    "clamp": lambda x: lax.clamp(jnp.asarray(-1, x.dtype), x, jnp.asarray(1, x.dtype)),
    "relu": jax.nn.relu,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square root": lambda x: jnp.sqrt(jnp.abs(x)),
    "a third": lambda x: x / 3,
    "of largest": lambda x: x / float(jnp.finfo(x.dtype).max),
    "floor division": lambda x: x // 2.5,
    "power": lambda x: x**-2,
    "next": lambda x: jnp.nextafter(x, jnp.asarray(0, x.dtype)),
    "to integer": lambda x: x.astype(jnp.int32),
    "ldexp": lambda x: jnp.ldexp(x, 3),
    "exponent": lambda x: jnp.frexp(x * 3)[1],
    "mantissa": lambda x: jnp.frexp(x * 3)[0],
    "reduced": lambda x: lax.reduce_precision(x, 4, 3),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_work_behind_an_all_reduce(dtype: str) -> None:
    mesh, rng = mesh_of(2), np.random.default_rng()
    largest = float(jnp.finfo(jnp.dtype(dtype)).max)
    values = specials(dtype, 1.0, 1.5, 7.0, 0.1, 300.0, 65500.0, largest)
    if dtype == "bfloat16":
        # Whether XLA keeps subnormal numbers of this type depends on what else the program does.
        values = values[(values == 0) | ~(np.abs(values) < jnp.finfo(values.dtype).tiny)]
    a, x = np.ones((2, 555), jnp.dtype(dtype)), chosen(rng, values, (555,))

    def f(a: Any, x: Any) -> Any:
        total = jaxcc.name(lax.psum(a, "tp"), "total")
        results = {name: work(x) for name, work in WORK.items()}
        return {
            k: jaxcc.name(jnp.where(total > 0, y, y * 0), f"its {k}") for k, y in results.items()
        }

    with jax.enable_x64(dtype == "float64"):
        typed = jaxcc.typed(mesh=mesh, in_layouts=(Local, Replicated))(f)
        s = typed.schedule(*(jax.ShapeDtypeStruct((555,), y.dtype) for y in (a, x)))
        got = s.fuse("total", ..., *(f"its {k}" for k in WORK), name="kernel").compile("host")(a, x)
        expected = s.compile("xla")(a, x)
    for name in WORK:
        try:
            same(got[name], expected[name])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_the_extreme_of_slices_is_that_of_the_whole(reduce: Any, n: int, dtype: str) -> None:
    """NaN of any rank's slice is the extreme, in a kernel and where XLA runs the schedule."""
    mesh, rng = mesh_of(n), np.random.default_rng()

    def f(a: Any) -> Any:
        t = jaxcc.name(jaxcc.name(lax.psum(a, "tp"), "total") * 2, "out")
        return t, jaxcc.name(reduce(t), "extreme")

    a = np.zeros((n, 8, 6), jnp.dtype(dtype))
    with jax.enable_x64(dtype == "float64"):
        typed = jaxcc.typed(mesh=mesh, in_layouts=Local)(f)
        plain = typed.schedule(jax.ShapeDtypeStruct((8, 6), a.dtype))
        s = plain.split("total", dim=0).reorder("total.gather", after="extreme")
        kernel = s.fuse("total.scatter", ..., "out.gather", "extreme.all_reduce", name="kernel")
        runs = [each.compile(to) for each, to in ((s, "xla"), (kernel, "host"))]
        whole = plain.compile("xla")
        for values in ([1.0, 2.0], [np.nan, 1.0], [-np.nan, np.inf], [np.inf, -np.inf], [-3.0]):
            a[0] = chosen(rng, np.array(values, a.dtype), (8, 6))
            for run in runs:
                for got, expected in zip(run(a), whole(a), strict=True):
                    same(got, expected)


def test_rows_that_do_not_lie_together_are_refused() -> None:
    def f(a: Any) -> Any:
        total = jaxcc.name(lax.psum(a, "tp"), "total")
        return jaxcc.name(jax.nn.softmax(total, axis=(0, 4)), "out")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(f)
    s = typed.schedule(jax.ShapeDtypeStruct((2, 4, 4, 5, 2), np.float32)).split("total", dim=1)
    with pytest.raises(ScheduleError) as error:
        s.reorder("total.gather", after="out").fuse("total.scatter", ..., "total.gather", name="k")
    assert error.value.code == "SCHEDULE_NOT_POINTWISE"
    assert "reduces dimensions (0, 4)" in str(error.value)
    assert "the last dimensions of an array, all together" in str(error.value)
