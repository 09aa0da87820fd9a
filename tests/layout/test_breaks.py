"""Programs that compute something else on a group of ranks than on one, in ways that are easy to
miss, beside right programs that look like them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check, on

MESH = AbstractMesh((4,), ("tp",))
GRID = AbstractMesh((2, 4), ("dp", "tp"))
INF = float("inf")


def n():
    return lax.axis_size("tp")


def codes(f, *layouts, dtype=jnp.float32, mesh=MESH, out=None) -> tuple[str, ...]:
    """The codes that refuse `f` of arrays of shape (8, 8); none if it is accepted."""
    avals = [jax.ShapeDtypeStruct((8, 8), dtype)] * len(layouts)
    try:
        check(f, *avals, mesh=mesh, in_layouts=layouts, out_layouts=out)
    except LayoutError as error:
        return tuple(finding.code for finding in error.findings)
    return ()


BY_SIZE = {
    "integer_pow": lambda v, k: lax.integer_pow(v, 2 + k),
    "power operator": lambda v, k: v ** (3 + k),
    "cumsum reverse": lambda v, k: lax.cumsum(v, 0, reverse=bool(k)),
    "cumsum axis": lambda v, k: lax.cumsum(v, k),
    "rev": lambda v, k: lax.rev(v, (k,)),
    "sort": lambda v, k: lax.sort(v, dimension=k),
    "argmax axis": lambda v, k: lax.argmax(v, k, jnp.int32),
    "argmin type": lambda v, k: lax.argmin(v, 0, jnp.int16 if k else jnp.int32),
    "iota": lambda v, k: v * lax.broadcasted_iota(jnp.float32, (8, 8), k),
    "slice strides": lambda v, k: lax.slice(v, (0, 0), (6, 8), (2 + k, 1))[:2],
    "round": lambda v, k: lax.round(
        v, lax.RoundingMethod.TO_NEAREST_EVEN if k else lax.RoundingMethod.AWAY_FROM_ZERO
    ),
    "reduce_precision": lambda v, k: lax.reduce_precision(v, 8, 5 + k),
    "cast": lambda v, k: v.astype(jnp.int8 if k else jnp.int16),
    "cast and back": lambda v, k: v.astype(jnp.int8 if k else jnp.int16).astype(jnp.float32),
    "reduce axis": lambda v, k: v.sum(k),
    "split axis": lambda v, k: lax.split(v, (4, 4), k)[0].sum(),
    "concatenate": lambda v, k: lax.concatenate([v, v], k).reshape(128),
    "dot": lambda v, k: lax.dot_general(v, v, (((k,), (0,)), ((), ()))),
    "transpose": lambda v, k: lax.transpose(v, (k, 1 - k)),
    "reshape order": lambda v, k: lax.reshape(v, (64,), dimensions=(k, 1 - k)),
    "cumprod": lambda v, k: lax.cumprod(v, k),
}


@pytest.mark.parametrize("name", BY_SIZE)
def test_a_parameter_that_depends_on_the_size(name: str) -> None:
    f = BY_SIZE[name]
    assert codes(lambda v: f(v, int(n() > 1)), Replicated)
    for k in (0, 1):
        assert not codes(lambda v, k=k: f(v, k), Replicated)


def test_a_refused_parameter_is_shown_with_both_numbers() -> None:
    with pytest.raises(LayoutError, match="y=6 on n ranks and y=3 on one") as error:
        x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        check(lambda v: lax.integer_pow(v, n() + 2), x, mesh=MESH, in_layouts=(Replicated,))
    assert error.value.code == "LAYOUT_STRUCTURE"


@pytest.mark.parametrize(
    "dtype, lhs, rhs",
    [
        (jnp.float32, 1.0, 1e-9),
        (jnp.float16, 2048.0, 1.0),
        (jnp.bfloat16, 256.0, 1.0),
        (jnp.int8, 127, 1),
        (jnp.uint8, 255, 1),
        (jnp.int32, 2**31 - 1, 1),
    ],
)
def test_numbers_fold_in_their_own_type(dtype, lhs, rhs) -> None:
    """The sum is not larger than `lhs`: it is rounded away, or wraps around."""

    def grows():
        one = lax.full((), lhs, dtype)
        return lax.gt(lax.add(one, lax.full((), rhs, dtype)), one)

    assert not bool(grows())
    assert codes(lambda v: jnp.where(grows(), v, v * n()), Replicated)
    if jnp.issubdtype(dtype, jnp.integer):
        assert not codes(lambda v: jnp.where(grows(), v * n(), v), Replicated)


def test_other_numbers_that_wrap_around() -> None:
    def summed(v):
        total = lax.reduce(lax.full((4,), 100, jnp.int8), np.int8(0), lax.add, (0,))
        return jnp.where(total > 127 // 2, v, v * n())

    def psummed(v):
        total = lax.psum(lax.full((), 100, jnp.int8), "tp")
        return jnp.where(lax.gt(total, np.int8(-50)), v, v * n())

    def powered(v):
        return jnp.where(lax.integer_pow(lax.full((), 16, jnp.int8), 2) > 0, v, v * n())

    def cast(v):
        return jnp.where(lax.full((), 300, jnp.int32).astype(jnp.int8) > 100, v, v * n())

    for f in (summed, psummed, powered, cast):
        assert codes(f, Replicated)


@pytest.mark.parametrize(
    "larger",
    [
        lambda: lax.exp(lax.full((), 1.0)) > 2.7182817,
        lambda: lax.exp(lax.full((), 1.0)) - 2.7182817 > 0,
        lambda: lax.sign(lax.exp(lax.full((), 1.0)) - 2.7182817) + 1,
        lambda: (lax.integer_pow(lax.full((), 1.1), 7) - 1.9487172).astype(bool),
        lambda: lax.reduce_sum(lax.full((1000,), 1.0, jnp.bfloat16), (0,)) == 1000,
    ],
)
def test_the_last_bit_of_a_float_decides_nothing(larger) -> None:
    assert codes(lambda v: jnp.where(larger(), v, v * n()), Replicated)
    assert codes(lambda v: jnp.where(larger(), v * n(), v), Replicated)
    assert not codes(lambda v: jnp.where(larger(), v, -v), Replicated)


SOME = [(0, 0)]


@pytest.mark.parametrize(
    "f",
    [
        lambda v: lax.ppermute(v, "tp", SOME),
        lambda v: lax.ppermute(v, ("tp",), SOME),
        lambda v: jax.jit(lambda x: lax.ppermute(x, "tp", SOME))(v),
        lambda v: lax.cond(v[0, 0] > 0, lambda x: lax.ppermute(x, "tp", SOME), lambda x: x, v),
        lambda v: lax.fori_loop(0, 2, lambda _, x: lax.ppermute(x, "tp", SOME), v),
    ],
)
def test_a_permutation_that_leaves_out_ranks(f) -> None:
    avals = [jax.ShapeDtypeStruct((8, 8), jnp.float32)]
    with pytest.raises(LayoutError) as error:
        check(f, *avals, mesh=MESH, in_layouts=(Replicated,), check_vma=False)
    assert error.value.code == "LAYOUT_RANK_DEPENDENT"


@pytest.mark.parametrize(
    "f",
    [
        lambda v: jnp.power(v * 0.0, 0.0) * n(),
        lambda v: lax.integer_pow(v * 0.0, 0) * n(),
        lambda v: lax.pow(v * n(), lax.full((8, 8), INF)),
        lambda v: jnp.clip(v * (1.5 - n()) * INF, -1, 1),
        lambda v: jnp.clip(INF * (v * (1.5 - n())), -1, 1),
        lambda v: jnp.clip(v * (1.5 - n()) / 0.0, -1, 1),
        lambda v: jnp.clip(1.0 / (v * 0.0 * (1.5 - n())), -1, 1),
        lambda v: jnp.clip(INF / (v * (1.5 - n())), -1, 1),
        lambda v: jnp.clip((v @ v * (1.5 - n())) @ jnp.full((8, 8), INF), -1, 1),
        lambda v: (v * (1.5 - n()) + INF) / (1.5 - n()),
        lambda v: jnp.clip(1.0 / jnp.where(n() > 1, 0.0, -0.0) * v, -1, 1),
    ],
)
def test_zeros_and_infinities(f) -> None:
    assert codes(f, Replicated)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: v * n() * 0.0,
        lambda v: jnp.clip(v * n() * INF, -1, 1),
        lambda v: jnp.power(v * n(), 0.0),
        lambda v: v * (1.5 - n()) / (1.5 - n()),
        lambda v: jnp.where(v > 0, v, -INF).max(0),
    ],
)
def test_right_programs_with_zeros_and_infinities(f) -> None:
    assert not codes(f, Replicated)


@pytest.mark.parametrize("reduce", [lax.reduce_or, lax.reduce_and])
def test_bits_are_no_maxima(reduce) -> None:
    combine = lax.pmax if reduce is lax.reduce_or else lax.pmin
    f = lambda v: combine(reduce(v, (0,)), "tp")  # noqa: E731
    assert codes(f, Sliced(0), dtype=jnp.int32)
    assert codes(f, Sliced(0), dtype=jnp.uint8)
    assert codes(lambda v: reduce(v * n(), (0,)) // n(), Replicated, dtype=jnp.int32)
    assert not codes(lambda v: reduce(v, (0,)), Replicated, dtype=jnp.int32)
    assert not codes(lambda v: reduce(v, (1,)), Sliced(0), dtype=jnp.int32)
    assert not codes(lambda v: reduce(v > 0, (1,)), Sliced(0))


def test_a_replicated_result_is_no_pending_product() -> None:
    assert codes(lambda v: v, Replicated, out=Partial("prod"))
    assert codes(lambda v: v, Replicated, out=Partial("sum"))
    assert not codes(lambda v: v, Partial("prod"), out=Partial("prod"))
    for op in ("max", "min"):
        assert not codes(lambda v: v, Replicated, out=Partial(op))


def test_a_local_result_keeps_the_promise_over_the_other_axes() -> None:
    out = on(dp=Local)
    assert codes(lambda v: lax.psum(v, "tp"), Replicated, mesh=GRID, out=out)
    assert codes(lambda v: v * n(), Replicated, mesh=GRID, out=out)
    assert not codes(lambda v: lax.pmean(v, "tp"), Replicated, mesh=GRID, out=out)
    assert not codes(lambda v: lax.psum(v, "tp"), on(tp=Partial()), mesh=GRID, out=out)
    # A result that is Local over one axis must not free another result of it.
    both = (on(dp=Local), on(tp=Local))
    assert codes(lambda v: (v * n(), v), Replicated, mesh=GRID, out=both)
    dp = lambda v: (v, v * lax.axis_size("dp"))  # noqa: E731
    assert codes(dp, Replicated, mesh=GRID, out=both)
    assert not codes(lambda v: (v, v * n()), Replicated, mesh=GRID, out=both)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint32])
def test_unsigned_differences_wrap_around(dtype) -> None:
    limit = dtype(20)
    down = lambda v: lax.pmin(limit - v.max(0), "tp")  # noqa: E731
    for f in (
        down,
        lambda v: lax.pmax(v.max(0) - limit, "tp"),
        lambda v: lax.pmax(v.max(0) + dtype(255), "tp"),
        lambda v: lax.pmin(-v.max(0), "tp"),
        lambda v: lax.pmax(v.max(0) * dtype(255), "tp"),
    ):
        assert codes(f, Sliced(0), dtype=dtype)
    assert not codes(lambda v: limit - lax.pmax(v.max(0), "tp"), Sliced(0), dtype=dtype)
    signed = lambda v: lax.pmin(20 - v.max(0), "tp")  # noqa: E731
    assert not codes(signed, Sliced(0), dtype=jnp.int32)
    assert not codes(signed, Sliced(0))


@pytest.mark.parametrize("wide", [jnp.int32, jnp.float32])
@pytest.mark.parametrize("narrow", [jnp.int8, jnp.int16])
def test_narrow_sums_are_not_widened(narrow, wide) -> None:
    f = lambda v: lax.psum(v.astype(wide), "tp")  # noqa: E731
    assert codes(f, Partial("sum"), dtype=narrow)
    assert codes(lambda v: (v * narrow(n())).astype(wide) / n(), Replicated, dtype=narrow)
    assert not codes(lambda v: lax.psum(v, "tp").astype(wide), Partial("sum"), dtype=narrow)
    assert not codes(lambda v: v.astype(wide), Sliced(0), dtype=narrow)


@pytest.mark.parametrize("collective", [lax.psum, lax.pmax, lax.all_gather])
def test_an_axis_named_twice(collective) -> None:
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.raises(LayoutError) as error:
        f = lambda v: collective(v, ("tp", "tp"))  # noqa: E731
        check(f, x, mesh=MESH, in_layouts=(Replicated,), check_vma=False)
    assert error.value.code == "LAYOUT_AXIS"


def test_captured_keys_and_nans() -> None:
    keys = [jax.random.key(seed) for seed in (0, 1)]
    assert not codes(lambda v: v + jax.random.normal(keys[0], v.shape), Replicated)
    assert codes(lambda v: v + jax.random.normal(keys[int(n() > 1)], v.shape), Replicated)
    holes = np.array([1, np.nan, 3, 4, 5, 6, 7, 8], np.float32)
    filled = np.nan_to_num(holes)
    for dtype in (jnp.float32, jnp.bfloat16):
        a, b = jnp.asarray(holes, dtype), jnp.asarray(filled, dtype)
        assert not codes(lambda v, a=a: v * a, Replicated)
        assert codes(lambda v, a=a, b=b: v * (a if n() > 1 else b), Replicated)
    zeros = [jnp.zeros(8), -jnp.zeros(8), jnp.array([0.0, -0.0] * 4)]
    for a in zeros[1:]:
        assert codes(lambda v, a=a: 1 / (a if n() > 1 else zeros[0]) + v, Replicated)
