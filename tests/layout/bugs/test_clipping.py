"""Norms of gradients, clipping and optimizer steps where some parameters are sliced and others are
held by every rank."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from programs import S0, Case, P, Programs, R, f32, mask

from jaxcc.layout import on

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}

# A sliced gradient and one that every rank holds.
GRADIENTS = (f32(24, 8), f32(8)), (S0, R), R


def square(g):
    return jnp.sum(g * g)


def first_rank():
    return lax.axis_index("tp") == 0


@right(*GRADIENTS)
def norm_with_the_replicated_outside(sliced, held):
    return jnp.sqrt(lax.psum(square(sliced), "tp") + square(held))


@right(*GRADIENTS)
def norm_with_the_replicated_divided(sliced, held):
    return jnp.sqrt(lax.psum(square(sliced) + square(held) / lax.axis_size("tp"), "tp"))


@right(*GRADIENTS)
def norm_with_the_replicated_from_rank_0(sliced, held):
    return jnp.sqrt(lax.psum(square(sliced) + jnp.where(first_rank(), square(held), 0.0), "tp"))


@wrong(*GRADIENTS, "LAYOUT_COUNTED", "square(sliced) + square(held)")
def norm_with_the_replicated_from_every_rank(sliced, held):
    return jnp.sqrt(lax.psum(square(sliced) + square(held), "tp"))


@wrong(*GRADIENTS, "LAYOUT_COUNTED", "")
def norm_by_optax_of_local_parts(sliced, held):
    return jnp.sqrt(lax.psum(optax.tree.norm([sliced, held]) ** 2, "tp"))


@wrong(*GRADIENTS, "LAYOUT_COUNTED", "square(sliced) + square(held)")
def norm_of_local_parts(sliced, held):
    return jnp.sqrt(square(sliced) + square(held))


# The head-sliced attention sink (Megatron-LM 7452, 5916, 6099), taken for a replicated parameter.
@wrong(*GRADIENTS, "LAYOUT_PARTIAL_NONLINEAR", "square(sink)")
def norm_with_everything_from_rank_0(sink, held):
    own = jnp.where(first_rank(), square(sink), 0.0) + jnp.where(first_rank(), square(held), 0.0)
    return jnp.sqrt(lax.psum(own, "tp"))


@wrong(*GRADIENTS, "LAYOUT_SUM_OF_SLICES", "", truth=None)
def sliced_gradient_summed_as_if_replicated(sink, held):
    return jnp.sqrt(square(lax.psum(sink, "tp")) + square(held))


@right(*GRADIENTS)
def largest_gradient(sliced, held):
    return jnp.maximum(lax.pmax(jnp.max(jnp.abs(sliced)), "tp"), jnp.max(jnp.abs(held)))


@wrong(*GRADIENTS, "LAYOUT_RESULT_PARTIAL", "")
def largest_gradient_of_a_rank(sliced, held):
    return jnp.maximum(jnp.max(jnp.abs(sliced)), jnp.max(jnp.abs(held)))


# A matrix that is sliced over tp and kept by dp; a gradient that is pending over dp.
TWO_AXES = {"sizes": (("dp", 2), ("tp", 2))}
PENDING = (f32(24, 8), f32(8)), (on(dp=P, tp=S0), on(dp=P)), R


@right(*PENDING, **TWO_AXES)
def norm_on_two_axes(sliced, held):
    sliced, held = lax.psum((sliced, held), "dp")
    return jnp.sqrt(lax.psum(square(sliced), "tp") + square(held))


@wrong(*PENDING, "LAYOUT_PARTIAL_NONLINEAR", "g * g", **TWO_AXES)
def norm_before_the_sum_over_the_batch(sliced, held):
    return jnp.sqrt(lax.psum(square(sliced), ("dp", "tp")) + lax.psum(square(held), "dp"))


@wrong(*PENDING, "LAYOUT_SCALE", "", **TWO_AXES, **UNTRACKED)
def norm_summed_over_both_axes(sliced, held):
    sliced, held = lax.psum((sliced, held), "dp")
    return jnp.sqrt(lax.psum(square(sliced), ("dp", "tp")) + square(held))


# optax on a rank's parts.
STEP = (f32(24, 8), f32(8), f32(24, 8), f32(8)), (S0, R, S0, R), (S0, R)


def as_tuple(updated: Any) -> Any:
    return tuple(updated)


def stepped(transform, parameters, gradients):
    updates, _ = transform.update(gradients, transform.init(parameters), parameters)
    return optax.apply_updates(parameters, updates)


@right(*STEP)
def adam(a, b, ga, gb):
    return as_tuple(stepped(optax.adam(0.1), [a, b], [ga, gb]))


@right(*STEP)
def adamw_with_momentum_of_its_own(a, b, ga, gb):
    return as_tuple(stepped(optax.adamw(0.1, b1=0.8, weight_decay=0.1), [a, b], [ga, gb]))


@wrong(*STEP, "LAYOUT_COUNTED", "")
def adam_behind_optax_clipping(a, b, ga, gb):
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(5.0, eps=1.0))
    return as_tuple(stepped(transform, [a, b], [ga, gb]))


@wrong(*STEP, "LAYOUT_COUNTED", "")
def sgd_behind_optax_clipping(a, b, ga, gb):
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    return as_tuple(stepped(transform, [a, b], [ga, gb]))


@right(*STEP)
def sgd_behind_clipping_by_the_whole_norm(a, b, ga, gb):
    norm = jnp.sqrt(lax.psum(square(ga), "tp") + square(gb))
    factor = 1.0 / jnp.maximum(norm, 1.0)
    return as_tuple(stepped(optax.sgd(1.0), [a, b], [ga * factor, gb * factor]))


@right(*STEP)
def sgd_behind_elementwise_clipping(a, b, ga, gb):
    transform = optax.chain(optax.clip(0.5), optax.sgd(1.0))
    return as_tuple(stepped(transform, [a, b], [ga, gb]))


@wrong(*STEP, "LAYOUT_PARTIAL_NONLINEAR", "")
def lamb_by_the_norms_of_slices(a, b, ga, gb):
    return as_tuple(stepped(optax.lamb(5.0), [a, b], [ga, gb]))


# A pending gradient has to be summed before Adam, and by sums, not by sums of means.
REDUCED = (f32(24, 8), f32(24, 8)), (R, P), R


@right(*REDUCED)
def adam_on_a_summed_gradient(w, g):
    return stepped(optax.adam(0.1), w, lax.psum(g, "tp"))


@right((f32(24, 8), f32(24, 8)), (S0, P), S0)
def adam_on_a_scattered_gradient(w, g):
    return stepped(optax.adam(0.1), w, lax.psum_scatter(g, "tp", tiled=True))


@wrong(*REDUCED, "LAYOUT_PARTIAL_NONLINEAR", "")
def adam_on_a_pending_gradient(w, g):
    return lax.pmean(stepped(optax.adam(5.0, eps=1.0), w, g), "tp")


@wrong(*REDUCED, "LAYOUT_SCALE", "")
def sgd_on_an_averaged_sum(w, g):
    return stepped(optax.sgd(1.0), w, lax.pmean(g, "tp"))


# A step of training: the loss over unevenly many tokens, its gradient, its norm, the update.
TRAINED = (f32(24, 6), mask(24, 5), f32(6, 5)), (S0, S0, R), (R, R)


def token_losses(x, valid, w):
    return jnp.where(valid, jnp.square(x @ w - 1.0), 0.0)


def clipped_step(w, g):
    return w - 5.0 * g / (1.0 + jnp.sqrt(square(g)))


@right(*TRAINED, **UNTRACKED)
@wrong(*TRAINED, "LAYOUT_SCALE", "", **TRACKED)
def training_by_sums_and_counts(x, valid, w):
    count = lax.psum(jnp.sum(valid), "tp")
    loss, g = jax.value_and_grad(lambda w: jnp.sum(token_losses(x, valid, w)) / count)(w)
    return lax.psum(loss, "tp"), clipped_step(w, lax.psum(g, "tp"))


@right(*TRAINED, **TRACKED)
@wrong(*TRAINED, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sum(g * g)", **UNTRACKED)
def training_by_a_summed_loss(x, valid, w):
    def loss(w):
        return lax.psum(jnp.sum(token_losses(x, valid, w)), "tp") / lax.psum(jnp.sum(valid), "tp")

    value, g = jax.value_and_grad(loss)(w)
    return value, clipped_step(w, g)


@wrong(*TRAINED, "LAYOUT_PARTIAL_NONLINEAR", "/ jnp.sum(valid)")
def training_by_local_counts(x, valid, w):
    def loss(w):
        return jnp.sum(token_losses(x, valid, w)) / jnp.sum(valid)

    value, g = jax.value_and_grad(loss)(w)
    return lax.pmean(value, "tp"), clipped_step(w, lax.pmean(g, "tp"))


@wrong(*TRAINED, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sum(g * g)", **UNTRACKED)
def training_clipped_before_the_sum(x, valid, w):
    count = lax.psum(jnp.sum(valid), "tp")
    loss, g = jax.value_and_grad(lambda w: jnp.sum(token_losses(x, valid, w)) / count)(w)
    g = g / (1.0 + jnp.sqrt(square(g)))
    return lax.psum(loss, "tp"), w - 5.0 * lax.psum(g, "tp")


# An auxiliary loss beside the main one.
ROUTED = (f32(24, 6), f32(6, 4)), (S0, R), R


def main_loss(x, w):
    return jnp.mean(jnp.square(x @ w))


def balance(x, w):
    share = lax.pmean(jax.nn.softmax(4.0 * x @ w).mean(0), "tp")
    return jnp.sum(share * share)


@right(*ROUTED, **TRACKED)
def gradient_with_an_auxiliary_loss(x, w):
    return jax.grad(lambda w: lax.pmean(main_loss(x, w), "tp") + 0.1 * balance(x, w))(w)


@wrong(*ROUTED, "LAYOUT_COUNTED", "balance(x, w)")
def auxiliary_loss_averaged_with_local_sums(x, w):
    return lax.psum(main_loss(x, w) / lax.axis_size("tp") + balance(x, w), "tp")


@right(*ROUTED)
def auxiliary_loss_beside_local_means(x, w):
    return lax.pmean(main_loss(x, w) + balance(x, w), "tp")


@wrong(*ROUTED, "LAYOUT_PARTIAL_NONLINEAR", "share * share")
def auxiliary_loss_of_local_shares(x, w):
    share = jax.nn.softmax(4.0 * x @ w).mean(0)
    return lax.pmean(main_loss(x, w) + jnp.sum(share * share), "tp")


# Sliced over both axes, a second moment by rows and columns (Adafactor).
FACTORED = (f32(24, 8),), (S0,), S0


@right(*FACTORED)
def factored_second_moment(g):
    rows = jnp.mean(g * g, axis=1)
    columns = lax.pmean(jnp.mean(g * g, axis=0), "tp")
    mean = lax.pmean(jnp.mean(rows), "tp")
    return g * lax.rsqrt(rows[:, None] * columns[None, :] / mean + 1e-8)


@wrong(*FACTORED, "LAYOUT_PARTIAL_NONLINEAR", "")
def factored_second_moment_of_a_slice(g):
    rows = jnp.mean(g * g, axis=1)
    columns = jnp.mean(g * g, axis=0)
    return g * lax.rsqrt(rows[:, None] * columns[None, :] / jnp.mean(rows) + 1e-8)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
