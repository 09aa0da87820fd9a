"""Keys, stages and tokens that go from rank to rank: rings, pipelines, mixtures of experts."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import S0, Case, P, Programs, R, f32

PROGRAMS = Programs(modes=(True,))
right, wrong, unproved = PROGRAMS.right, PROGRAMS.wrong, PROGRAMS.unproved


def total(x):
    return lax.psum(x, "tp")


def to_whole(x):
    return lax.all_gather(x, "tp", axis=0, tiled=True)


# Keys and values of a sliced sequence.
KEYS = (f32(5, 8), f32(24, 8), f32(24, 8)), (R, S0, S0), R


@right(*KEYS)
def attention_over_sliced_keys(q, k, v):
    s = q @ k.T
    e = jnp.exp(s - lax.pmax(s.max(1), "tp")[:, None])
    return total(e @ v) / total(e.sum(1))[:, None]


@right(*KEYS)
def attention_over_gathered_keys(q, k, v):
    k, v = to_whole(k), to_whole(v)
    return jax.nn.softmax(q @ k.T, axis=-1) @ v


@unproved(*KEYS, "LAYOUT_PARTIAL_NONLINEAR", "jnp.exp(s - top[:, None])", "pmax")
def attention_merged_from_own_softmax(q, k, v):
    s = q @ k.T
    top = s.max(1)
    e = jnp.exp(s - top[:, None])
    factor = jnp.exp(top - lax.pmax(top, "tp"))
    return total(e @ v * factor[:, None]) / total(e.sum(1) * factor)[:, None]


@wrong(*KEYS, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.softmax")
def attention_averaged_over_own_softmax(q, k, v):
    return lax.pmean(jax.nn.softmax(q @ k.T, axis=-1) @ v, "tp")


# Rings and pipelines take other steps for every number of ranks: they are tested, not proved.
TESTED = {"structure": "rank-dependent"}
CURE = 'structure="rank-dependent"'
RING = (f32(24, 8), f32(24, 8), f32(24, 8)), (S0, S0, S0), S0


def ring():
    n = lax.axis_size("tp")
    return [(rank, (rank + 1) % n) for rank in range(n)]


def attention_in_turns(q, k, v, turns):
    above, below = jnp.zeros_like(v), jnp.zeros(k.shape[0])
    for _ in range(turns):
        e = jnp.exp(q @ k.T - 8.0)
        above, below = above + e @ v, below + e.sum(1)
        k, v = lax.ppermute((k, v), "tp", ring())
    return above / below[:, None]


@right(*RING, **TESTED)
@unproved(*RING, "LAYOUT_STRUCTURE", "q @ k.T", CURE)
def ring_attention(q, k, v):
    return attention_in_turns(q, k, v, lax.axis_size("tp"))


@wrong(*RING, "LAYOUT_TESTED", "", **TESTED)
@wrong(*RING, "LAYOUT_STRUCTURE", "q @ k.T")
def ring_attention_of_too_few_turns(q, k, v):
    return attention_in_turns(q, k, v, max(1, lax.axis_size("tp") - 1))


@right((f32(24, 8),), (P,), R, **TESTED)
@unproved((f32(24, 8),), (P,), R, "LAYOUT_STRUCTURE", "held + x", CURE)
def ring_sum(x):
    held = x
    for _ in range(lax.axis_size("tp") - 1):
        x = lax.ppermute(x, "tp", ring())
        held = held + x
    return held


@wrong((f32(24, 8),), (P,), R, "LAYOUT_TESTED", "", **TESTED)
def ring_sum_of_too_many_turns(x):
    held = x
    for _ in range(lax.axis_size("tp")):
        x = lax.ppermute(x, "tp", ring())
        held = held + x
    return held


# Stages of which each rank has some: what comes from the last rank reaches the first.
STAGES = (f32(6, 8), f32(12, 8, 8)), (R, S0), R


def through_the_stages(x, stages, turns):
    for _ in range(turns):
        x = lax.scan(lambda x, stage: (jnp.tanh(x @ stage), None), x, stages)[0]
        x = lax.ppermute(x, "tp", ring())
    return lax.psum(jnp.where(lax.axis_index("tp") == 0, x, 0.0), "tp")


@right(*STAGES, modes=(False,), **TESTED)
@unproved(*STAGES, "LAYOUT_LOOP", "lax.scan", "", modes=(False,))
def pipeline_of_stages(x, stages):
    return through_the_stages(x, stages, lax.axis_size("tp"))


@wrong(*STAGES, "LAYOUT_TESTED", "", modes=(False,), **TESTED)
def pipeline_of_too_few_turns(x, stages):
    return through_the_stages(x, stages, max(1, lax.axis_size("tp") - 1))


HALO = (f32(24, 8),), (S0,), S0


@right(*HALO, **TESTED)
@unproved(*HALO, "LAYOUT_SLICE", "x[-1:]", "gather it first")
def difference_with_the_row_before(x):
    n = lax.axis_size("tp")
    edge = lax.ppermute(x[-1:], "tp", [(rank, rank + 1) for rank in range(n - 1)])
    return x - jnp.concatenate([edge, x[:-1]])


@wrong(*HALO, "LAYOUT_TESTED", "", **TESTED)
def difference_with_the_row_before_in_a_ring(x):
    edge = lax.ppermute(x[-1:], "tp", ring())
    edge = edge * (lax.axis_size("tp") > 1)
    return x - jnp.concatenate([edge, x[:-1]])


# A mixture of experts: tokens of a rank go to the ranks that hold the experts, and come back.
EXPERTS = (f32(24, 6), f32(6, 12), f32(12, 6, 5), f32(12, 5, 6)), (S0, R, S0, S0), S0


def gates(x, router):
    probabilities = jax.nn.softmax(x @ router, axis=-1)
    best = probabilities == probabilities.max(-1, keepdims=True)
    return jnp.where(best, probabilities, 0.0)


def experts(x, a, b):
    return jnp.einsum("eth,ehd->etd", jnp.tanh(jnp.einsum("etd,edh->eth", x, a)), b)


@right(*EXPERTS)
def experts_by_all_to_all(x, router, a, b):
    gate = gates(x, router)
    sent = jnp.einsum("te,td->etd", gate > 0, x)
    held = lax.all_to_all(sent, "tp", split_axis=0, concat_axis=1, tiled=True)
    back = lax.all_to_all(experts(held, a, b), "tp", split_axis=1, concat_axis=0, tiled=True)
    return x + jnp.einsum("te,etd->td", gate, back)


def sent_untiled(x, gate, together):
    n = lax.axis_size("tp")
    sent = jnp.einsum("te,td->etd", gate > 0, x)
    sent = sent.reshape(n, -1, *sent.shape[1:])
    held = lax.all_to_all(sent, "tp", split_axis=0, concat_axis=0)
    return together(held).reshape(held.shape[1], -1, x.shape[-1])


def returned_untiled(y, apart):
    n = lax.axis_size("tp")
    back = lax.all_to_all(apart(y, n), "tp", split_axis=0, concat_axis=0)
    return back.reshape(-1, *back.shape[2:])


def apart(y, n):
    return jnp.moveaxis(y.reshape(y.shape[0], n, -1, y.shape[-1]), 1, 0)


@right(*EXPERTS)
def experts_by_untiled_all_to_all(x, router, a, b):
    gate = gates(x, router)
    held = sent_untiled(x, gate, lambda held: jnp.moveaxis(held, 0, 1))
    back = returned_untiled(experts(held, a, b), apart)
    return x + jnp.einsum("te,etd->td", gate, back)


@wrong(*EXPERTS, "LAYOUT_STRUCTURE", "reshape")
def experts_without_a_transpose(x, router, a, b):
    gate = gates(x, router)
    held = sent_untiled(x, gate, lambda held: held)
    back = returned_untiled(experts(held, a, b), apart)
    return x + jnp.einsum("te,etd->td", gate, back)


@wrong(*EXPERTS, "LAYOUT_STRUCTURE", "reshape")
def experts_returned_without_a_transpose(x, router, a, b):
    gate = gates(x, router)
    held = sent_untiled(x, gate, lambda held: jnp.moveaxis(held, 0, 1))
    back = returned_untiled(
        experts(held, a, b), lambda y, n: y.reshape(n, y.shape[0], -1, y.shape[-1])
    )
    return x + jnp.einsum("te,etd->td", gate, back)


@wrong(*EXPERTS, "LAYOUT_MISMATCH", "jnp.einsum")
def experts_of_the_wrong_tokens(x, router, a, b):
    gate = gates(x, router)
    sent = jnp.einsum("te,td->etd", gate > 0, x)
    held = lax.all_to_all(sent, "tp", split_axis=0, concat_axis=1, tiled=True)
    back = experts(held, a, b)
    return x + jnp.einsum("te,etd->td", gate, back.reshape(gate.shape[1], gate.shape[0], -1))


@wrong(*EXPERTS, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.cumsum")
def experts_with_a_capacity_for_each_rank(x, router, a, b):
    gate = gates(x, router)
    place = jnp.cumsum(gate > 0, axis=0)
    gate = jnp.where(place <= 2, gate, 0.0)
    sent = jnp.einsum("te,td->etd", gate > 0, x)
    held = lax.all_to_all(sent, "tp", split_axis=0, concat_axis=1, tiled=True)
    back = lax.all_to_all(experts(held, a, b), "tp", split_axis=1, concat_axis=0, tiled=True)
    return x + jnp.einsum("te,etd->td", gate, back)


@right((f32(10, 6), *EXPERTS[0][1:]), (R, R, S0, S0), R)
def own_experts_on_all_tokens(x, router, a, b):
    own = a.shape[0]
    gate = lax.dynamic_slice_in_dim(gates(x, router), lax.axis_index("tp") * own, own, axis=1)
    y = experts(jnp.broadcast_to(x, (own, *x.shape)), a, b)
    return x + total(jnp.einsum("te,etd->td", gate, y))


@wrong((f32(10, 6), *EXPERTS[0][1:]), (R, R, S0, S0), R, "LAYOUT_STRUCTURE", ": a.shape[0]]")
def first_experts_gates_on_every_rank(x, router, a, b):
    gate = gates(x, router)[:, : a.shape[0]]
    y = experts(jnp.broadcast_to(x, (a.shape[0], *x.shape)), a, b)
    return x + total(jnp.einsum("te,etd->td", gate, y))


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
