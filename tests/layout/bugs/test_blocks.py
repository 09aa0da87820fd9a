"""Transformer blocks of ranks that hold some heads and some hidden units, and their gradients."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import copy_to, gather_from_sequence, reduce_from, reduce_scatter_to
from programs import S0, S1, S2, Case, Programs, R, f32

from jaxcc.layout import Sliced

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}

# A block of heads of size 4 and width 8 on 6 tokens: attention by heads, then a pair of products.
HEADS, SIZE, WIDTH, HIDDEN = 12, 2, 8, 24
BLOCK = {
    "scale1": f32(WIDTH),
    "qkv": f32(WIDTH, 3, HEADS, SIZE),
    "out": f32(HEADS, SIZE, WIDTH),
    "scale2": f32(WIDTH),
    "up": f32(WIDTH, HIDDEN),
    "bias": f32(HIDDEN),
    "down": f32(HIDDEN, WIDTH),
}
BLOCK_IN = {
    "scale1": R, "qkv": S2, "out": S0, "scale2": R, "up": S1, "bias": S0, "down": S0,
}  # fmt: skip
STACKED_IN = {
    "scale1": R, "qkv": Sliced(3), "out": S1, "scale2": R, "up": S2, "bias": S1, "down": S1,
}  # fmt: skip


def total(x):
    return lax.psum(x, "tp")


def normed(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * scale


def attention(x, qkv, out):
    """Causal attention of the heads that `qkv` and `out` hold: a term of the sum over heads."""
    q, k, v = jnp.einsum("td,dchk->chtk", x, qkv)
    scores = jnp.einsum("hqk,hmk->hqm", q, k) / jnp.sqrt(float(SIZE))
    causal = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    return jnp.einsum("hqm,hmk,hkd->qd", weights, v, out, optimize=[(0, 1), (0, 1)])


def mlp(x, p):
    return jnp.tanh(x @ p["up"] + p["bias"]) @ p["down"]


def block(x, p, enter=lambda x: x, leave=total):
    x = x + leave(attention(enter(normed(x, p["scale1"])), p["qkv"], p["out"]))
    return x + leave(mlp(enter(normed(x, p["scale2"])), p))


def to_whole(x):
    return lax.all_gather(x, "tp", axis=0, tiled=True)


def to_sequence(x):
    return lax.psum_scatter(x, "tp", scatter_dimension=0, tiled=True)


WHOLE = (f32(12, WIDTH), BLOCK), (R, BLOCK_IN), R
SEQUENCE = (f32(12, WIDTH), BLOCK), (S0, BLOCK_IN), S0
LAYER = ("scale2", "up", "bias", "down")
LAYER_IN = {name: BLOCK_IN[name] for name in LAYER}
SEQUENCE_LAYER = (f32(12, WIDTH), {name: BLOCK[name] for name in LAYER}), (S0, LAYER_IN), LAYER_IN


@right(*WHOLE)
def transformer_block(x, p):
    return block(x, p)


@right(*SEQUENCE)
def sequence_parallel_block(x, p):
    return block(x, p, to_whole, to_sequence)


@right((f32(12, WIDTH), jax.tree.map(lambda w: f32(2, *w.shape), BLOCK)), (S0, STACKED_IN), S0)
def scan_over_sequence_parallel_blocks(x, p):
    return lax.scan(lambda x, p: (block(x, p, to_whole, to_sequence), None), x, p)[0]


@wrong(*WHOLE, "LAYOUT_COUNTED", "leave(x + attention")
def residual_before_the_sum(x, p):
    leave = total
    x = leave(x + attention(normed(x, p["scale1"]), p["qkv"], p["out"]))
    return x + leave(mlp(normed(x, p["scale2"]), p))


@wrong(*WHOLE, "LAYOUT_COUNTED", "return x + mlp")
def block_without_the_last_sum(x, p):
    x = x + total(attention(normed(x, p["scale1"]), p["qkv"], p["out"]))
    return x + mlp(normed(x, p["scale2"]), p)


@wrong(*WHOLE, "LAYOUT_COUNTED", "x = x + attention")
def block_without_the_first_sum(x, p):
    x = x + attention(normed(x, p["scale1"]), p["qkv"], p["out"])
    return x + total(mlp(normed(x, p["scale2"]), p))


@wrong(*SEQUENCE, "LAYOUT_MISMATCH", "", truth=False)
def sequence_parallel_block_without_a_gather(x, p):
    y = attention(normed(x, p["scale1"]), p["qkv"], p["out"])
    return x + y / lax.axis_size("tp")


@wrong(*SEQUENCE, "LAYOUT_MISMATCH", '@ p["up"]', truth=None)
def sequence_parallel_block_with_psum_for_scatter(x, p):
    return x + total(jax.nn.gelu(normed(x, p["scale2"]) @ p["up"] + p["bias"]) @ p["down"])


@right(*WHOLE[:2], (R, BLOCK_IN), **TRACKED)
@wrong(*WHOLE[:2], (R, BLOCK_IN), "LAYOUT_SCALE", "", **UNTRACKED)
def gradient_of_a_block(x, p):
    return jax.grad(lambda x, p: jnp.mean(block(x, p) ** 2), (0, 1))(x, p)


@right(*WHOLE[:2], (R, BLOCK_IN), **UNTRACKED)
def gradient_of_a_block_of_conjugate_pairs(x, p):
    def loss(x, p):
        return jnp.mean(block(x, p, copy_to, reduce_from) ** 2)

    return jax.grad(loss, (0, 1))(x, p)


def sequence_loss(x, p):
    def enter(x):
        return gather_from_sequence(x, 0)

    y = x + reduce_scatter_to(mlp(enter(normed(x, p["scale2"])), p), 0)
    return jnp.sum(y**2)


@right(*SEQUENCE_LAYER, **UNTRACKED)
def gradient_of_a_sequence_parallel_layer(x, p):
    g = jax.grad(sequence_loss, 1)(x, p)
    return {**g, "scale2": total(g["scale2"])}


@wrong(*SEQUENCE_LAYER, "LAYOUT_RESULT_PARTIAL", "* scale", **UNTRACKED)
def gradient_of_a_sequence_parallel_layer_without_the_norms(x, p):
    return jax.grad(sequence_loss, 1)(x, p)


@wrong(*SEQUENCE_LAYER, "LAYOUT_SUM_OF_SLICES", 'lax.psum(x, "tp")', **UNTRACKED)
def gradient_of_a_sequence_parallel_layer_summed_throughout(x, p):
    return total(jax.grad(sequence_loss, 1)(x, p))


# Attention by sizes and slices that a rank takes for the whole's.
PROJECTED = (f32(6, 8), f32(8, 24), f32(8, 24), f32(8, 24)), (R, S1, S1, S1), S1


def heads(x):
    return jnp.moveaxis(x.reshape(x.shape[0], -1, SIZE), 1, 0)


def attended(q, k, v, size):
    weights = jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) / jnp.sqrt(float(size)), axis=-1)
    return jnp.moveaxis(weights @ v, 0, 1).reshape(q.shape[1], -1)


@right(*PROJECTED)
def attention_by_heads(x, wq, wk, wv):
    return attended(heads(x @ wq), heads(x @ wk), heads(x @ wv), SIZE)


@wrong(*PROJECTED, "LAYOUT_SCALE", "jax.nn.softmax")
def attention_scaled_by_the_local_width(x, wq, wk, wv):
    return attended(heads(x @ wq), heads(x @ wk), heads(x @ wv), wq.shape[1])


@wrong(*PROJECTED, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.softmax")
def attention_across_the_local_heads(x, wq, wk, wv):
    q, k, v = x @ wq, x @ wk, x @ wv
    return jax.nn.softmax(q @ k.T, axis=-1) @ v


@right((f32(6, 8), f32(8, 24), f32(8, SIZE), f32(8, SIZE)), (R, S1, R, R), S1)
def attention_with_one_head_of_keys(x, wq, wk, wv):
    return attended(heads(x @ wq), (x @ wk)[None], (x @ wv)[None], SIZE)


@wrong((f32(6, 8), f32(8, 72)), (R, S1), S1, "LAYOUT_SLICE", "jnp.split")
def attention_by_a_packed_projection(x, qkv):
    q, k, v = jnp.split(x @ qkv, 3, axis=1)
    return attended(heads(q), heads(k), heads(v), SIZE)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
