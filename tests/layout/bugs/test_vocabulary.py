"""Embeddings and cross-entropies over a vocabulary of which every rank has a block."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import reduce_from
from programs import S0, S1, Case, Programs, R, f32, i32

from jaxcc.layout import on

PROGRAMS = Programs()
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}

# Megatron's VocabParallelEmbedding: a rank has the rows of a block of the vocabulary.
EMBEDDING = (i32(5, 7, below=24), f32(24, 6)), (R, S0), R


def block_start(table):
    return lax.axis_index("tp") * table.shape[0]


@right(*EMBEDDING)
def embedding_by_where(ids, table):
    local = ids - block_start(table)
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@right(*EMBEDDING)
def embedding_by_clip(ids, table):
    start = block_start(table)
    own = (ids >= start) & (ids < start + table.shape[0])
    rows = table[jnp.clip(ids - start, 0, table.shape[0] - 1)]
    return lax.psum(rows * own[..., None], "tp")


@right(*EMBEDDING)
def embedding_by_foreign_mask(ids, table):
    start = block_start(table)
    foreign = (ids < start) | (ids >= start + table.shape[0])
    rows = table[jnp.where(foreign, 0, ids - start)]
    return lax.psum(jnp.where(foreign[..., None], 0.0, rows), "tp")


@right(*EMBEDDING)
def embedding_by_one_hot(ids, table):
    positions = jnp.arange(table.shape[0]) + block_start(table)
    return lax.psum((ids[..., None] == positions).astype(table.dtype) @ table, "tp")


@right(*EMBEDDING)
def embedding_by_jax_one_hot(ids, table):
    return lax.psum(jax.nn.one_hot(ids - block_start(table), table.shape[0]) @ table, "tp")


@right(*EMBEDDING[:2], S0)
def rows_times_how_often_they_are_looked_up(ids, table):
    local = ids - block_start(table)
    own = (local >= 0) & (local < table.shape[0])
    counts = jnp.zeros(table.shape[0]).at[jnp.where(own, local, 0)].add(own.astype(jnp.float32))
    return table * counts[:, None]


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "jnp.where(own[..., None], rows, 0)")
def embedding_with_a_mask_that_holds_one_row_more(ids, table):
    local = ids - block_start(table)
    own = (local >= 0) & (local <= table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "jnp.where(own[..., None], rows, 0)")
def embedding_with_a_mask_that_lacks_a_row(ids, table):
    local = ids - block_start(table)
    own = (local > 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "")
def embedding_with_another_stride(ids, table):
    local = ids - lax.axis_index("tp") * (table.shape[0] - 1)
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "")
def embedding_without_a_mask(ids, table):
    local = ids - block_start(table)
    rows = jnp.take(table, jnp.clip(local, 0, table.shape[0] - 1), axis=0)
    return lax.psum(rows, "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "")
def embedding_with_half_a_mask(ids, table):
    local = ids - block_start(table)
    own = local >= 0
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0, mode="clip")
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "")
def embedding_with_the_mask_of_another_lookup(ids, table):
    start = block_start(table)
    own = (ids[::-1] >= start) & (ids[::-1] < start + table.shape[0])
    rows = table[jnp.clip(ids - start, 0, table.shape[0] - 1)]
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RANK_INDEX", "")
def embedding_by_whole_positions(ids, table):
    return lax.psum(jnp.take(table, ids, axis=0, mode="fill", fill_value=0), "tp")


@wrong(*EMBEDDING, "LAYOUT_RESULT_PARTIAL", "jnp.where(own[..., None], rows, 0)")
def embedding_not_summed(ids, table):
    local = ids - block_start(table)
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return jnp.where(own[..., None], rows, 0)


@wrong(*EMBEDDING, "LAYOUT_SCALE", 'lax.pmean(jnp.where(own[..., None], rows, 0), "tp")')
def embedding_averaged(ids, table):
    local = ids - block_start(table)
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.pmean(jnp.where(own[..., None], rows, 0), "tp")


def embedded(ids, table, total):
    local = ids - block_start(table)
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return total(jnp.where(own[..., None], rows, 0))


@right(*EMBEDDING[:2], S0, **UNTRACKED)
def gradient_of_the_embedding(ids, table):
    return jax.grad(lambda table: jnp.sum(jnp.sin(embedded(ids, table, reduce_from))))(table)


@right(*EMBEDDING[:2], S0, **TRACKED)
@wrong(*EMBEDDING[:2], S0, "LAYOUT_SCALE", "", **UNTRACKED)
def gradient_of_the_embedding_by_psum(ids, table):
    def loss(table):
        return jnp.sum(jnp.sin(embedded(ids, table, lambda x: lax.psum(x, "tp"))))

    return jax.grad(loss)(table)


# A batch that is sliced over dp, a vocabulary that is sliced over tp.
TWO_AXES = {"sizes": (("dp", 2), ("tp", 2))}
BOTH = (i32(6, 5, below=24), f32(24, 8)), (on(dp=S0), on(tp=S0)), on(dp=S0)


@right(*BOTH, **TWO_AXES)
def embedding_of_a_sliced_batch(ids, table):
    return embedded(ids, table, lambda x: lax.psum(x, "tp"))


@wrong(*BOTH, "LAYOUT_SUM_OF_SLICES", 'lax.psum(x, ("dp", "tp"))', **TWO_AXES)
def embedding_summed_over_the_batch(ids, table):
    return embedded(ids, table, lambda x: lax.psum(x, ("dp", "tp")))


@wrong(*BOTH, "LAYOUT_RANK_INDEX", "", **TWO_AXES)
def embedding_at_the_rank_of_the_batch(ids, table):
    local = ids - lax.axis_index("dp") * table.shape[0]
    own = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(own, local, 0), axis=0)
    return lax.psum(jnp.where(own[..., None], rows, 0), "tp")


# Cross-entropy over a sliced vocabulary.
LOSS = (f32(6, 24), i32(6, below=24)), (S1, R), R


def shifted(logits):
    return logits - lax.pmax(lax.stop_gradient(logits.max(-1)), "tp")[:, None]


def log_normalizer(logits, total=lambda x: lax.psum(x, "tp")):
    return jnp.log(total(jnp.exp(logits).sum(-1)))


def own_labels(logits, labels):
    blk = logits.shape[-1]
    local = labels - lax.axis_index("tp") * blk
    own = (local >= 0) & (local < blk)
    return own, jnp.where(own, local, 0)


def label_logit(logits, labels, total=lambda x: lax.psum(x, "tp")):
    own, local = own_labels(logits, labels)
    logit = jnp.take_along_axis(logits, local[:, None], axis=-1)[:, 0]
    return total(jnp.where(own, logit, 0.0))


@right(*LOSS)
def cross_entropy(logits, labels):
    z = shifted(logits)
    return log_normalizer(z) - label_logit(z, labels)


@right(*LOSS)
def cross_entropy_by_a_sliced_iota(logits, labels):
    z = shifted(logits)
    positions = lax.axis_index("tp") * z.shape[-1] + jnp.arange(z.shape[-1])
    logit = jnp.where(labels[:, None] == positions, z, 0.0).sum(-1)
    return log_normalizer(z) - lax.psum(logit, "tp")


@right(*LOSS)
def cross_entropy_by_one_hot(logits, labels):
    z = shifted(logits)
    own = jax.nn.one_hot(labels - lax.axis_index("tp") * z.shape[-1], z.shape[-1])
    return log_normalizer(z) - lax.psum((z * own).sum(-1), "tp")


@right(*LOSS)
def cross_entropy_with_smoothing(logits, labels):
    z = shifted(logits)
    vocabulary = z.shape[-1] * lax.axis_size("tp")
    log_z = log_normalizer(z)
    mean = lax.psum((z - log_z[:, None]).sum(-1), "tp") / vocabulary
    smoothing = 0.1 * vocabulary / (vocabulary - 1)
    return (1 - smoothing) * (log_z - label_logit(z, labels)) - smoothing * mean


@wrong(*LOSS, "LAYOUT_PARTIAL_NONLINEAR", "jnp.log")
def cross_entropy_of_the_local_normalizer(logits, labels):
    z = shifted(logits)
    return lax.pmean(log_normalizer(z, lambda x: x), "tp") - label_logit(z, labels)


@wrong(*LOSS, "LAYOUT_PARTIAL_NONLINEAR", "logits.max(-1)")
def cross_entropy_by_the_local_maximum(logits, labels):
    z = logits - logits.max(-1)[:, None]
    return log_normalizer(z) - label_logit(z, labels)


@wrong(*LOSS, "LAYOUT_COUNTED", "log_normalizer(z) - label_logit")
def cross_entropy_with_the_local_label(logits, labels):
    z = shifted(logits)
    return log_normalizer(z) - label_logit(z, labels, lambda x: x)


@wrong(*LOSS, "LAYOUT_RANK_INDEX", "")
def cross_entropy_without_a_mask(logits, labels):
    z = shifted(logits)
    local = jnp.clip(labels - lax.axis_index("tp") * z.shape[-1], 0, z.shape[-1] - 1)
    logit = jnp.take_along_axis(z, local[:, None], axis=-1)[:, 0]
    return log_normalizer(z) - lax.psum(logit, "tp")


@wrong(*LOSS, "LAYOUT_RANK_INDEX", "jnp.arange")
def cross_entropy_by_a_local_iota(logits, labels):
    z = shifted(logits)
    logit = jnp.where(labels[:, None] == jnp.arange(z.shape[-1]), z, 0.0).sum(-1)
    return log_normalizer(z) - lax.psum(logit, "tp")


@right(*LOSS[:2], S1, **UNTRACKED)
def gradient_of_cross_entropy(logits, labels):
    def loss(logits):
        z = shifted(logits)
        return jnp.mean(log_normalizer(z, reduce_from) - label_logit(z, labels, reduce_from))

    return jax.grad(loss)(logits)


@right(*LOSS[:2], S1, **TRACKED)
@wrong(*LOSS[:2], S1, "LAYOUT_SCALE", "", **UNTRACKED)
def gradient_of_cross_entropy_by_psum(logits, labels):
    def loss(logits):
        z = shifted(logits)
        return jnp.mean(log_normalizer(z) - label_logit(z, labels))

    return jax.grad(loss)(logits)


@right(*LOSS[:2], S1)
def gradient_of_cross_entropy_by_its_formula(logits, labels):
    z = shifted(logits)
    probabilities = jnp.exp(z - log_normalizer(z)[:, None])
    own, local = own_labels(logits, labels)
    rows = jnp.arange(z.shape[0])
    return probabilities.at[rows, local].add(-own.astype(z.dtype)) / z.shape[0]


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
