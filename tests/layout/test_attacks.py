"""Programs, found by attacking the checker, that compute something else on a group of ranks than on
one, and small programs on which a rule must not stumble."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Replicated, Sliced, check

MESH = AbstractMesh((4,), ("tp",))
WHOLE = 16


def n():
    return lax.axis_size("tp")


def rank():
    return lax.axis_index("tp")


def block():
    return WHOLE // n()


def own(ids):
    low = rank() * block()
    return (ids >= low) & (ids < low + block())


def of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape or (WHOLE,), dtype)


F, INT, B = jnp.float32, jnp.int32, jnp.bool_


def two_cases_of_other_sets(ids, a, b, p):
    low = rank() * block()
    from_low = (ids >= low) & (ids < WHOLE)
    to_high = (ids >= 0) & (ids < low + block())
    return lax.psum(jnp.where(p, jnp.where(from_low, a, 0.0), jnp.where(to_high, b, 0.0)), "tp")


def predicate_and_case_of_other_sets(ids, a, b, p):
    low = rank() * block()
    from_low = (ids >= low) & (ids < WHOLE)
    to_high = (ids >= 0) & (ids < low + block())
    return lax.psum(jnp.where(p & from_low, jnp.where(to_high, a, b), 0.0), "tp")


def mask_of_a_float_ramp(x):
    positions, low = jnp.arange(WHOLE, dtype=F), (rank() * block()).astype(F)
    mine = (positions >= low + 0.5) & (positions <= low + (block() - 0.5))
    return lax.psum(jnp.where(mine, x, 0.0), "tp")


def mask_of_an_unsigned_ramp(x):
    positions = jnp.arange(WHOLE, dtype=jnp.uint32)
    low = (rank() * block()).astype(jnp.uint32)
    # An unsigned difference is never negative.
    mine = ((positions - low) >= 0) & (positions < low + block())
    return lax.psum(jnp.where(mine, x, 0.0), "tp")


def unsigned_ramp_below_zero(x):
    before = jnp.arange(x.shape[0], dtype=jnp.uint32) - jnp.uint32(1)
    return jnp.where(before < jnp.uint32(100), x, 0.0)


def ramp_cast(dtype, shift: float = 0):
    def f(x):
        rows = x.shape[0]
        ramp = jnp.arange(rows, dtype=dtype) + jnp.asarray(shift, dtype)
        return ramp.astype(INT) + rank() * rows

    return f


def ramp_cast_twice(dtype):
    def f(x):
        rows = x.shape[0]
        return jnp.arange(rows).astype(dtype).astype(INT) + rank() * rows

    return f


def filled_rows_lose_their_nan(ids, table):
    low, rows = rank() * table.shape[0], table.shape[0]
    at = jnp.where(ids - low < 0, rows, ids - low)
    taken = table.at[at].get(mode="fill")
    later = jnp.where(ids >= low, taken, 0.0)
    return lax.psum(later * own(ids).astype(F), "tp")


def negative_zero_in_a_loop(x):
    zero, _ = lax.scan(lambda c, _: (jnp.float32(-0.0), None), jnp.float32(0.0), None, length=3)
    return lax.pmin(jnp.where(rank() == 0, x, 1.0 / zero), "tp")


def four_bit_terms(x, w):
    return lax.psum((x @ w).astype(jnp.int4).astype(F), "tp")


R, S0 = Replicated, Sliced(0)
LONG = of(F, 2048)
WRONG = {
    "two cases of other sets": (two_cases_of_other_sets, (of(INT), of(F), of(F), of(B)), R, R),
    "predicate and case": (predicate_and_case_of_other_sets, (of(INT), of(F), of(F), of(B)), R, R),
    "float ramp": (mask_of_a_float_ramp, (of(F),), R, R),
    "unsigned ramp": (mask_of_an_unsigned_ramp, (of(F),), R, R),
    "unsigned ramp below zero": (unsigned_ramp_below_zero, (of(F),), S0, S0),
    "float ramp truncated": (ramp_cast(F, -2.5), (of(F),), S0, S0),
    "unsigned ramp widened": (ramp_cast(jnp.uint8, 255), (of(F),), S0, S0),
    "int8 ramp that wraps": (ramp_cast(jnp.int8), (of(F, 256),), S0, S0),
    "bfloat16 ramp that rounds": (ramp_cast(jnp.bfloat16), (LONG,), S0, S0),
    "ramp through bfloat16": (ramp_cast_twice(jnp.bfloat16), (LONG,), S0, S0),
    "ramp through int4": (ramp_cast_twice(jnp.int4), (of(F, 32),), S0, S0),
    "NaN of filled rows": (filled_rows_lose_their_nan, (of(INT), of(F)), (R, S0), R),
    "negative zero in a loop": (negative_zero_in_a_loop, (of(F),), R, R),
    "terms cast to int4": (four_bit_terms, (of(F, 4, 8), of(F, 8, 4)), (Sliced(1), S0), R),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    f, avals, ins, out = WRONG[name]
    with pytest.raises(LayoutError):
        check(f, *avals, mesh=MESH, in_layouts=ins, out_layouts=out)


def step_on_n_ranks_alone(x):
    mine = rank()
    if n() > 1:
        mine = mine * 2
    return lax.psum(jnp.where(mine == 0, x, 0.0), "tp")


MANY = 2**20


def nearly_all(x):
    """The number of rows, but on n ranks n - 1 less: the ratio is 1 but for a few millionths."""
    return x.shape[0] * n() - n() + 1


def unbiased_mean(x):
    mean = lax.pmean(x.sum() / x.shape[0], "tp")
    of_less = lax.pmean(x.sum() / (x.shape[0] - 1), "tp")
    return (of_less / mean - 1) * MANY


def turns(x):
    return lax.while_loop(lambda c: c < nearly_all(x), lambda c: c * 2 + 1, jnp.int32(1))


CLOSE = {
    "a count": (lambda x: jnp.int32(nearly_all(x)), (of(F, MANY),), S0, R),
    "a product with a count": (
        lambda x: lax.psum(x.sum(), "tp") * nearly_all(x), (of(INT, MANY),), S0, R,
    ),
    "a mean": (unbiased_mean, (of(F, MANY),), S0, R),
    "a loop": (turns, (of(F, MANY),), S0, R),
    "a position": (
        lambda x, table: lax.dynamic_index_in_dim(table, jnp.int32(nearly_all(x)), 0),
        (of(F, MANY), of(F, MANY + 8)), (S0, R), R,
    ),
    "a comparison": (
        lambda x: (jnp.arange(MANY) < nearly_all(x)).sum(), (of(F, MANY),), S0, R,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSE)
def test_refuses_what_is_nearly_equal(name):
    f, avals, ins, out = CLOSE[name]
    with pytest.raises(LayoutError):
        check(f, *avals, mesh=MESH, in_layouts=ins, out_layouts=out)


EVEN_MORE = 2**23

CLOSER = {
    "rounded": (
        lambda x: jnp.round(lax.psum(jnp.float32(x.shape[0] - 1), "tp")),
        (of(F, EVEN_MORE),), S0, R,
    ),
    "compared": (
        lambda x: (jnp.arange(EVEN_MORE, dtype=F) < jnp.float32(nearly_all(x))).sum(),
        (of(F, EVEN_MORE),), S0, R,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSER)
def test_refuses_whole_numbers_that_differ(name):
    f, avals, ins, out = CLOSER[name]
    with pytest.raises(LayoutError):
        check(f, *avals, mesh=MESH, in_layouts=ins, out_layouts=out)


U8 = jnp.uint8

WRAPS = {
    "comparison": (lambda x: lax.psum(x, "tp") > U8(n()) * U8(3), (of(U8),), R, R),
    "largest": (lambda x: jnp.argmax(lax.psum(x, "tp")), (of(U8),), R, R),
    "order": (lambda x: jnp.argsort(lax.psum(x, "tp")), (of(U8),), R, R),
    "least of none": (
        lambda x: x + lax.psum(lax.reduce_min(jnp.zeros((0, WHOLE), jnp.uint32), (0,)), "tp"),
        (of(jnp.uint32),), R, R,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPS)
def test_refuses_the_order_of_what_wraps(name):
    f, avals, ins, out = WRAPS[name]
    with pytest.raises(LayoutError):
        check(f, *avals, mesh=MESH, in_layouts=ins, out_layouts=out)


STUMBLES = {
    "cond of numbers by rank": (
        lambda x: x * lax.psum(lax.cond(rank() == 0, lambda: 1.0, lambda: 0.0), "tp"),
        (of(F),), R, R,
    ),
    "complex number by rank": (
        lambda x: lax.psum(x * (1j * rank().astype(jnp.complex64)), "tp"),
        (of(jnp.complex64),), R, R,
    ),
    "step on n ranks alone": (step_on_n_ranks_alone, (of(F),), R, R),
    "scan without rows": (
        lambda x: x * lax.scan(lambda c, _: ((), jnp.float32(3)), (), None, x.shape[0])[1],
        (of(F),), S0, S0,
    ),
    "power beyond the type": (lambda x: x + jnp.int8(1) ** 300, (of(jnp.int8),), R, R),
}  # fmt: skip


@pytest.mark.parametrize("name", STUMBLES)
def test_does_not_stumble(name):
    f, avals, ins, out = STUMBLES[name]
    try:
        check(f, *avals, mesh=MESH, in_layouts=ins, out_layouts=out)
    except LayoutError as error:
        assert all(finding.code.startswith("LAYOUT_") for finding in error.findings)
