"""Optimizers and losses of optax inside a per-rank training step, as they are.

Where every rank holds all parameters, all of them compute the same on every rank. Where
parameters are sliced, those that are pointwise do too; what takes a norm or a mean of a parameter,
or of all of them, would take that of the rank's own slice.
"""

import jax
import jax.numpy as jnp
import optax
import pytest
from abstract_state import by_path, named, whole
from jax import lax
from optax import contrib
from programs import S0, S1, Programs, R, f32, i32

from jaxcc.layout import LayoutError, check

PARAMS = {"up": f32(8, 4), "bias": f32(4), "down": f32(4, 8)}
SLICED = {"up": S1, "bias": S0, "down": S0}
RATE = 0.1
KINDS = {"up": "matrix", "bias": "vector", "down": "matrix"}

POINTWISE = {
    "sgd": optax.sgd(RATE),
    "momentum": optax.sgd(RATE, 0.9, nesterov=True),
    "sign_sgd": optax.sign_sgd(RATE),
    "adam": optax.adam(RATE),
    "adam_bf16": optax.adam(RATE, mu_dtype=jnp.bfloat16),
    "nadam": optax.nadam(RATE),
    "adamw": optax.adamw(RATE, mask={"up": True, "bias": False, "down": True}),
    "adamax": optax.adamax(RATE),
    "amsgrad": optax.amsgrad(RATE),
    "adabelief": optax.adabelief(RATE),
    "adadelta": optax.adadelta(RATE),
    "adagrad": optax.adagrad(RATE),
    "adan": optax.adan(RATE),
    "ademamix": contrib.ademamix(RATE),
    "acprop": contrib.acprop(RATE),
    "cocob": contrib.cocob(),
    "lion": optax.lion(RATE),
    "radam": optax.radam(RATE),
    "rmsprop": optax.rmsprop(RATE, momentum=0.9),
    "rprop": optax.rprop(RATE),
    "yogi": optax.yogi(RATE),
    "schedule_free": contrib.schedule_free_adamw(RATE),
    "optimistic_adam": optax.optimistic_adam_v2(RATE),
    "clip": optax.chain(optax.clip(0.1), optax.adam(RATE)),
    "ema": optax.chain(optax.ema(0.9), optax.sgd(RATE)),
    "apply_every": optax.chain(optax.apply_every(3), optax.sgd(RATE)),
    "multi_steps": optax.MultiSteps(optax.adam(RATE), 3).gradient_transformation(),
    "conditional": optax.conditionally_transform(
        optax.adam(RATE), lambda step, **_: jnp.greater(step, 2)
    ),
    "masked": optax.masked(optax.adam(RATE), {"up": True, "bias": False, "down": True}),
    "partition": optax.partition(
        {"matrix": optax.adam(RATE), "vector": optax.set_to_zero()}, KINDS
    ),
    "warmup": optax.adamw(optax.warmup_cosine_decay_schedule(0.0, RATE, 3, 20)),
    "exponential": optax.sgd(optax.exponential_decay(RATE, 3, 0.5, staircase=True)),
    "piecewise": optax.sgd(optax.piecewise_constant_schedule(RATE, {3: 0.1, 6: 0.5})),
    "one_cycle": optax.sgd(optax.cosine_onecycle_schedule(10, RATE)),
    "hyperparameters": optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(0.0, RATE, 3)),
    "nonnegative": optax.chain(optax.sgd(RATE), optax.keep_params_nonnegative()),
}
# With the finding that each makes of sliced parameters.
NONLINEAR, COUNTED, RANDOM = "LAYOUT_PARTIAL_NONLINEAR", "LAYOUT_COUNTED", "LAYOUT_RANDOM"
RESULT, TRACE = "LAYOUT_RESULT_PARTIAL", "LAYOUT_TRACE"
BY_NORM = {
    "adafactor": (optax.adafactor(RATE), NONLINEAR),
    "adafactor_factored": (optax.adafactor(RATE, min_dim_size_to_factor=2), TRACE),
    "fromage": (optax.fromage(RATE), NONLINEAR),
    "lamb": (optax.lamb(RATE), NONLINEAR),
    "lars": (optax.lars(RATE), NONLINEAR),
    "novograd": (optax.novograd(RATE), NONLINEAR),
    "muon": (contrib.muon(RATE), NONLINEAR),
    "prodigy": (contrib.prodigy(RATE), COUNTED),
    "dadapt": (contrib.dadapt_adamw(RATE), COUNTED),
    "dog": (contrib.dog(RATE), NONLINEAR),
    "mechanize": (contrib.mechanize(optax.sgd(RATE)), NONLINEAR),
    "sm3": (optax.sm3(RATE), TRACE),
    "clip_by_global_norm": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE)),
        NONLINEAR,
    ),
    "clip_by_block_rms": (optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(RATE)), NONLINEAR),
    "adaptive_clip": (optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(RATE)), NONLINEAR),
    "normalized": (optax.chain(optax.normalize_by_update_norm(), optax.sgd(RATE)), NONLINEAR),
    "centralized": (optax.chain(optax.centralize(), optax.sgd(RATE)), NONLINEAR),
    "trust_ratio": (optax.chain(optax.scale_by_trust_ratio(), optax.sgd(RATE)), NONLINEAR),
    "if_finite": (optax.apply_if_finite(optax.adam(RATE), 3), NONLINEAR),
    "skip_not_finite": (
        optax.MultiSteps(
            optax.sgd(RATE), 2, should_skip_update_fn=optax.skip_not_finite
        ).gradient_transformation(),
        NONLINEAR,
    ),
    "zero_nans": (optax.chain(optax.zero_nans(), optax.sgd(RATE)), RESULT),
    "noise": (optax.chain(optax.add_noise(0.01, 0.5, key=1), optax.sgd(RATE)), RANDOM),
    "flattened": (optax.flatten(optax.adam(RATE)), TRACE),
}
ALL = {**POINTWISE, **{name: optimizer for name, (optimizer, _) in BY_NORM.items()}}


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["up"] + params["bias"])
    return lax.pmean(jnp.mean((hidden @ params["down"] - y) ** 2), "tp")


