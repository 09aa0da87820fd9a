"""Mistakes that were found in Megatron-LM, DeepSpeed, ColossalAI and others, in their forward
computations: each beside the program that its fix made of it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import S0, S1, Case, Programs, R, f32, mask

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong

# Label smoothing over a vocabulary that is sliced (Megatron-LM 7452, 737): the smoothed loss needs
# the vocabulary's size and the mean log-probability over all of it.
SMOOTHED = (f32(6, 24), f32(6)), (S1, R), R


def log_probabilities(logits):
    top = lax.pmax(lax.stop_gradient(logits.max(-1, keepdims=True)), "tp")
    e = jnp.exp(logits - top)
    return logits - top - jnp.log(lax.psum(e.sum(-1, keepdims=True), "tp"))


@right(*SMOOTHED)
def smoothing_over_the_vocabulary(logits, loss):
    vocabulary = logits.shape[-1] * lax.axis_size("tp")
    smoothing = 0.1 * vocabulary / (vocabulary - 1)
    mean = lax.pmean(log_probabilities(logits).mean(-1), "tp")
    return (1 - smoothing) * loss - smoothing * mean


@wrong(*SMOOTHED, "LAYOUT_SCALE", "(1 - smoothing) * loss - smoothing * mean")
def smoothing_by_the_local_vocabulary(logits, loss):
    vocabulary = logits.shape[-1]
    smoothing = 0.1 * vocabulary / (vocabulary - 1)
    mean = lax.pmean(log_probabilities(logits).mean(-1), "tp")
    return (1 - smoothing) * loss - smoothing * mean


@wrong(*SMOOTHED, "LAYOUT_RESULT_PARTIAL", "log_probabilities(logits).mean(-1)")
def smoothing_by_the_local_mean(logits, loss):
    vocabulary = logits.shape[-1] * lax.axis_size("tp")
    smoothing = 0.1 * vocabulary / (vocabulary - 1)
    mean = log_probabilities(logits).mean(-1)
    return (1 - smoothing) * loss - smoothing * mean


# Token losses under a mask (Megatron-LM 7452, 7513, 4590): ranks hold unevenly many valid tokens.
MASKED = (f32(24, 10), mask(24, 10)), (S0, S0), R


@right(*MASKED)
def sum_over_all_by_count_of_all(losses, valid):
    total = lax.psum(jnp.sum(losses * valid), "tp")
    return total / jnp.maximum(lax.psum(jnp.sum(valid), "tp"), 1)


@right(*MASKED)
def sum_and_count_in_one_collective(losses, valid):
    sums = lax.psum(jnp.stack([jnp.sum(losses * valid), jnp.sum(valid.astype(jnp.float32))]), "tp")
    return sums[0] / sums[1]


@wrong(*MASKED, "LAYOUT_PARTIAL_NONLINEAR", "/ jnp.sum(valid)")
def mean_of_the_local_means(losses, valid):
    mean = jnp.sum(losses * valid) / jnp.sum(valid)
    return lax.pmean(mean, "tp")


@wrong(*MASKED, "LAYOUT_PARTIAL_NONLINEAR", "jnp.maximum(count, 1)")
def mean_of_the_local_means_of_masked_rows(losses, valid):
    count = jnp.sum(valid)
    return lax.psum(jnp.sum(losses * valid), "tp") / jnp.maximum(count, 1)


@wrong(*MASKED, "LAYOUT_PARTIAL_NONLINEAR", "jnp.mean(losses, where=valid)")
def mean_where_valid(losses, valid):
    return lax.pmean(jnp.mean(losses, where=valid), "tp")


@wrong(*MASKED, "LAYOUT_SCALE", 'lax.pmean(jnp.sum(losses * valid), "tp")')
def average_of_sums_by_count_of_all(losses, valid):
    total = lax.pmean(jnp.sum(losses * valid), "tp")
    return total / lax.psum(jnp.sum(valid), "tp")


# Clipping by a norm (ColossalAI 2192, tt-metal 35284): every rank must scale by the same number.
GRADIENT = (f32(24, 10),), (S0,), S0


@right(*GRADIENT)
def clipped_by_the_norm(g):
    norm = jnp.sqrt(lax.psum(jnp.sum(g * g), "tp"))
    return g * jnp.minimum(1.0, 0.5 / (norm + 1e-6))


@right(*GRADIENT)
def clipped_by_the_norm_if_it_is_large(g):
    norm = jnp.sqrt(lax.psum(jnp.sum(jnp.square(g)), "tp"))
    return jnp.where(norm > 0.5, g / norm * 0.5, g)


@wrong(*GRADIENT, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sqrt(jnp.sum(g * g))")
def clipped_by_this_ranks_norm(g):
    norm = jnp.sqrt(jnp.sum(g * g))
    return g * jnp.minimum(1.0, 0.5 / (norm + 1e-6))


@wrong(*GRADIENT, "LAYOUT_PARTIAL_NONLINEAR", "jnp.linalg.norm(g)")
def clipped_by_the_sum_of_norms(g):
    norm = lax.psum(jnp.linalg.norm(g), "tp")
    return g * jnp.minimum(1.0, 0.5 / (norm + 1e-6))


# Auxiliary losses are means that are weighted by a number of tokens (Megatron-LM 5047).
ROUTED = (f32(24), f32(24, 8)), (S0, S0), R


def z_loss(logits):
    return lax.pmean(jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2), "tp")


@right(*ROUTED)
def z_loss_by_the_count_of_all(losses, logits):
    tokens = losses.shape[0] * lax.axis_size("tp")
    return (lax.psum(jnp.sum(losses), "tp") + 0.1 * z_loss(logits) * tokens) / tokens


@wrong(*ROUTED, "LAYOUT_SCALE", "total + 0.1 * z_loss(logits) * losses.shape[0]")
def z_loss_by_the_local_count(losses, logits):
    tokens = losses.shape[0] * lax.axis_size("tp")
    total = lax.psum(jnp.sum(losses), "tp")
    return (total + 0.1 * z_loss(logits) * losses.shape[0]) / tokens


@wrong(*ROUTED, "LAYOUT_SCALE", "losses.shape[0] / tokens")
def aux_loss_by_local_and_global_count(losses, logits):
    tokens = losses.shape[0] * lax.axis_size("tp")
    return 0.1 * z_loss(logits) * losses.shape[0] / tokens


# Load balance of experts (Megatron-LM 3768): the product of two means over all tokens.
BALANCE = (f32(24, 8),), (S0,), R


def chosen_and_probability(logits):
    probability = jax.nn.softmax(logits, axis=-1)
    chosen = (logits == logits.max(-1, keepdims=True)).astype(jnp.float32)
    return chosen.mean(0), probability.mean(0)


@right(*BALANCE)
def balance_of_the_global_means(logits):
    chosen, probability = chosen_and_probability(logits)
    return 8 * jnp.sum(lax.pmean(chosen, "tp") * lax.pmean(probability, "tp"))


@right(*BALANCE)
def balance_with_a_global_mean_and_a_local_one(logits):
    chosen, probability = chosen_and_probability(logits)
    return lax.pmean(8 * jnp.sum(lax.pmean(chosen, "tp") * probability), "tp")


@wrong(*BALANCE, "LAYOUT_PARTIAL_NONLINEAR", "chosen * probability")
def balance_of_the_local_products(logits):
    chosen, probability = chosen_and_probability(logits)
    return lax.pmean(8 * jnp.sum(chosen * probability), "tp")


# RMSNorm of the query over all heads, of which a rank has some (gpt-neox 1424).
QUERY = (f32(6, 16), f32(16, 24)), (R, S1), S1


@right(*QUERY)
def query_by_the_rms_of_all_heads(x, w):
    q = x @ w
    square = lax.pmean(jnp.mean(q**2, axis=-1, keepdims=True), "tp")
    return q * lax.rsqrt(square + 1e-6)


@right(*QUERY)
def query_by_the_rms_of_each_head(x, w):
    q = (x @ w).reshape(x.shape[0], -1, 2)
    return (q * lax.rsqrt(jnp.mean(q**2, axis=-1, keepdims=True) + 1e-6)).reshape(x.shape[0], -1)


@wrong(*QUERY, "LAYOUT_PARTIAL_NONLINEAR", "lax.rsqrt")
def query_by_the_rms_of_its_own_heads(x, w):
    q = x @ w
    return q * lax.rsqrt(jnp.mean(q**2, axis=-1, keepdims=True) + 1e-6)


# Muon orthogonalizes a whole matrix (DeepSpeed 8384): Newton-Schulz steps on its Gram matrix.
MUON = (f32(24, 6),), (S0,), S0


def newton_schulz(x, gram):
    for a, b, c in ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377)):
        g = gram(x)
        x = a * x + x @ (b * g + c * g @ g)
    return x


@right(*MUON)
def muon_by_the_gram_matrix_of_all_rows(g):
    x = g / (jnp.sqrt(lax.psum(jnp.sum(g * g), "tp")) + 1e-7)
    return newton_schulz(x, lambda x: lax.psum(x.T @ x, "tp"))


@wrong(*MUON, "LAYOUT_PARTIAL_NONLINEAR", "c * g @ g")
def muon_by_the_gram_matrix_of_a_shard(g):
    x = g / (jnp.sqrt(lax.psum(jnp.sum(g * g), "tp")) + 1e-7)
    return newton_schulz(x, lambda x: x.T @ x)


@wrong(*MUON, "LAYOUT_PARTIAL_NONLINEAR", "jnp.linalg.norm(g)")
def muon_by_the_norm_of_a_shard(g):
    x = g / (jnp.linalg.norm(g) + 1e-7)
    return newton_schulz(x, lambda x: lax.psum(x.T @ x, "tp"))


# A bias that every rank adds before the sum (torchtitan 4332).
BIASED = (f32(6, 24), f32(24, 12), f32(12)), (S1, S0, R), R


@right(*BIASED)
def share_of_the_bias_before_the_sum(x, w, b):
    return lax.psum(x @ w + b / lax.axis_size("tp"), "tp")


@wrong(*BIASED, "LAYOUT_COUNTED", "x @ w + b", cure="add 'b' after the sum")
def bias_before_the_sum(x, w, b):
    return lax.psum(x @ w + b, "tp")


# A factor that fits the groups of one and four ranks, and no other.
@wrong((f32(16),), (S0,), R, "LAYOUT_SCALE", "")
def factor_that_fits_two_sizes(x):
    own, n = x.shape[0], lax.axis_size("tp")
    return lax.psum(jnp.sum(x), "tp") * (5 * own - 16) * n**2


@right((f32(24),), (S0,), R)
def factor_that_fits_every_size(x):
    own, n = x.shape[0], lax.axis_size("tp")
    return lax.psum(jnp.sum(x), "tp") * (own * n) / 24


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
