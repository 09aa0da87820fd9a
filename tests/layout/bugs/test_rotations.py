"""Blocks that ranks pass on to one another: right where nothing asks whose block a rank holds."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from programs import S0, S1, Case, P, Programs, R, f32, i32

import jaxcc
from jaxcc import Local, on
from jaxcc.testing import raises_layout

X, MESH = jax.ShapeDtypeStruct((24, 6), jnp.float32), AbstractMesh((4,), ("tp",))
PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
DEPENDENT = "LAYOUT_RANK_DEPENDENT"


def turned(x, by=1, axis="tp"):
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(rank, (rank + by) % n) for rank in range(n)])


def mirrored(x, axis="tp"):
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(rank, n - 1 - rank) for rank in range(n)])


ROWS = (f32(24, 6),), (S0,)


@right(*ROWS, S0)
def passed_on_and_back(x):
    return turned(jnp.sin(turned(x)), -1)


@right(*ROWS, S0)
def passed_on_all_around(x):
    n = lax.axis_size("tp")
    return turned(turned(x, n - 1))


@right(*ROWS, S0)
def mirrored_twice(x):
    return x + mirrored(jnp.cumsum(mirrored(x), axis=1))


@wrong(*ROWS, S0, DEPENDENT, "lax.ppermute")
def passed_on_and_returned(x):
    return turned(x)


@wrong(*ROWS, S0, DEPENDENT, "lax.ppermute")
def passed_on_twice(x):
    return turned(jnp.sin(turned(x)))


@wrong(*ROWS, R, DEPENDENT, "lax.all_gather")
def passed_on_and_gathered(x):
    return lax.all_gather(turned(x), "tp", axis=0, tiled=True)


@wrong(*ROWS, S0, DEPENDENT, "x + turned(x)")
def added_to_the_neighbours_block(x):
    return x + turned(x)


@wrong(*ROWS, S0, "LAYOUT_RANK_INDEX", "turned(x) * lax.axis_index")
def multiplied_by_the_rank_on_the_way(x):
    return turned(turned(x) * lax.axis_index("tp"), -1)


@wrong(*ROWS, S0, DEPENDENT, "lax.ppermute")
def passed_on_in_a_loop(x):
    return lax.scan(lambda c, _: (turned(c), None), x, None, length=1)[0]


@right(*ROWS, R)
def sum_of_blocks_that_were_passed_on(x):
    return lax.psum(turned(x).sum(0), "tp")


@right((f32(5, 24), f32(24, 6)), (S1, S0), R)
def product_of_what_was_passed_on_alike(x, w):
    return lax.psum(jnp.exp(turned(x)) @ turned(w), "tp")


@wrong((f32(5, 24), f32(24, 6)), (S1, S0), R, DEPENDENT, "turned(x) @ turned(w, 2)")
def product_of_what_was_passed_on_by_one_and_by_two(x, w):
    return lax.psum(turned(x) @ turned(w, 2), "tp")


@right((f32(24, 6), f32(6)), (S0, R), S0)
def weighted_on_the_way(x, w):
    return turned(turned(x) * w, -1)


@right((f32(24, 6), f32(24, 6)), (S0, P), R)
def masked_sum_beside_a_pending_one(x, y):
    top = lax.pmax(turned(x).max(0), "tp")
    return lax.psum(y, "tp") * top


@wrong(*ROWS, S0, DEPENDENT, "lax.map")
def passed_on_into_a_loop(x):
    return lax.map(jnp.sin, turned(x))


IDS = (f32(24, 6), i32(5, below=24)), (S0, R)


@wrong(*IDS, R, "LAYOUT_RANK_INDEX", "table[")
def rows_of_a_table_that_was_passed_on(table, ids):
    rows = table.shape[0]
    own = ids - lax.axis_index("tp") * rows
    mine = (own >= 0) & (own < rows)
    table = turned(table)
    found = table[jnp.where(mine, own, 0)]
    return lax.psum(jnp.where(mine[:, None], found, 0), "tp")


GRID = (("dp", 2), ("tp", 2))


@right((f32(24, 8),), (on(dp=S0, tp=S1),), on(dp=S0), sizes=GRID)
def summed_over_the_axis_of_the_ring(x):
    return lax.psum(turned(x).sum(1, keepdims=True), "tp")


@right((f32(24, 8),), (on(dp=S0, tp=S1),), on(tp=S1), sizes=GRID)
def summed_over_another_axis_on_the_way(x):
    return turned(lax.psum(turned(x).sum(0, keepdims=True), "dp"), -1)


@wrong((f32(24, 8),), (on(dp=S0, tp=S1),), on(dp=S0, tp=S1), DEPENDENT, "lax.ppermute", sizes=GRID)
def passed_on_over_another_axis(x):
    return turned(turned(x), -1, "dp")


@right(*ROWS, Local, truth=None)
def whose_block_nobody_asks(x):
    return jnp.cos(turned(x))


def test_a_claim_is_taken_of_what_was_passed_on() -> None:
    def assumed(x):
        return jnp.sin(jaxcc.unsafe_assume(turned(x), S0, "tp"))

    report = jaxcc.check(assumed, X, mesh=MESH, in_layouts=S0, out_layouts=S0)
    assert report.assumed == 1


def test_a_block_that_was_passed_on_has_no_gradient_on_one_rank() -> None:
    report = jaxcc.check(turned, X, mesh=MESH, in_layouts=S0, out_layouts=Local)
    assert report.out_types == ("f32[6,6]",)
    with raises_layout("LAYOUT_ARGUMENT"):
        jaxcc.check(turned, X, mesh=MESH, in_layouts=S0, out_layouts=Local, grad=0)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
