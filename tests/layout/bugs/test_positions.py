"""Terms of one rank, positions and masks of a sliced sequence, a rank's own block of a table."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import S0, S1, Case, P, Programs, R, f32

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong


@wrong((f32(6, 10),), (R,), S1, "LAYOUT_INDIVISIBLE", "")
def ones_of_blocks_that_are_not_all(x):
    block = x.shape[1] // lax.axis_size("tp")
    return jnp.ones_like(lax.dynamic_slice_in_dim(x, lax.axis_index("tp") * block, block, 1))


# Terms of one rank.
BIASED = (f32(6, 24), f32(24, 12), f32(12)), (S1, S0, R), R


@right(*BIASED)
def bias_of_rank_0(x, w, b):
    return lax.psum(x @ w + jnp.where(lax.axis_index("tp") == 0, b, 0.0), "tp")


@right(*BIASED)
def bias_times_a_rank_mask(x, w, b):
    return lax.psum(x @ w + b * (lax.axis_index("tp") == 0), "tp")


@right(*BIASED)
def bias_of_the_last_rank(x, w, b):
    last = lax.axis_index("tp") == lax.axis_size("tp") - 1
    return lax.psum(x @ w + jnp.where(last, b, 0.0), "tp")


@wrong(*BIASED, "LAYOUT_RANK_INDEX", 'lax.axis_index("tp") == 1')
def bias_of_rank_1(x, w, b):
    return lax.psum(x @ w + jnp.where(lax.axis_index("tp") == 1, b, 0.0), "tp")


@wrong(*BIASED, "LAYOUT_RANK_INDEX", "")
def bias_of_every_rank_but_0(x, w, b):
    return lax.psum(x @ w + jnp.where(lax.axis_index("tp") > 0, b, 0.0), "tp")


@wrong((f32(6, 5),), (R,), R, "LAYOUT_RANK_INDEX", "")
def value_times_the_rank(x):
    return x * lax.axis_index("tp")


@right((f32(6, 5),), (R,), R)
def value_of_rank_0(x):
    return lax.psum(jnp.where(lax.axis_index("tp") == 0, x, 0.0), "tp")


@wrong((f32(6, 5),), (R,), R, "LAYOUT_RESULT_PARTIAL", "")
def value_kept_on_rank_0(x):
    return jnp.where(lax.axis_index("tp") == 0, x, 0.0)


# Positions of a sliced sequence.
QUERIES = (f32(24, 8), f32(24, 8)), (S0, R), S0


def scores(q, k):
    return q @ k.T / jnp.sqrt(float(q.shape[-1]))


def own_positions(q):
    return lax.axis_index("tp") * q.shape[0] + jnp.arange(q.shape[0])


@right(*QUERIES)
def causal_mask_of_sliced_queries(q, k):
    causal = own_positions(q)[:, None] >= jnp.arange(k.shape[0])[None, :]
    return jax.nn.softmax(jnp.where(causal, scores(q, k), -jnp.inf), axis=-1) @ k


@right(*QUERIES)
def causal_mask_by_broadcasted_iota(q, k):
    rows = lax.broadcasted_iota(jnp.int32, (q.shape[0], k.shape[0]), 0)
    columns = lax.broadcasted_iota(jnp.int32, (q.shape[0], k.shape[0]), 1)
    causal = rows + lax.axis_index("tp") * q.shape[0] >= columns
    return jax.nn.softmax(jnp.where(causal, scores(q, k), -1e30), axis=-1) @ k


@right(*QUERIES)
def causal_mask_as_an_added_bias(q, k):
    ahead = jnp.arange(k.shape[0])[None, :] > own_positions(q)[:, None]
    return jax.nn.softmax(scores(q, k) + jnp.where(ahead, -1e9, 0.0), axis=-1) @ k


@right(*QUERIES)
def window_of_sliced_queries(q, k):
    distance = own_positions(q)[:, None] - jnp.arange(k.shape[0])[None, :]
    near = (distance >= 0) & (distance < 5)
    return jax.nn.softmax(jnp.where(near, scores(q, k), -1e30), axis=-1) @ k


@wrong(*QUERIES, "LAYOUT_RANK_INDEX", "jnp.arange(q.shape[0])")
def causal_mask_of_local_positions(q, k):
    causal = jnp.arange(q.shape[0])[:, None] >= jnp.arange(k.shape[0])[None, :]
    return jax.nn.softmax(jnp.where(causal, scores(q, k), -jnp.inf), axis=-1) @ k


@wrong(*QUERIES, "LAYOUT_RANK_INDEX", "jnp.tril", modes=(True, False))
def causal_mask_by_tril(q, k):
    causal = jnp.tril(jnp.ones((q.shape[0], k.shape[0]), bool))
    return jax.nn.softmax(jnp.where(causal, scores(q, k), -1e30), axis=-1) @ k


@wrong(*QUERIES, "LAYOUT_RANK_INDEX", "")
def causal_mask_of_another_stride(q, k):
    positions = lax.axis_index("tp") * (q.shape[0] + 1) + jnp.arange(q.shape[0])
    causal = positions[:, None] >= jnp.arange(k.shape[0])[None, :]
    return jax.nn.softmax(jnp.where(causal, scores(q, k), -1e30), axis=-1) @ k


def rotated(x, positions):
    half = x.shape[-1] // 2
    frequencies = 1.0 / 100.0 ** (jnp.arange(half) / half)
    angles = positions[:, None].astype(jnp.float32) * frequencies
    first, second = x[:, :half], x[:, half:]
    return jnp.concatenate(
        [first * jnp.cos(angles) - second * jnp.sin(angles),
         second * jnp.cos(angles) + first * jnp.sin(angles)], axis=-1)  # fmt: skip


ROTARY = (f32(24, 8),), (S0,), S0


@right(*ROTARY)
def rotary_of_own_positions(x):
    return rotated(x, own_positions(x))


@wrong(*ROTARY, "LAYOUT_RANK_INDEX", "positions[:, None]")
def rotary_of_local_positions(x):
    return rotated(x, jnp.arange(x.shape[0]))


@wrong(*ROTARY, "LAYOUT_RANK_INDEX", "")
def rotary_of_positions_from_one(x):
    return rotated(x, own_positions(x) + lax.axis_index("tp"))


@right(*ROTARY)
def rotary_of_positions_that_start_at_one(x):
    return rotated(x, own_positions(x) + 1)


# A rank's own part of a table that every rank holds.
TABLE = (f32(24, 6), f32(24, 6)), (S0, R), S0


@right(*TABLE)
def positions_by_dynamic_slice(x, table):
    start = lax.axis_index("tp") * x.shape[0]
    return x + lax.dynamic_slice_in_dim(table, start, x.shape[0], axis=0)


@right(*TABLE)
def positions_by_take(x, table):
    return x + jnp.take(table, own_positions(x), axis=0)


@wrong(*TABLE, "LAYOUT_STRUCTURE", "table[: x.shape[0]]")
def positions_of_the_first_rank(x, table):
    return x + table[: x.shape[0]]


@wrong(*TABLE, "LAYOUT_SLICE", "lax.dynamic_slice_in_dim")
def positions_at_the_rank(x, table):
    return x + lax.dynamic_slice_in_dim(table, lax.axis_index("tp"), x.shape[0], axis=0)


@right((f32(24, 6),), (R,), S0)
def own_block(table):
    block = table.shape[0] // lax.axis_size("tp")
    return lax.dynamic_slice_in_dim(table, lax.axis_index("tp") * block, block, axis=0)


@right((f32(24, 6),), (R,), S0)
def own_block_by_reshape(table):
    return table.reshape(lax.axis_size("tp"), -1, table.shape[1])[lax.axis_index("tp")]


@wrong((f32(24, 6),), (R,), S0, "LAYOUT_RESULT", "")
def own_columns_as_rows(table):
    block = table.shape[0] // lax.axis_size("tp")
    parts = table.reshape(block, lax.axis_size("tp"), table.shape[1])
    return parts[:, lax.axis_index("tp")]


@right((f32(24, 6),), (S0,), R)
def own_block_into_zeros(x):
    whole = jnp.zeros((x.shape[0] * lax.axis_size("tp"), x.shape[1]))
    start = lax.axis_index("tp") * x.shape[0]
    return lax.psum(lax.dynamic_update_slice_in_dim(whole, x, start, axis=0), "tp")


@wrong((f32(24, 6),), (S0,), R, "LAYOUT_SLICE", "lax.dynamic_update_slice_in_dim")
def own_block_into_ones(x):
    whole = jnp.ones((x.shape[0] * lax.axis_size("tp"), x.shape[1]))
    start = lax.axis_index("tp") * x.shape[0]
    return lax.psum(lax.dynamic_update_slice_in_dim(whole, x, start, axis=0), "tp")


@right((f32(24),), (S0,), R)
def position_of_the_maximum(x):
    top = lax.pmax(x.max(), "tp")
    positions = jnp.where(x == top, own_positions(x), 1000)
    return lax.pmin(positions.min(), "tp")


@wrong((f32(24),), (S0,), R, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.argmax")
def local_position_of_the_maximum(x):
    return lax.pmax(jnp.argmax(x), "tp")


@wrong((f32(24),), (S0,), P, "LAYOUT_RANK_INDEX", "")
def sum_weighted_by_local_positions(x):
    return jnp.sum(x * jnp.arange(x.shape[0]))


@right((f32(24),), (S0,), P)
def sum_weighted_by_own_positions(x):
    return jnp.sum(x * own_positions(x))


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
