"""Gradients of weights that meet slices: which operation has to sum, gather or slice them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import (
    copy_to,
    gather_from,
    gather_from_sequence,
    own_block,
    reduce_from,
    reduce_scatter_to,
    scatter_to,
)
from programs import S0, S1, Case, Programs, R, f32

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}


def square_error(y):
    return jnp.mean((y - 1.0) ** 2)


# LayerNorm's weights under sequence parallelism (Megatron-LM 1446, NeMo-RL 3716, TE 435): each rank
# normalizes its own tokens, so each has a term of their gradient.
NORMED = (f32(24, 8), f32(8), f32(8, 12), f32(12, 8)), (S0, R, S1, S0)
NORMED_GRADIENTS = (R, S1, S0)


def normed(x, gamma):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * gamma


def sequence_parallel_loss(x, gamma, w1, w2):
    h = gather_from_sequence(normed(x, gamma), 0)
    y = reduce_scatter_to(jnp.tanh(h @ w1) @ w2, 0)
    return jnp.sum((x + y) ** 2)


def native_sequence_parallel_loss(x, gamma, w1, w2):
    h = lax.all_gather(normed(x, gamma), "tp", tiled=True)
    y = lax.psum_scatter(jnp.tanh(h @ w1) @ w2, "tp", tiled=True)
    return jnp.sum((x + y) ** 2)


@right(*NORMED, NORMED_GRADIENTS, **UNTRACKED)
def norm_weight_summed(x, gamma, w1, w2):
    g = jax.grad(sequence_parallel_loss, (1, 2, 3))(x, gamma, w1, w2)
    return lax.psum(g[0], "tp"), g[1], g[2]


@wrong(*NORMED, NORMED_GRADIENTS, "LAYOUT_RESULT_PARTIAL", "gamma", **UNTRACKED)
def norm_weight_not_summed(x, gamma, w1, w2):
    return jax.grad(sequence_parallel_loss, (1, 2, 3))(x, gamma, w1, w2)


@right(*NORMED, NORMED_GRADIENTS, **TRACKED)
@wrong(*NORMED, NORMED_GRADIENTS, "LAYOUT_RESULT_PARTIAL", "gamma", **UNTRACKED)
def norm_weight_left_to_jax(x, gamma, w1, w2):
    return jax.grad(native_sequence_parallel_loss, (1, 2, 3))(x, gamma, w1, w2)


@right(*NORMED, NORMED_GRADIENTS, **UNTRACKED)
@wrong(*NORMED, NORMED_GRADIENTS, "LAYOUT_SCALE", 'lax.psum(g[0], "tp")', **TRACKED)
def norm_weight_summed_by_hand(x, gamma, w1, w2):
    g = jax.grad(native_sequence_parallel_loss, (1, 2, 3))(x, gamma, w1, w2)
    return lax.psum(g[0], "tp"), g[1], g[2]


# A Replicated LoRA factor behind a reduce-scatter sees a part of the sequence (mcore-bridge 173).
LORA = (f32(24, 12), f32(12, 8), f32(8, 2), f32(2, 8)), (S1, S0, R, R), (R, R)


def lora_loss(x, w, a, b):
    y = reduce_scatter_to(x @ w, 0)
    return jnp.sum((y + y @ a @ b) ** 2)


@right(*LORA, **UNTRACKED)
def lora_factors_summed(x, w, a, b):
    return lax.psum(jax.grad(lora_loss, (2, 3))(x, w, a, b), "tp")


@wrong(*LORA, "LAYOUT_RESULT_PARTIAL", "y @ a @ b", **UNTRACKED)
def lora_factors_not_summed(x, w, a, b):
    return jax.grad(lora_loss, (2, 3))(x, w, a, b)


@wrong(*LORA, "LAYOUT_RESULT_PARTIAL", "y @ a @ b", **UNTRACKED)
def one_lora_factor_not_summed(x, w, a, b):
    g = jax.grad(lora_loss, (2, 3))(x, w, a, b)
    return g[0], lax.psum(g[1], "tp")


# A weight on two paths (AReno 496, mcore-bridge 101, slime 1748): on one every rank has a term of
# its gradient because it has a part of the columns, on the other because it has a part of the rows.
TWO_PATHS = (f32(6, 8), f32(24, 8), f32(8), f32(8, 12)), (R, S0, R, S1), R


def two_paths(columns, rows, x, tokens, gamma, w):
    """The loss where `columns` and `rows` are what each path makes of gamma first."""
    by_columns = reduce_from(jnp.sum(jnp.tanh((x * columns(gamma)) @ w)))
    by_rows = reduce_from(jnp.sum(jnp.tanh(tokens * rows(gamma))))
    return by_columns + by_rows


def as_it_is(gamma):
    return gamma


@right(*TWO_PATHS, **UNTRACKED)
def both_paths_by_copy_to(x, tokens, gamma, w):
    return jax.grad(lambda gamma: two_paths(copy_to, copy_to, x, tokens, gamma, w))(gamma)


@right(*TWO_PATHS, **UNTRACKED)
def both_paths_by_the_finalizer(x, tokens, gamma, w):
    g = jax.grad(lambda gamma: two_paths(as_it_is, as_it_is, x, tokens, gamma, w))(gamma)
    return lax.psum(g, "tp")


@wrong(*TWO_PATHS, "LAYOUT_COUNTED", "", **UNTRACKED)
def one_path_twice(x, tokens, gamma, w):
    g = jax.grad(lambda gamma: two_paths(copy_to, as_it_is, x, tokens, gamma, w))(gamma)
    return lax.psum(g, "tp")


@wrong(*TWO_PATHS, "LAYOUT_COUNTED", "", **UNTRACKED)
def one_path_only(x, tokens, gamma, w):
    return jax.grad(lambda gamma: two_paths(copy_to, as_it_is, x, tokens, gamma, w))(gamma)


@wrong(*TWO_PATHS, "LAYOUT_SCALE", 'lax.psum(g, "tp")', **UNTRACKED)
def both_paths_twice(x, tokens, gamma, w):
    g = jax.grad(lambda gamma: two_paths(copy_to, copy_to, x, tokens, gamma, w))(gamma)
    return lax.psum(g, "tp")


# What a gather does backwards depends on what follows it.
GATHERED = (f32(24, 8), f32(8, 12)), (S0, S1), (S0, S1)


@right(*GATHERED, **UNTRACKED)
def gathered_for_a_sliced_product(x, w):
    def loss(x, w):
        return reduce_from(jnp.sum(jnp.tanh(gather_from_sequence(x, 0) @ w)))

    return jax.grad(loss, (0, 1))(x, w)


@wrong(*GATHERED, "LAYOUT_PARTIAL_NONLINEAR", "gather_from(x, 0)", **UNTRACKED)
def slice_of_a_pending_gradient(x, w):
    def loss(x, w):
        return reduce_from(jnp.sum(jnp.tanh(gather_from(x, 0) @ w)))

    return jax.grad(loss, (0, 1))(x, w)


@right((f32(6, 24), f32(24, 5)), (S1, R), (S1, R), **UNTRACKED)
def gathered_for_a_whole_product(x, w):
    return jax.grad(lambda x, w: jnp.sum(jnp.tanh(gather_from(x, 1) @ w)), (0, 1))(x, w)


@wrong((f32(6, 24), f32(24, 5)), (S1, R), (S1, R), "LAYOUT_SCALE", "", **UNTRACKED)
def scattered_sum_of_a_whole_gradient(x, w):
    return jax.grad(lambda x, w: jnp.sum(jnp.tanh(gather_from_sequence(x, 1) @ w)), (0, 1))(x, w)


SCATTERED = (f32(6, 24), f32(24, 5)), (R, S0), (R, S0)


@right(*SCATTERED, **UNTRACKED)
def scattered_then_gathered_backwards(x, w):
    def loss(x, w):
        return jnp.sum(jnp.tanh(reduce_from(scatter_to(x, 1) @ w)))

    return jax.grad(loss, (0, 1))(x, w)


@right(*SCATTERED, **UNTRACKED)
def own_block_of_a_copy(x, w):
    def loss(x, w):
        return jnp.sum(jnp.tanh(reduce_from(own_block(copy_to(x), 1) @ w)))

    return jax.grad(loss, (0, 1))(x, w)


@right(*SCATTERED, **TRACKED)
@wrong(*SCATTERED, "LAYOUT_SCALE", "", **UNTRACKED)
def own_block_by_jax(x, w):
    def loss(x, w):
        return jnp.sum(jnp.tanh(lax.psum(own_block(x, 1) @ w, "tp")))

    return jax.grad(loss, (0, 1))(x, w)


@wrong(*SCATTERED, "LAYOUT_RESULT_PARTIAL", "", **UNTRACKED)
def own_block_not_gathered_backwards(x, w):
    def loss(x, w):
        return jnp.sum(jnp.tanh(reduce_from(own_block(x, 1) @ w)))

    return jax.grad(loss, (0, 1))(x, w)


# A share of the bias before the sum (torchtitan 4332): the value is right, and its gradient is only
# if it is summed.
BIASED = (f32(6, 24), f32(24, 12), f32(12)), (S1, S0, R)


@right(*BIASED, (S0, R), **TRACKED)
@wrong(*BIASED, (S0, R), "LAYOUT_SCALE", "", **UNTRACKED)
def share_of_the_bias_by_psum(x, w, b):
    def loss(w, b):
        return square_error(lax.psum(x @ w + b / lax.axis_size("tp"), "tp"))

    return jax.grad(loss, (0, 1))(w, b)


@wrong(*BIASED, (S0, R), "LAYOUT_SCALE", 'b / lax.axis_size("tp")', **UNTRACKED)
def share_of_the_bias_by_reduce_from(x, w, b):
    def loss(w, b):
        return square_error(reduce_from(x @ w + b / lax.axis_size("tp")))

    return jax.grad(loss, (0, 1))(w, b)


@right(*BIASED, (S0, R), **UNTRACKED)
def share_of_the_bias_with_the_whole_gradient(x, w, b):
    @jax.custom_vjp
    def share(b):
        return b / lax.axis_size("tp")

    share.defvjp(lambda b: (share(b), None), lambda _, g: (g,))

    def loss(w, b):
        return square_error(reduce_from(x @ w + share(b)))

    return jax.grad(loss, (0, 1))(w, b)


@right(*BIASED, (S0, R), **UNTRACKED)
def bias_after_reduce_from(x, w, b):
    return jax.grad(lambda w, b: square_error(reduce_from(x @ w) + b), (0, 1))(w, b)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
