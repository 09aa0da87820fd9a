"""Predicates and branches around computations of ranks, calls, and transformations of them."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import S0, S1, Case, P, Programs, R, f32, i32

from jaxcc.layout import Sliced

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}
# What ranks do that wait for one another without end cannot be shown by running it.
DEADLOCK = {"truth": None}


def varying(x):
    return lax.pcast(x, "tp", to="varying")


def total(x):
    return lax.psum(x, "tp")


# Predicates: whether a loop goes on must be the same on every rank.
ITERATED = (f32(24, 6), f32(6)), (S0, R), R


@right(*ITERATED)
def power_iteration(a, x):
    def step(held):
        x, _, count = held
        y = total(a.T @ (a @ x))
        y = y / jnp.sqrt(jnp.sum(y * y))
        return y, jnp.max(jnp.abs(y - x)), count + 1

    def unsettled(held):
        return (held[1] > 1e-3) & (held[2] < 5)

    return lax.while_loop(unsettled, step, (x, jnp.float32(1.0), 0))[0]


@wrong(*ITERATED, "LAYOUT_PARTIAL_NONLINEAR", "lax.while_loop", **DEADLOCK)
def iteration_until_this_ranks_rows_settle(a, x):
    def step(held):
        x, _, count = held
        y = a @ x
        z = total(a.T @ y)
        return z / jnp.sqrt(jnp.sum(z * z)), jnp.max(jnp.abs(y)), count + 1

    def unsettled(held):
        return (held[1] > 1e-3) & (held[2] < 5)

    return lax.while_loop(unsettled, step, (x, varying(jnp.float32(1.0)), 0))[0]


@wrong((f32(6, 8),), (R,), R, "LAYOUT_RANK_INDEX", "lax.fori_loop", **DEADLOCK)
def as_many_sums_as_the_ranks_number(x):
    def step(_, x):
        return varying(lax.pmean(x, "tp"))

    return lax.fori_loop(0, lax.axis_index("tp") + 1, step, varying(x))


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_PARTIAL_NONLINEAR", "x.sum() > 0", **DEADLOCK)
def sum_where_the_block_is_positive(x):
    positive = x.sum() > 0
    return lax.cond(positive, lambda x: x - lax.pmean(x.mean(), "tp"), lambda x: x, x)


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_PREDICATE", "lax.cond", **DEADLOCK)
def sum_on_rank_0(x):
    first = lax.axis_index("tp") == 0
    return lax.cond(first, lambda x: x - lax.pmean(x.mean(), "tp"), lambda x: x, x)


@right((f32(24, 6),), (S0,), S0)
def sum_where_the_whole_is_positive(x):
    positive = total(x.sum()) > 0
    return lax.cond(positive, lambda x: x - lax.pmean(x.mean(), "tp"), lambda x: -x, x)


@right((f32(24, 6), f32()), (S0, R), S0)
def branch_on_a_replicated_argument(x, flag):
    return lax.cond(flag > 0, lambda: x - lax.pmean(x.mean(), "tp"), lambda: jnp.tanh(x))


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_PARTIAL_NONLINEAR", "x.sum() > 0")
def branch_on_this_ranks_sum(x):
    return lax.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: -x, x)


@wrong((f32(24, 6), f32()), (S0, R), S0, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sqrt")
def branch_with_a_local_norm(x, flag):
    def normed(x):
        return x / jnp.sqrt(jnp.sum(x * x))

    return lax.cond(flag < 9, normed, jnp.tanh, x)


@right((f32(6, 24), f32(24, 12), f32(12)), (S1, S0, R), R)
def branch_that_gives_rank_0_the_bias(x, w, b):
    first = lax.axis_index("tp") == 0
    return total(x @ w + lax.cond(first, lambda: b, lambda: jnp.zeros_like(b)))


@right((f32(24, 6), i32(below=3)), (S0, R), S0)
def switch_on_a_replicated_argument(x, which):
    branches = [jnp.tanh, lambda x: x - lax.pmean(x.mean(0), "tp"), lambda x: x * 2.0]
    return lax.switch(which, branches, x)


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_RANK_INDEX", "")
def switch_on_the_rank(x):
    branches = [jnp.tanh, lambda x: x * 2.0]
    return lax.switch(lax.axis_index("tp") % 2, branches, x)


# Rows of a slice, one by one.
ROWS = (f32(24, 6), f32(6, 5)), (S0, R), S0


def row(x, w):
    return jax.nn.softmax(x) @ w


@right(*ROWS)
def map_over_sliced_rows(x, w):
    return lax.map(lambda x: row(x, w), x)


@right(*ROWS)
def vmap_over_sliced_rows(x, w):
    return jax.vmap(row, (0, None))(x, w)


@right((f32(24, 6), f32(6, 24), f32(24, 5)), (R, S1, S0), R)
def vmap_over_rows_with_a_sum(x, a, b):
    return jax.vmap(lambda x: total(jnp.tanh(x @ a) @ b))(x)


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_LOOP", "lax.scan")
def running_mean_over_sliced_rows(x):
    held = varying(jnp.zeros(x.shape[1]))
    return lax.scan(lambda held, x: (0.9 * held + x, 0.9 * held + x), held, x)[1]


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_STRUCTURE", "lax.associative_scan", modes=(True,))
def prefix_products_of_a_block(x):
    return lax.associative_scan(jnp.multiply, x, axis=0)


@right((f32(6, 24),), (S1,), S1)
def prefix_sums_along_a_whole_dim(x):
    return lax.scan(lambda held, x: (held + x, held), varying(jnp.zeros(x.shape[1])), x)[1]


# Calls.
CALLED = (f32(6, 8), f32(8, 24), f32(24, 8)), (R, S1, S0), R


@right(*CALLED)
def nested_jit(x, a, b):
    @jax.jit
    def layer(x, a, b):
        return total(jax.jit(jnp.tanh)(x @ a) @ b)

    return layer(layer(x, a, b), a, b)


@wrong(*CALLED, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.relu(x @ a @ b)")
def mistake_in_a_nested_jit(x, a, b):
    @jax.jit
    def layer(x, a, b):
        return total(jax.nn.relu(x @ a @ b))

    return layer(layer(x, a, b), a, b)


@right(*CALLED)
def one_jit_for_whole_and_sliced(x, a, b):
    square = jax.jit(lambda x: x * x)
    return total(square(x @ a) @ b) + square(x)


@right(*CALLED)
def function_with_a_custom_derivative(x, a, b):
    @jax.custom_jvp
    def softplus(x):
        return jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0)

    softplus.defjvp(
        lambda primal, tangent: (softplus(*primal), jax.nn.sigmoid(*primal) * tangent[0])
    )
    return total(softplus(x @ a) @ b)


@right(*CALLED)
def forward_derivative(x, a, b):
    return jax.jvp(lambda x: total(jnp.tanh(x @ a) @ b), (x,), (jnp.cos(x),))[1]


@right(*CALLED[:2], (S1, S0), **TRACKED)
def gradient_of_a_remat_layer(x, a, b):
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(a, b):
        return total(jnp.tanh(x @ a) @ b)

    return jax.grad(lambda a, b: jnp.sum(layer(a, b) ** 2), (0, 1))(a, b)


@right((f32(24, 6), f32(6, 5)), (S0, R), P, **UNTRACKED)
def gradients_of_each_row(x, w):
    return jax.vmap(lambda x: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w))(x).sum(0)


@right((f32(8, 24),), (S1,), R)
def sum_if_there_is_more_than_one_rank(x):
    y = x.sum(1)
    return total(y) if lax.axis_size("tp") > 1 else y


@wrong((f32(8, 24),), (S1,), R, "LAYOUT_RESULT_PARTIAL", "")
def sum_if_there_are_more_than_two_ranks(x):
    y = x.sum(1)
    return total(y) if lax.axis_size("tp") > 2 else y


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_STRUCTURE", "jnp.sin", truth=False)
def other_function_on_many_ranks(x):
    return jnp.sin(x) if lax.axis_size("tp") > 1 else x


@right((f32(12, 24, 6),), (Sliced(1),), Sliced(1))
def python_loop_over_a_whole_dim(x):
    held = jnp.zeros_like(x[0])
    for one in x[:4]:
        held = jnp.tanh(held + one)
    return x + held


# Factors that a group of one does not have.
ROWS = (f32(24, 6),), (S0,)


@right(*ROWS, R)
def mean_times_the_ranks_where_there_are_several(x):
    total, n = lax.psum(x.sum(0), "tp"), lax.axis_size("tp")
    return total if n == 1 else total / n * n


@wrong(*ROWS, R, "LAYOUT_SCALE", "total / n")
def mean_where_there_are_several_ranks(x):
    total, n = lax.psum(x.sum(0), "tp"), lax.axis_size("tp")
    return total if n == 1 else total / n


@right(*ROWS, R)
def shares_where_there_are_several_ranks(x):
    x = x if lax.axis_size("tp") == 1 else x / lax.axis_size("tp")
    return lax.psum(x.sum(0), "tp") * lax.axis_size("tp")


@wrong(*ROWS, R, "LAYOUT_STRUCTURE", "-2.0 * x")
def negated_where_there_are_several_ranks(x):
    x = x if lax.axis_size("tp") == 1 else -2.0 * x
    return lax.pmax(x.max(0), "tp")


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
