"""A small language model on data- and tensor-parallel ranks: its loss, and all its gradients."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from megatron import copy_to, reduce_from
from programs import S0, S1, Case, Programs, R, f32, i32

from jaxcc.layout import on

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
TRACKED, UNTRACKED = {"modes": (True,)}, {"modes": (False,)}


MODEL = {"table": f32(24, 8), "scale": f32(8), "up": f32(8, 24), "down": f32(24, 8)}
MODEL_IN = {"table": on(tp=S0), "scale": R, "up": on(tp=S1), "down": on(tp=S0)}
TRAINED = (i32(4, 6, below=24), i32(4, 6, below=24), MODEL), (on(dp=S0), on(dp=S0), MODEL_IN)
TWO_AXES = {"sizes": (("dp", 2), ("tp", 2))}


def total(x):
    return lax.psum(x, "tp")


def own_rows(ids, table):
    local = ids - lax.axis_index("tp") * table.shape[0]
    own = (local >= 0) & (local < table.shape[0])
    return own, jnp.where(own, local, 0)


def model_loss(ids, labels, p, leave=total, enter=lambda x: x):
    """The mean over a rank's tokens of the cross-entropy over the whole vocabulary."""
    own, local = own_rows(ids, p["table"])
    x = leave(jnp.where(own[..., None], p["table"][local], 0.0))
    h = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * p["scale"]
    x = x + leave(jnp.tanh(enter(h) @ p["up"]) @ p["down"])
    logits = enter(x) @ p["table"].T
    logits = logits - lax.pmax(lax.stop_gradient(logits.max(-1)), "tp")[..., None]
    own, local = own_rows(labels, p["table"])
    picked = jnp.take_along_axis(logits, local[..., None], axis=-1)[..., 0]
    picked = leave(jnp.where(own, picked, 0.0))
    return jnp.mean(jnp.log(leave(jnp.exp(logits).sum(-1))) - picked)


@right(*TRAINED, R, **TWO_AXES)
def loss_of_a_language_model(ids, labels, p):
    return lax.pmean(model_loss(ids, labels, p), "dp")


@wrong(*TRAINED, R, "LAYOUT_SCALE", "", **TWO_AXES)
def loss_summed_over_the_batch(ids, labels, p):
    return lax.psum(model_loss(ids, labels, p), "dp")


@right(*TRAINED, (R, MODEL_IN), **TWO_AXES, **TRACKED)
def gradient_of_a_language_model(ids, labels, p):
    def loss(p):
        return lax.pmean(model_loss(ids, labels, p), "dp")

    return jax.value_and_grad(loss)(p)


@right(*TRAINED, (R, MODEL_IN), **TWO_AXES, **UNTRACKED)
def gradient_of_a_language_model_of_conjugate_pairs(ids, labels, p):
    def loss(p):
        return model_loss(ids, labels, p, reduce_from, copy_to)

    value, g = jax.value_and_grad(loss)(p)
    return lax.pmean((value, g), "dp")


@wrong(*TRAINED, (R, MODEL_IN), "LAYOUT_SCALE", "", **TWO_AXES, **UNTRACKED)
def gradient_of_a_language_model_summed_over_the_batch(ids, labels, p):
    def loss(p):
        return model_loss(ids, labels, p, reduce_from, copy_to)

    value, g = jax.value_and_grad(loss)(p)
    return lax.pmean(value, "dp"), lax.psum(g, "dp")


@wrong(
    *TRAINED,
    (R, MODEL_IN),
    "LAYOUT_PARTIAL_NONLINEAR",
    "jnp.tanh(enter(h)",
    **TWO_AXES,
    **UNTRACKED,
)
def gradient_of_a_language_model_without_copy_to(ids, labels, p):
    def loss(p):
        return model_loss(ids, labels, p, reduce_from)

    value, g = jax.value_and_grad(loss)(p)
    return lax.pmean((value, g), "dp")


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case: Case) -> None:
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_verdict_is_what_running_shows(case: Case) -> None:
    case.run()
