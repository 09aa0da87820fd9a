"""Gradients that are summed once, twice, or not at all.

The same source means two things. With check_vma=True JAX sums the gradient of a Replicated input
itself, and psum of a pending loss passes its gradient on; with check_vma=False nothing is summed,
and the transpose of psum is psum. So most programs here are right in one mode and wrong in the
other.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import copy_to, reduce_from
from programs import S0, S1, Case, P, Programs, R, f32

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}

# A column-parallel product, then a row-parallel one.
MLP = (f32(6, 8), f32(8, 24), f32(24, 8)), (R, S1, S0)
MLP_GRADIENTS = (R, (R, S1, S0))


def square_error(y):
    return jnp.mean((y - 1.0) ** 2)


def mlp_loss(x, w1, w2):
    return square_error(lax.psum(jnp.tanh(x @ w1) @ w2, "tp"))


def megatron_mlp_loss(x, w1, w2):
    return square_error(reduce_from(jnp.tanh(copy_to(x) @ w1) @ w2))


@right(*MLP, MLP_GRADIENTS, **TRACKED)
@wrong(*MLP, MLP_GRADIENTS, "LAYOUT_SCALE", 'lax.psum(jnp.tanh(x @ w1) @ w2, "tp")', **UNTRACKED)
def mlp_by_psum(x, w1, w2):
    return jax.value_and_grad(mlp_loss, (0, 1, 2))(x, w1, w2)


@right(*MLP, MLP_GRADIENTS, **UNTRACKED)
@wrong(*MLP, MLP_GRADIENTS, "LAYOUT_TRACE", "", truth=None, **TRACKED)
def mlp_by_conjugate_pair(x, w1, w2):
    return jax.value_and_grad(megatron_mlp_loss, (0, 1, 2))(x, w1, w2)


@wrong(*MLP, MLP_GRADIENTS, "LAYOUT_RESULT_PARTIAL", "x @ w1", **UNTRACKED)
def mlp_without_copy_to(x, w1, w2):
    def loss(x, w1, w2):
        return square_error(reduce_from(jnp.tanh(x @ w1) @ w2))

    return jax.value_and_grad(loss, (0, 1, 2))(x, w1, w2)


@wrong(*MLP, MLP_GRADIENTS, "LAYOUT_SCALE", "", **UNTRACKED)
def mlp_with_copy_to_twice(x, w1, w2):
    def loss(x, w1, w2):
        return megatron_mlp_loss(copy_to(x), w1, w2)

    return jax.value_and_grad(loss, (0, 1, 2))(x, w1, w2)


@wrong(*MLP, MLP_GRADIENTS, "LAYOUT_SCALE", 'lax.psum(jnp.tanh(copy_to(x) @ w1) @ w2, "tp")',
       **UNTRACKED)  # fmt: skip
def mlp_with_psum_for_reduce_from(x, w1, w2):
    def loss(x, w1, w2):
        return square_error(lax.psum(jnp.tanh(copy_to(x) @ w1) @ w2, "tp"))

    return jax.value_and_grad(loss, (0, 1, 2))(x, w1, w2)


# Data parallelism (Megatron-LM 673): a rank has rows of the batch, every rank the weights.
DATA = (f32(24, 8), f32(8, 5)), (S0, R), R


def local_mean(x, w):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def local_sum(x, w):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


@right(*DATA, **UNTRACKED)
@wrong(*DATA, "LAYOUT_SCALE", "", **TRACKED)
def local_mean_then_pmean(x, w):
    return lax.pmean(jax.grad(local_mean, 1)(x, w), "tp")


@wrong(*DATA, "LAYOUT_SCALE", "")
def local_mean_then_psum(x, w):
    return lax.psum(jax.grad(local_mean, 1)(x, w), "tp")


@right(*DATA, **TRACKED)
@wrong(*DATA, "LAYOUT_SCALE", 'lax.pmean(jax.grad(local_sum, 1)(x, w), "tp")', **UNTRACKED)
def local_sum_then_pmean(x, w):
    return lax.pmean(jax.grad(local_sum, 1)(x, w), "tp")


@right(*DATA, **UNTRACKED)
@wrong(*DATA, "LAYOUT_SCALE", 'lax.psum(jax.grad(local_sum, 1)(x, w), "tp")', **TRACKED)
def local_sum_then_psum(x, w):
    return lax.psum(jax.grad(local_sum, 1)(x, w), "tp")


@right(*DATA, **TRACKED)
@wrong(*DATA, "LAYOUT_RESULT_PARTIAL", "x @ w", **UNTRACKED)
def local_sum_alone(x, w):
    return jax.grad(local_sum, 1)(x, w)


@right(*DATA, **TRACKED)
@wrong(*DATA, "LAYOUT_RESULT_PARTIAL", "", **UNTRACKED)
def share_of_a_local_mean(x, w):
    return jax.grad(local_mean, 1)(x, w) / lax.axis_size("tp")


@right(*DATA, **TRACKED)
@wrong(*DATA, "LAYOUT_RESULT_PARTIAL", "", **UNTRACKED)
def mean_over_all_ranks(x, w):
    return jax.grad(lambda w: lax.pmean(local_mean(x, w), "tp"))(w)


@right(*DATA)
def summed_loss_then_pmean(x, w):
    return lax.pmean(jax.grad(lambda w: lax.psum(local_sum(x, w), "tp"))(w), "tp")


@wrong(*DATA, "LAYOUT_SCALE", "")
def summed_loss_then_psum(x, w):
    return lax.psum(jax.grad(lambda w: lax.psum(local_sum(x, w), "tp"))(w), "tp")


@right(*DATA[:2], P, **UNTRACKED)
@wrong(*DATA[:2], P, "LAYOUT_SCALE", "", **TRACKED)
def gradient_left_to_a_wrapper(x, w):
    return jax.grad(local_sum, 1)(x, w)


@right(*DATA, **UNTRACKED)
@wrong(*DATA, "LAYOUT_SCALE", "", **TRACKED)
def step_on_the_summed_gradient(x, w):
    g = lax.pmean(jax.grad(local_mean, 1)(x, w), "tp")
    return w - 5.0 * g


@wrong(*DATA, "LAYOUT_SCALE", "w - 5.0 * g")
def step_on_a_gradient_summed_over_means(x, w):
    g = lax.psum(jax.grad(local_mean, 1)(x, w), "tp")
    return w - 5.0 * g


# Of a loss that `check` differentiates itself: f and its gradients as one unit.
right(*MLP, R, grad=(0, 1, 2), **TRACKED)(mlp_loss)
wrong(*MLP, R, "LAYOUT_SCALE", "", grad=(0, 1, 2), **UNTRACKED)(mlp_loss)
right(*MLP, R, grad=(0, 1, 2), **UNTRACKED)(megatron_mlp_loss)


@right(*MLP, R, grad=(0, 1, 2), grads="pending", **UNTRACKED)
@wrong(*MLP, R, "LAYOUT_RESULT_PARTIAL", "", grad=(0, 1, 2), **UNTRACKED)
def loss_without_copy_to(x, w1, w2):
    return square_error(reduce_from(jnp.tanh(x @ w1) @ w2))


@right(*DATA[:2], P, grad=(1,), **TRACKED)
@right(*DATA[:2], P, grad=(1,), grads="pending", **UNTRACKED)
@wrong(*DATA[:2], P, "LAYOUT_RESULT_PARTIAL", "", grad=(1,), **UNTRACKED)
@wrong(*DATA[:2], P, "LAYOUT_SCALE", "", grad=(1,), grads="pending", **TRACKED)
def pending_loss(x, w):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


@right(*DATA, grad=(0, 1), **TRACKED)
@wrong(*DATA, "LAYOUT_SCALE", "", grad=(0, 1), **UNTRACKED)
def summed_loss(x, w):
    return lax.psum(jnp.sum(jnp.tanh(x @ w) ** 2), "tp")


@right(*DATA, grad=(0, 1), **TRACKED)
@wrong(*DATA, "LAYOUT_SCALE", "", grad=(0, 1), grads="pending", **UNTRACKED)
@wrong(*DATA, "LAYOUT_RESULT_PARTIAL", "", grad=(0, 1), **UNTRACKED)
def averaged_loss(x, w):
    return lax.pmean(local_mean(x, w), "tp")


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
