"""Programs that look up, update, cut out and pad, right and wrong: what the checker decides, and
what running them shows."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import S0, S1, S2, Case, P, Programs, R, f32, i32

from jaxcc.layout import on

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}
DP_TP = {"sizes": (("dp", 2), ("tp", 2))}


def total(x):
    return lax.psum(x, "tp")


# Embeddings: a table of 8 rows, tokens below 8.
TOKENS = i32(12, 3, below=8)
EMBED = (TOKENS, f32(8, 12))


@right(EMBED, (S0, R), S0)
def embedding_of_sliced_tokens(tokens, table):
    return jnp.tanh(table[tokens])


@right(EMBED, (R, S1), S2)
def embedding_with_sliced_features(tokens, table):
    return jnp.take(table, tokens, axis=0) * 2.0


@right(EMBED, (R, P), R)
def embedding_of_a_pending_table(tokens, table):
    return total(table[tokens]) + total(jnp.take(table, tokens, axis=0))


@wrong(EMBED, (R, P), R, "LAYOUT_COUNTED", "fill_value=1.0")
def pending_table_with_a_fill_value(tokens, table):
    return total(jnp.take(table, tokens + 4, axis=0, mode="fill", fill_value=1.0))


@wrong(EMBED, (S0, P), S0, "LAYOUT_PARTIAL_NONLINEAR", "table[tokens]")
def pending_table_at_sliced_tokens(tokens, table):
    return total(table[tokens])


@wrong(EMBED, (R, S0), R, "LAYOUT_RANK_INDEX", "table[tokens]")
def sliced_vocabulary_without_offset(tokens, table):
    return total(table[tokens])


@wrong(EMBED, (R, S0), R, "LAYOUT_RANK_INDEX", "jnp.take")
def sliced_vocabulary_clipped(tokens, table):
    return lax.pmean(jnp.take(table, tokens, axis=0, mode="clip"), "tp")


@wrong(EMBED, (R, R), R, "LAYOUT_SCALE", "table[twice]")
def summed_tokens(tokens, table):
    twice = total(tokens)
    return table[twice]


# The gradient of an embedding: rows are added where their tokens are.
ROWS = (TOKENS, f32(12, 3, 12), f32(8, 12))


@right(ROWS, (S0, S0, R), R)
def embedding_gradient_of_a_sliced_batch(tokens, rows, table):
    return total(jnp.zeros_like(table).at[tokens].add(rows)) + table


@right(ROWS, (S0, S0, R), P)
def pending_embedding_gradient(tokens, rows, table):
    return -jnp.zeros_like(table).at[tokens].add(2.0 * rows)


@right(ROWS, (R, S2, S1), S1)
def rows_added_with_sliced_features(tokens, rows, table):
    return table.at[tokens].add(rows)


@right(ROWS, (S0, S0, R), R)
def rows_added_to_a_share_of_the_table(tokens, rows, table):
    return total((table / lax.axis_size("tp")).at[tokens].subtract(rows))


@wrong(ROWS, (S0, S0, R), R, "LAYOUT_COUNTED", ".add(rows)")
def rows_added_to_the_table_of_every_rank(tokens, rows, table):
    return total(table.at[tokens].add(rows))


@wrong(ROWS, (S0, S0, R), R, "LAYOUT_RESULT_PARTIAL", ".add(rows)")
def embedding_gradient_not_summed(tokens, rows, table):
    return jnp.zeros_like(table).at[tokens].add(rows)


@wrong(ROWS, (R, R, R), R, "LAYOUT_SCALE", "total(")
def whole_rows_summed(tokens, rows, table):
    return total(jnp.zeros_like(table).at[tokens].add(rows)) + table


@wrong(ROWS, (R, R, S0), S0, "LAYOUT_RANK_INDEX", ".add(rows)")
def rows_added_to_a_sliced_vocabulary(tokens, rows, table):
    return table.at[tokens].add(rows)


@right(EMBED, (S0, R), R, **UNTRACKED)
def gradient_of_an_embedding(tokens, table):
    return total(jax.grad(lambda t: jnp.sum(jnp.sin(t[tokens])))(table))


@right(EMBED, (S0, R), R, **TRACKED)
def gradient_of_an_embedding_that_jax_sums(tokens, table):
    return jax.grad(lambda t: jnp.sum(jnp.sin(t[tokens])))(table)


@wrong(EMBED, (S0, R), R, "LAYOUT_RESULT_PARTIAL", "jax.grad", **UNTRACKED)
def gradient_of_an_embedding_not_summed(tokens, table):
    return jax.grad(lambda t: jnp.sum(jnp.sin(t[tokens])))(table)


@right(
    (i32(4, 3, below=8), f32(8, 4), f32(4, 6)),
    (on(dp=S0), on(tp=S1), on(tp=S0)),
    on(dp=S0),
    **DP_TP,
)
def embedding_on_two_axes(tokens, table, w):
    return total(table[tokens] @ w)


# Extrema, products and counts of what is found in a batch.
SEGMENTS = (i32(12, below=4), f32(12, 12))


@right(SEGMENTS, (S0, S0), R)
def segment_maximum(segment, x):
    return lax.pmax(jnp.full((4, 12), -9.0).at[segment].max(x), "tp")


@right(SEGMENTS, (S0, S0), R)
def segment_sum(segment, x):
    return total(jax.ops.segment_sum(x, segment, num_segments=4))


@right(SEGMENTS, (R, S1), S1)
def segment_product(segment, x):
    return jnp.ones((4, x.shape[1])).at[segment].multiply(jnp.cos(x))


@right(SEGMENTS, (S0, R), R)
def histogram(segment, x):
    return total(jnp.zeros(4).at[segment].add(1.0)) + x[0, 0]


@wrong(SEGMENTS, (S0, S0), R, "LAYOUT_PARTIAL_NONLINEAR", "lax.psum(")
def segment_maximum_summed(segment, x):
    return lax.psum(jnp.full((4, 12), -9.0).at[segment].max(x), "tp")


@wrong(SEGMENTS, (S0, S0), R, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sqrt")
def root_of_a_minimum_not_taken(segment, x):
    return jnp.sqrt(9.0 + jnp.full((4, 12), 9.0).at[segment].min(x))


@wrong(SEGMENTS, (S0, S0), R, "LAYOUT_PARTIAL_NONLINEAR", ".multiply(")
def segment_product_of_slices(segment, x):
    return jnp.ones((4, 12)).at[segment].multiply(jnp.cos(x)) + 0.0


@wrong(SEGMENTS, (R, R), R, "LAYOUT_SCALE", ".add(1.0)")
def histogram_counted_n_times(segment, x):
    return jnp.tanh(total(jnp.zeros(4).at[segment].add(1.0))) + x[0, 0]


@wrong(SEGMENTS, (S0, S0), R, "LAYOUT_NEEDS_WHOLE_DIM", ".set(x)")
def sliced_rows_set(segment, x):
    return total(jnp.zeros((4, 12)).at[segment].set(x))


@right(SEGMENTS, (R, S1), S1)
def whole_rows_set(segment, x):
    return jnp.zeros((4, x.shape[1])).at[segment].set(x)


# One element of each row.
PICKED = (f32(12, 8), i32(12, below=8))


@right(PICKED, (S0, S0), R)
def cross_entropy_of_a_sliced_batch(logits, labels):
    log = jax.nn.log_softmax(logits)
    return -lax.pmean(jnp.mean(jnp.take_along_axis(log, labels[:, None], axis=-1)), "tp")


@right(PICKED, (S0, S0), S0)
def gradient_of_cross_entropy(logits, labels):
    def loss(logits):
        log = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.take_along_axis(log, labels[:, None], axis=-1))

    return jax.grad(loss)(logits)


@right(PICKED, (S0, S0), S0)
def one_element_of_each_row_by_vmap(x, at):
    return jax.vmap(lambda row, k: row[k])(x, at)


@right(PICKED, (S0, S0), S0)
def one_element_of_each_row_set_by_vmap(x, at):
    return jax.vmap(lambda row, k: row.at[k].set(0.5).at[k - 1].multiply(2.0))(x, at)


@right(PICKED, (S0, R), S0)
def columns_in_another_order(x, at):
    return x[:, at] - x.at[:, at[:3]].set(1.0).sum(1, keepdims=True)


@wrong(PICKED, (S1, S0), S0, "LAYOUT_RANK_INDEX", "jnp.take_along_axis")
def picked_from_a_sliced_row(logits, labels):
    whole = lax.all_gather(labels, "tp", tiled=True)
    picked = jnp.take_along_axis(logits, whole[:, None], axis=1)[:, 0]
    return lax.psum_scatter(picked, "tp", tiled=True)


@wrong((f32(12, 8), i32(3, 4, below=8)), (S0, S1), S0, "LAYOUT_MISMATCH", "jnp.take_along_axis")
def positions_of_other_rows(x, at):
    return jnp.take_along_axis(x, at.reshape(-1, 1), axis=1)


# Windows at a position that is data.
CACHE = (f32(2, 12, 12, 4), f32(2, 1, 12, 4), i32(below=12))


@right(CACHE, (S2, S2, R), S2)
def cache_of_sliced_heads(cache, new, at):
    return lax.dynamic_update_slice(cache, new, (0, at, 0, 0))


@right(CACHE, (S2, S2, R), S2)
def cache_written_and_read(cache, new, at):
    cache = lax.dynamic_update_slice_in_dim(cache, new, at, axis=1)
    return cache * lax.dynamic_index_in_dim(cache, at, axis=1)


@right(CACHE, (P, P, R), R)
def pending_cache(cache, new, at):
    return total(cache.at[:, at].set(new[:, 0]))


@right(CACHE, (S2, R, R), S2)
def gradient_of_a_window(cache, new, at):
    def loss(cache):
        return jnp.sum(jnp.sin(lax.dynamic_slice_in_dim(cache, at, 2, axis=1)))

    return jax.grad(loss)(cache)


@wrong(CACHE, (P, R, R), R, "LAYOUT_COUNTED", "dynamic_update_slice")
def whole_update_of_a_pending_cache(cache, new, at):
    return total(lax.dynamic_update_slice(cache, new, (0, at, 0, 0)))


@wrong(CACHE, (S1, R, R), S1, "LAYOUT_NEEDS_WHOLE_DIM", "dynamic_update_slice")
def cache_of_sliced_positions(cache, new, at):
    zero = jnp.zeros_like(at)
    start = (zero, at, zero, zero)
    return lax.dynamic_update_slice(cache, new, start, allow_negative_indices=False)


@wrong(CACHE, (R, S2, R), R, "LAYOUT_SLICE", "dynamic_update_slice")
def block_of_heads_at_the_first_place(cache, new, at):
    return total(lax.dynamic_update_slice(cache, new, (0, at, 0, 0)))


@wrong(CACHE, (S1, R, R), R, "LAYOUT_RANK_INDEX", "dynamic_index_in_dim")
def read_at_a_sliced_position(cache, new, at):
    return new * total(lax.dynamic_index_in_dim(cache, at, axis=1))


@wrong(CACHE, (R, R, R), S2, "LAYOUT_SLICE", "dynamic_slice_in_dim")
def first_block_on_every_rank(cache, new, at):
    block = cache.shape[2] // lax.axis_size("tp")
    return lax.dynamic_slice_in_dim(cache, 0 * at, block, axis=2)


@wrong(CACHE, (R, R, R), R, "LAYOUT_SCALE", "dynamic_index_in_dim")
def read_at_a_summed_position(cache, new, at):
    return lax.dynamic_index_in_dim(cache, total(at), axis=1) + 0.0 * new


# A rank's own rows and blocks.
def own_rows(table, ids):
    rows = table.shape[0]
    mine = ids - lax.axis_index("tp") * rows
    own = (mine >= 0) & (mine < rows)
    return jnp.where(own, mine, 0), own


VOCABULARY = (f32(24), i32(12, below=23))


@right(VOCABULARY, (S0, R), R)
def guarded_rows(table, ids):
    mine, own = own_rows(table, ids)
    return total(jnp.where(own, table[mine], 0.0))


@wrong(VOCABULARY, (S0, R), R, "LAYOUT_RANK_INDEX", "lax.dynamic_slice(")
def windows_that_reach_into_the_next_block(table, ids):
    mine, own = own_rows(table, ids)

    def window(at):
        return lax.dynamic_slice(table, (at,), (2,), allow_negative_indices=False)

    return total(jnp.where(own[:, None], jax.vmap(window)(mine), 0.0))


@wrong((*VOCABULARY, f32(12, 2)), (S0, R, R), S0, "LAYOUT_RANK_INDEX", "lax.scatter_add(zeros")
def updates_that_reach_into_the_next_block(table, ids, updates):
    mine = ids - lax.axis_index("tp") * table.shape[0]
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    zeros = jnp.zeros_like(table)
    return lax.scatter_add(zeros, mine[:, None], updates, numbers, mode="drop")


def own_block(x):
    size = x.shape[0] // lax.axis_size("tp")
    return lax.dynamic_slice(x, (lax.axis_index("tp") * size,), (size,))


@right((f32(24),), (R,), S0)
def block_of_a_whole(x):
    return own_block(x)


@wrong((f32(24),), (S0,), S0, "LAYOUT_SLICE", "lax.dynamic_slice(x")
def block_of_interleaved_slices(x):
    return own_block(lax.all_gather(x, "tp", axis=1).reshape(-1))


# Padding.
@right((f32(12, 6),), (S0,), S0)
def padded_along_a_whole_dim(x):
    wide = jnp.pad(x, ((0, 0), (1, 2)))
    return wide[:, :-3] - lax.pad(x, 0.5, ((0, 0, 0), (-1, 1, 0)))


@right((f32(12, 6),), (P,), R)
def pending_padded_with_zeros(x):
    return total(jnp.pad(x, 1))


@right((f32(6, 3, 12),), (S2,), S2)
def gradient_of_a_packed_projection(x):
    def loss(packed):
        q, k = packed[:, : x.shape[2]], packed[:, 2 * x.shape[2] :]
        return jnp.sum(jnp.sin(q) * k)

    return jax.grad(loss)(x.reshape(6, -1)).reshape(x.shape)


@wrong((f32(12, 6),), (P,), R, "LAYOUT_COUNTED", "constant_values=1.0")
def pending_padded_with_ones(x):
    return total(jnp.pad(x, 1, constant_values=1.0))


@wrong((f32(12, 6),), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.pad")
def convolution_without_a_halo(x):
    wide = jnp.pad(x, ((1, 1), (0, 0)))
    return wide[:-2] + wide[2:]


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_what_running_shows(case: Case) -> None:
    case.run()
