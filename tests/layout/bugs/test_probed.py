"""Mistakes that JAX's own check_vma lets pass, and scenarios from public issues of JAX and XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from programs import S0, S1, Case, P, Programs, R, f32, i32

from jaxcc.layout import on

PROGRAMS = Programs(modes=(True,))
right, wrong, unproved = PROGRAMS.right, PROGRAMS.wrong, PROGRAMS.unproved

ROW = (f32(6, 24), f32(24, 12), f32(12)), (S1, S0, R)


@wrong(*ROW, R, "LAYOUT_RESULT_PARTIAL", "return x @ w")
def pending_product_as_replicated(x, w, b):
    return x @ w


@wrong(*ROW, S0, "LAYOUT_RESULT_PARTIAL", "return x @ w")
def pending_product_as_sliced(x, w, b):
    return x @ w


@right(*ROW, P)
def pending_product_as_partial(x, w, b):
    return x @ w


@wrong(*ROW, R, "LAYOUT_SCALE", 'lax.psum(y, "tp")')
def summed_twice(x, w, b):
    y = lax.psum(x @ w, "tp")
    return lax.psum(y, "tp")


@right(*ROW, R)
def summed_once(x, w, b):
    return lax.psum(x @ w, "tp") + b


@wrong(*ROW, R, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.gelu")
def gelu_before_the_sum(x, w, b):
    return lax.psum(jax.nn.gelu(x @ w), "tp") + b


@right(*ROW, R)
def gelu_after_the_sum(x, w, b):
    return jax.nn.gelu(lax.psum(x @ w, "tp") + b)


@right((f32(24, 12),), (S0,), R)
def gathered_rows(x):
    return lax.all_gather(x, "tp", axis=0, tiled=True)


@wrong((f32(24, 24),), (S0,), R, "LAYOUT_RESULT", "axis=1")
def rows_gathered_as_columns(x):
    return lax.all_gather(x, "tp", axis=1, tiled=True).reshape(24, 24)


@right((f32(24, 24), f32(24, 24)), (S1, S0), S0)
def scattered_rows(x, w):
    return lax.psum_scatter(x @ w, "tp", scatter_dimension=0, tiled=True)


@wrong((f32(24, 24), f32(24, 24)), (S1, S0), S0, "LAYOUT_RESULT", "scatter_dimension=1")
def scattered_columns_as_rows(x, w):
    y = lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True)
    return y.reshape(-1, 24)


@right((f32(24, 12), f32(12, 24)), (S0, S1), S0)
def rows_and_transposed_columns(a, b):
    return a + b.T


@wrong((f32(24, 24), f32(24, 24)), (S0, S1), S0, "LAYOUT_MISMATCH", "a + b.T.reshape")
def rows_and_reshaped_columns(a, b):
    return a + b.T.reshape(a.shape[0], -1) + b.reshape(a.shape)


@wrong((f32(24, 12), f32(12, 24)), (S0, S1), R, "LAYOUT_MISMATCH", "a @ b")
def only_the_diagonal_blocks(a, b):
    return lax.psum(jnp.sum(a @ b), "tp")


@right((f32(24, 12), f32(12, 24)), (S0, S1), R)
def every_block(a, b):
    return lax.psum(jnp.sum(a @ lax.all_gather(b, "tp", axis=1, tiled=True)), "tp")


@right((f32(6, 24), f32(24, 12), f32()), (S1, S0, R), R)
def pending_times_a_replicated_scalar(x, w, factor):
    return lax.psum((x @ w) * factor, "tp")


@wrong((f32(6, 24), f32(24, 12), f32()), (S1, S0, R), R, "LAYOUT_COUNTED", "(x @ w) - shift")
def pending_less_a_replicated_scalar(x, w, shift):
    return lax.psum((x @ w) - shift, "tp")


@wrong((f32(24, 12),), (S0,), S0, "LAYOUT_NO_RULE", "jax.pure_callback", truth=None)
def callback_without_a_rule(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(x) - np.asarray(x).mean(), shape, x)


# Local statistics and shifts that have the right shapes.


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.cumsum")
def prefix_sums_of_a_block(x):
    return jnp.cumsum(x, axis=0)


@wrong((f32(24),), (S0,), R, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.argmax")
def position_of_the_maximum_of_a_block(x):
    return lax.pmax(jnp.argmax(x), "tp")


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.sort")
def block_sorted(x):
    return jnp.sort(x, axis=0)


@right((f32(24, 6),), (S0,), R)
def gathered_then_sorted(x):
    return jnp.sort(lax.all_gather(x, "tp", tiled=True), axis=0)


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "x[::-1]")
def block_reversed(x):
    return x[::-1]


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_SLICE", "x[1:] - x[:-1]")
def differences_within_a_block(x):
    return jnp.concatenate([x[:1], x[1:] - x[:-1]])


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_PARTIAL_NONLINEAR", "x.std(0)")
def standardized_by_a_block(x):
    return (x - lax.pmean(x.mean(0), "tp")) / (x.std(0) + 1e-5)


@right((f32(24, 6),), (S0,), S0)
def standardized_by_all_blocks(x):
    mean = lax.pmean(x.mean(0), "tp")
    return (x - mean) / (jnp.sqrt(lax.pmean(((x - mean) ** 2).mean(0), "tp")) + 1e-5)


@wrong((f32(24, 6),), (S0,), R, "LAYOUT_SCALE", "(rows - 1)")
def unbiased_variance_by_local_degrees(x):
    rows = x.shape[0]
    mean = lax.pmean(x.mean(0), "tp")
    return lax.psum(((x - mean) ** 2).sum(0), "tp") / (rows - 1)


@right((f32(24, 6),), (S0,), R)
def unbiased_variance(x):
    rows = x.shape[0] * lax.axis_size("tp")
    mean = lax.pmean(x.mean(0), "tp")
    return lax.psum(((x - mean) ** 2).sum(0), "tp") / (rows - 1)


# Random bits of a rank.
KEY_AND_ROWS = (i32(2, below=2**31 - 1), f32(24, 6)), (R, S0)


def key_of(bits):
    return jax.random.wrap_key_data(bits.astype(jnp.uint32))


@wrong(*KEY_AND_ROWS, S0, "LAYOUT_RANDOM", "jax.random.bernoulli")
def one_dropout_mask_on_every_shard(bits, x):
    return x * jax.random.bernoulli(key_of(bits), 0.5, x.shape)


@wrong(*KEY_AND_ROWS, S0, "LAYOUT_RANDOM", "jax.random.fold_in")
def dropout_mask_of_the_rank(bits, x):
    key = jax.random.fold_in(key_of(bits), lax.axis_index("tp"))
    return x * jax.random.bernoulli(key, 0.5, x.shape)


@right((i32(2, below=2**31 - 1), f32(24, 6)), (R, R), R)
def dropout_of_a_replicated(bits, x):
    return x * jax.random.bernoulli(key_of(bits), 0.5, x.shape)


@right(*KEY_AND_ROWS, S0)
def one_dropout_mask_along_the_whole_dim(bits, x):
    return x * jax.random.bernoulli(key_of(bits), 0.5, x.shape[1:])


# jax-ml/jax 29965, 28334: constants take the layout of what they meet.
@right((f32(24, 12),), (S0,), S0)
def constants_meet_a_slice(x):
    held = jnp.zeros_like(x) + jnp.where(x > 0, jnp.ones_like(x), jnp.full_like(x, 0.5))
    return x + held * 2.0


@right((f32(24, 12),), (S0,), S0)
def argmax_of_a_whole_dim(x):
    return jax.nn.one_hot(jnp.argmax(x, axis=1), 12) * x


# jax-ml/jax 31927, 31918: pending over two axes, and scalars.
TWO_AXES = {"sizes": (("dp", 2), ("tp", 2))}


@right((f32(8, 24), f32(24, 6)), (on(dp=S1, tp=S1), on(dp=S0, tp=S0)), R, **TWO_AXES)
def contracted_over_both_axes(x, w):
    return lax.psum(x @ w, ("dp", "tp"))


@right((f32(24), f32(24)), (S0, S0), P)
def scalar_product_left_pending(a, b):
    return a @ b


@right((f32(24), f32(24)), (S0, S0), R)
def scalar_product(a, b):
    return lax.psum(a @ b, "tp")


@wrong((f32(8, 24), f32(24, 6)), (on(dp=S1, tp=S1), on(dp=S0, tp=S0)), R,
       "LAYOUT_RESULT_PARTIAL", "x @ w", **TWO_AXES)  # fmt: skip
def summed_over_one_of_two_axes(x, w):
    return lax.psum(x @ w, "tp")


@wrong((f32(8, 24), f32(24, 6)), (on(dp=S0, tp=S1), on(tp=S0)), on(dp=S0),
       "LAYOUT_SUM_OF_SLICES", 'lax.psum(x @ w, ("dp", "tp"))', **TWO_AXES)  # fmt: skip
def summed_over_the_batch_axis_too(x, w):
    return lax.psum(x @ w, ("dp", "tp"))


@right((f32(8, 24), f32(24, 6)), (on(dp=S0, tp=S1), on(tp=S0)), on(dp=S0), **TWO_AXES)
def summed_over_the_sliced_axis(x, w):
    return lax.psum(x @ w, "tp")


@right((f32(24, 6),), (on(dp=S0, tp=S0),), R, **TWO_AXES)
def gathered_minor_first(x):
    inner = lax.all_gather(x, "tp", tiled=True)
    return lax.all_gather(inner, "dp", tiled=True)


@wrong((f32(24, 6),), (on(dp=S0, tp=S0),), R, "LAYOUT_RESULT", "lax.all_gather", **TWO_AXES)
def gathered_major_first(x):
    outer = lax.all_gather(x, "dp", tiled=True)
    return lax.all_gather(outer, "tp", tiled=True)


# jax-ml/jax 15982, 5861, 1332: pairs of split and concatenation.
@right((f32(24, 12),), (S0,), S1)
def rows_for_columns(x):
    return lax.all_to_all(x, "tp", split_axis=1, concat_axis=0, tiled=True)


@right((f32(24, 12),), (S0,), S0)
def rows_for_columns_and_back(x):
    y = lax.all_to_all(x, "tp", split_axis=1, concat_axis=0, tiled=True)
    return lax.all_to_all(jnp.tanh(y), "tp", split_axis=0, concat_axis=1, tiled=True)


@wrong((f32(48, 6),), (S0,), S0, "LAYOUT_RESULT", "split_axis=0")
def rows_for_rows(x):
    return lax.all_to_all(x, "tp", split_axis=0, concat_axis=0, tiled=True)


@wrong((f32(24, 24),), (S0,), S1, "LAYOUT_RESULT", "lax.all_to_all")
def rows_for_columns_in_place(x):
    y = lax.all_to_all(x, "tp", split_axis=1, concat_axis=1, tiled=True)
    return y.reshape(24, -1)


@right((f32(24, 12),), (S0,), S0)
def gradient_through_all_to_all(x):
    def loss(x):
        return jnp.sum(jnp.sin(lax.all_to_all(x, "tp", split_axis=1, concat_axis=0, tiled=True)))

    return jax.grad(loss)(x)


# jax-ml/jax 11614, 1703: ppermute.
def ring(by):
    n = lax.axis_size("tp")
    return [(rank, (rank + by) % n) for rank in range(n)]


@wrong((f32(24, 6),), (S0,), S0, "LAYOUT_RANK_DEPENDENT", "lax.ppermute")
def blocks_moved_along_the_ring(x):
    return lax.ppermute(x, "tp", ring(1))


@right((f32(24, 6),), (S0,), S0)
def blocks_moved_and_moved_back(x):
    return lax.ppermute(jnp.sin(lax.ppermute(x, "tp", ring(1))), "tp", ring(-1))


@right((f32(24, 6),), (R,), R)
def replicated_moved_along_the_ring(x):
    return lax.ppermute(x, "tp", ring(1))


@wrong((f32(24, 6),), (R,), R, "LAYOUT_RANK_DEPENDENT", "lax.ppermute")
def pairs_without_the_first_rank(x):
    n = lax.axis_size("tp")
    return lax.ppermute(x, "tp", [(rank, rank + 1) for rank in range(n - 1)])


# jax-ml/jax 21855: a column-parallel product, a row-parallel one, and their gradient.
@right((f32(6, 8), f32(8, 24), f32(24, 8)), (R, S1, S0), (R, S1, S0), modes=(True,))
def gradient_of_a_pair_of_products(x, a, b):
    def loss(x, a, b):
        return jnp.sum(jnp.sin(lax.psum(jax.nn.silu(x @ a) @ b, "tp")))

    return jax.grad(loss, (0, 1, 2))(x, a, b)


# jax-ml/jax 27808, LWM 39: sizes that the ranks do not divide.
@wrong((f32(6, 10),), (S0,), S0, "LAYOUT_INDIVISIBLE", "", cure="pad x", truth=None)
def rows_that_do_not_divide(x):
    return x


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
