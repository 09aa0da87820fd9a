"""Loops over layers, steps and small batches, with sums over the ranks inside or behind them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import copy_to, reduce_from
from programs import S0, S1, S2, Case, Programs, R, f32

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}


def varying(x):
    return lax.pcast(x, "tp", to="varying")


def total(x):
    return lax.psum(x, "tp")


# Layers of column- and row-parallel products, stacked along dimension 0.
LAYERS = (f32(6, 8), f32(3, 8, 24), f32(3, 24, 8)), (R, S2, S1), R


@right(*LAYERS)
def scan_over_layers(x, a, b):
    def layer(x, weights):
        a, b = weights
        return x + total(jnp.tanh(x @ a) @ b), jnp.sum(x)

    y, sums = lax.scan(layer, x, (a, b))
    return y + sums[-1]


@right(*LAYERS)
def loop_over_layers_by_index(x, a, b):
    def layer(i, x):
        return x + total(jnp.tanh(x @ a[i]) @ b[i])

    return lax.fori_loop(0, a.shape[0], layer, x)


@right(*LAYERS)
def scan_over_remat_layers_in_reverse(x, a, b):
    @jax.checkpoint
    def layer(x, weights):
        return x + total(jax.nn.gelu(x @ weights[0]) @ weights[1]), None

    return lax.scan(layer, x, (a, b), reverse=True, unroll=1)[0]


@wrong(*LAYERS, "LAYOUT_PARTIAL_NONLINEAR", "jnp.tanh(jnp.tanh(x @ a) @ b)")
def scan_with_tanh_before_the_sum(x, a, b):
    def layer(x, weights):
        a, b = weights
        return x + total(jnp.tanh(jnp.tanh(x @ a) @ b)), None

    return lax.scan(layer, x, (a, b))[0]


@wrong(*LAYERS, "LAYOUT_COUNTED", "total(x + jnp.tanh(x @ a) @ b)")
def scan_that_sums_its_carry(x, a, b):
    def layer(x, weights):
        a, b = weights
        return total(x + jnp.tanh(x @ a) @ b), None

    return lax.scan(layer, x, (a, b))[0]


@wrong((f32(6, 8),), (R,), R, "LAYOUT_LOOP", "lax.fori_loop")
def loop_that_sums_its_carry(x):
    return lax.fori_loop(0, 3, lambda _, x: total(x) * 0.5, x)


@right((f32(6, 8),), (R,), R)
def loop_that_averages_its_carry(x):
    return lax.fori_loop(0, 3, lambda _, x: jnp.sin(lax.pmean(x, "tp")), x)


# Sums over steps, reduced once after the loop or in every step.
STEPS = (f32(3, 6, 24), f32(24, 8)), (S2, S0), R


@right(*STEPS)
def scan_that_sums_pending_products(xs, w):
    zeros = varying(jnp.zeros((xs.shape[1], w.shape[1])))
    return total(lax.scan(lambda held, x: (held + x @ w, None), zeros, xs)[0])


@right(*STEPS)
def scan_that_sums_reduced_products(xs, w):
    zeros = jnp.zeros((xs.shape[1], w.shape[1]))
    return lax.scan(lambda held, x: (held + total(x @ w), None), zeros, xs)[0]


@wrong(*STEPS, "LAYOUT_RESULT_PARTIAL", "")
def scan_of_pending_products_returned(xs, w):
    zeros = varying(jnp.zeros((xs.shape[1], w.shape[1])))
    return lax.scan(lambda held, x: (held + x @ w, None), zeros, xs)[0]


@wrong(*STEPS, "LAYOUT_COUNTED", "")
def scan_that_starts_at_one(xs, w):
    ones = varying(jnp.ones((xs.shape[1], w.shape[1])))
    return total(lax.scan(lambda held, x: (held + x @ w, None), ones, xs)[0])


@wrong(*STEPS, "LAYOUT_COUNTED", "total(held + x @ w)")
def scan_that_sums_what_it_holds_in_every_step(xs, w):
    zeros = jnp.zeros((xs.shape[1], w.shape[1]))
    return lax.scan(lambda held, x: (total(held + x @ w), None), zeros, xs)[0]


@right(*STEPS[:2], R)
def scan_that_stacks_its_sums(xs, w):
    return lax.scan(lambda count, x: (count + 1, total(x @ w) * count), 0, xs)[1]


# Gradients of several small batches, summed over the ranks once.
BATCHES = (f32(3, 24, 6), f32(6, 4)), (S1, R), R


@right(*BATCHES, **UNTRACKED)
@wrong(*BATCHES, "LAYOUT_SCALE", "lax.psum", **TRACKED)
def gradient_of_small_batches(xs, w):
    def step(held, x):
        return held + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), None

    held, _ = lax.scan(step, jnp.zeros_like(w), xs)
    return total(held)


@wrong(*BATCHES, "LAYOUT_COUNTED", "total(held + jax.grad", **UNTRACKED)
def gradient_summed_again_for_every_batch(xs, w):
    def step(held, x):
        return total(held + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)), None

    return lax.scan(step, jnp.zeros_like(w), xs)[0]


@right(*LAYERS[:2], (R, S2, S1), **TRACKED)
@wrong(*LAYERS[:2], (R, S2, S1), "LAYOUT_SCALE", "", **UNTRACKED)
def gradient_of_a_scan_over_layers(x, a, b):
    def loss(x, a, b):
        @jax.checkpoint
        def layer(x, weights):
            return x + total(jnp.tanh(x @ weights[0]) @ weights[1]), None

        return jnp.sum(lax.scan(layer, x, (a, b))[0] ** 2)

    return jax.grad(loss, (0, 1, 2))(x, a, b)


@right(*LAYERS[:2], (R, S2, S1), **UNTRACKED)
def gradient_of_a_scan_over_conjugate_pairs(x, a, b):
    def loss(x, a, b):
        def layer(x, weights):
            return x + reduce_from(jnp.tanh(copy_to(x) @ weights[0]) @ weights[1]), None

        return jnp.sum(lax.scan(layer, x, (a, b))[0] ** 2)

    return jax.grad(loss, (0, 1, 2))(x, a, b)


@wrong(*LAYERS[:2], (R, S2, S1), "LAYOUT_COUNTED", "jnp.tanh(x @ weights[0])", **UNTRACKED)
def gradient_of_a_scan_without_copy_to(x, a, b):
    def loss(x, a, b):
        def layer(x, weights):
            return x + reduce_from(jnp.tanh(x @ weights[0]) @ weights[1]), None

        return jnp.sum(lax.scan(layer, x, (a, b))[0] ** 2)

    return jax.grad(loss, (0, 1, 2))(x, a, b)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