def state_of(optimizer):
    return whole(jax.eval_shape(optimizer.init, whole(PARAMS)))


def step_of(optimizer):
    """A step of data-parallel training."""

    def step(params, state, x, y):
        grads = lax.pmean(jax.grad(loss)(params, x, y), "tp")
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def update_of(optimizer):
    """The update alone, by gradients that are given."""

    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return update


def like_parameters(path, leaf):
    """The layout of a leaf of a state: its parameter's, if it has the parameter's shape."""
    for name, layout in SLICED.items():
        if path.endswith(f"['{name}']") and leaf.shape == PARAMS[name].shape:
            return layout
    return R


# An optimizer has no part in what the flag changes, which is the gradient.
MODES = [
    *((name, True) for name in ALL),
    *((name, False) for name in ("adam", "lamb", "clip_by_global_norm")),
]


@pytest.mark.parametrize("name, check_vma", MODES)
def test_data_parallel(name, check_vma):
    """Every rank ends with the parameters and the state of a group of one."""
    check(
        step_of(ALL[name]),
        PARAMS,
        state_of(ALL[name]),
        f32(8, 8),
        f32(8, 8),
        mesh={"tp": 4},
        in_layouts=(R, R, S0, S0),
        out_layouts=R,
        check_vma=check_vma,
    )


PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong

for _name, _optimizer in POINTWISE.items():
    _state = state_of(_optimizer)
    _layouts = by_path(like_parameters, _state)
    _ins, _outs = (SLICED, _layouts, SLICED), (SLICED, _layouts)
    right((PARAMS, _state, PARAMS), _ins, _outs, modes=(False,))(
        named(_name, update_of(_optimizer))
    )


@pytest.mark.parametrize("name", BY_NORM)
def test_norm_of_a_slice(name):
    """Refused, since each rank would scale its slice by a number of its own."""
    optimizer, code = BY_NORM[name]
    state = state_of(optimizer)
    layouts = by_path(like_parameters, state)
    with pytest.raises(LayoutError, match=code):
        check(
            update_of(optimizer),
            PARAMS,
            state,
            PARAMS,
            mesh={"tp": 4},
            in_layouts=(SLICED, layouts, SLICED),
            out_layouts=(SLICED, layouts),
        )


BLOCKS = (f32(8, 4), f32(8, 4)), (S0, S0)


@wrong(*BLOCKS, S0, NONLINEAR, "")
def trust_ratio_of_a_slice(params, grads):
    return norm_update(params, grads, optax.scale_by_trust_ratio())


@wrong(*BLOCKS, S0, NONLINEAR, "")
def global_norm_of_a_slice(params, grads):
    return norm_update(params, grads, optax.clip_by_global_norm(1.0))


@wrong(*BLOCKS, S0, NONLINEAR, "")
def adafactor_of_a_slice(params, grads):
    return norm_update(params, grads, optax.adafactor(1.0))


def norm_update(params, grads, optimizer):
    return optimizer.update(grads, optimizer.init(params), params)[0]


@right(*BLOCKS, S0)
def global_norm_of_all_slices(params, grads):
    norm = jnp.sqrt(lax.psum(optax.tree.norm(grads, squared=True), "tp"))
    return params - RATE * grads / jnp.maximum(norm, 1.0)


def finite(*trees):
    return jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in trees]))


@right(*BLOCKS, (S0, R))
def step_if_finite_everywhere(params, grads):
    ok = lax.pmin(finite(jnp.log(params + 1.5), grads).astype(jnp.int32), "tp")
    return jnp.where(ok == 1, params - grads, params), ok


@right(*BLOCKS, R)
def any_not_finite(params, grads):
    bad = ~jnp.isfinite(jnp.log(params + 1.5)).all() | (grads > 2.5).any()
    return lax.pmax(bad.astype(jnp.float32), "tp")


@wrong(*BLOCKS, S0, NONLINEAR, "jnp.where(finite(jnp.log(params + 1.5)), params - grads, params)")
def step_if_finite_here(params, grads):
    return jnp.where(finite(jnp.log(params + 1.5)), params - grads, params)


@wrong((f32(4, 8),), (S0,), R, NONLINEAR, "(x > 0).all(0) | (x <= 0).all(0)")
def either_of_two_pending(x):
    alike = (x > 0).all(0) | (x <= 0).all(0)
    return lax.pmin(alike.astype(jnp.int32), "tp")


# Losses -------------------------------------------------------------------------------------------

LOGITS, TARGETS, IDS = f32(8, 6), f32(8, 6), i32(8, below=6)
LOSSES = {
    "softmax_cross_entropy": lambda x, y: optax.softmax_cross_entropy(x, jax.nn.softmax(y)),
    "safe_softmax_cross_entropy": lambda x, y: optax.safe_softmax_cross_entropy(
        x, jax.nn.softmax(y)
    ),
    "sigmoid_binary_cross_entropy": lambda x, y: optax.sigmoid_binary_cross_entropy(x, y > 0),
    "sigmoid_focal_loss": lambda x, y: optax.sigmoid_focal_loss(x, y > 0, alpha=0.3),
    "poly_loss_cross_entropy": lambda x, y: optax.losses.poly_loss_cross_entropy(
        x, jax.nn.softmax(y)
    ),
    "squared_error": optax.squared_error,
    "l2_loss": optax.l2_loss,
    "huber_loss": optax.huber_loss,
    "log_cosh": optax.log_cosh,
    "hinge_loss": lambda x, y: optax.hinge_loss(x, jnp.sign(y)),
    "cosine_distance": lambda x, y: optax.cosine_distance(x, y, epsilon=1e-3),
    "kl_divergence": lambda x, y: optax.kl_divergence(jax.nn.log_softmax(x), jax.nn.softmax(y)),
    "generalized_kl_divergence": lambda x, y: optax.losses.generalized_kl_divergence(
        jax.nn.log_softmax(x), jax.nn.softmax(y)
    ),
    "ranking_softmax_loss": lambda x, y: optax.losses.ranking_softmax_loss(x, y, reduce_fn=None),
    "with_integer_labels": lambda x, y: optax.softmax_cross_entropy_with_integer_labels(
        x, y.argmax(-1)
    ),
    "multiclass_hinge_loss": lambda x, y: optax.losses.multiclass_hinge_loss(x, y.argmax(-1)),
    "smoothed_labels": lambda x, y: optax.softmax_cross_entropy(
        x, optax.smooth_labels(jax.nn.one_hot(y.argmax(-1), 6), 0.1)
    ),
    "ctc_loss": lambda x, y: optax.ctc_loss(
        jnp.broadcast_to(x[:, None], (x.shape[0], 5, 6)),
        jnp.zeros((x.shape[0], 5)),
        jnp.abs(y[:, :3]).astype(jnp.int32) + 1,
        jnp.zeros((x.shape[0], 3)),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name):
    """Of a batch that is sliced, with the gradient of the mean over all of it."""

    def mean(x, y):
        return jnp.mean(LOSSES[name](x, y))

    def f(x, y):
        value, grad = jax.value_and_grad(mean)(x, y)
        return lax.pmean(value, "tp"), grad / lax.axis_size("tp")

    check(
        f,
        LOGITS,
        TARGETS,
        mesh={"tp": 4},
        in_layouts=(S0, S0),
        out_layouts=(R, S0),
        check_vma=False,
    )


@wrong((f32(8, 24), f32(8, 24)), (S1, S1), R, NONLINEAR, "")
def cross_entropy_of_sliced_logits(x, y):
    return lax.psum(optax.softmax_cross_entropy(x, jnp.abs(y)), "tp")


@wrong((LOGITS, TARGETS), (S0, S0), R, "LAYOUT_SCALE", "")
def mean_loss_summed(x, y):
    return lax.psum(optax.l2_loss(x, y).mean(), "tp")


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case):
    case.verify()


@pytest.mark.parametrize(
    "case", [c for c in PROGRAMS.runs() if c.f.__name__ not in POINTWISE], ids=str
)
def test_truth(case):
    case.run()
