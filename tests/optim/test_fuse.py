"""jaxcc.optim.fuse against the optax transformation that it fuses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fused import SHAPES, agree, fused, mean, on_ranks, randoms, without_kernels
from oracles import close, mesh_of

import jaxcc.optim
from jaxcc import _compat

# jaxlib 0.11 crashes on empty arrays in shard_map, with or without jaxcc; optax makes one here.
REDUCES_NOTHING = ["finite"] if _compat.JAX_VERSION >= (0, 12) else []
WARM_UP = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 8)


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def labels_by_name(params: Any) -> Any:
    return {name: "adam" if value.ndim > 1 else "sgd" for name, value in params.items()}


def unless_scalar(params: Any) -> Any:
    return {name: value.ndim > 0 for name, value in params.items()}


def keep_last() -> Any:
    """Adds what came in the step before, which is the state."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(jnp.add, updates, state), updates

    return optax.GradientTransformation(lambda params: optax.tree.zeros_like(params), update)


OPTAX: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(1e-2),
    "nesterov": lambda: optax.sgd(1e-2, 0.9, nesterov=True),
    "adagrad": lambda: optax.adagrad(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "lion": lambda: optax.lion(1e-3),
    "adamw with a mask": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=matrices),
    "lamb": lambda: optax.lamb(1e-2, weight_decay=0.1),
    "lars": lambda: optax.lars(1e-2),
    "novograd": lambda: optax.novograd(1e-2),
    "norm, schedule": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(WARM_UP, weight_decay=0.1)
    ),
    "clip, ema": lambda: optax.chain(optax.clip(0.5), optax.sgd(1e-2), optax.ema(0.9)),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=WARM_UP),
    "several": lambda: optax.multi_transform(
        {"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-1, 0.9), "none": optax.set_to_zero()},
        {"a": "adam", "scalar": "none", "one": "adam", "big": "sgd"},
    ),
    "masked": lambda: optax.masked(optax.adam(1e-2), matrices),
    "every second": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "zeros for NaN": lambda: optax.chain(optax.zero_nans(), optax.adam(1e-2)),
    "labels by name": lambda: optax.multi_transform(
        {"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-1, 0.9)}, labels_by_name
    ),
    "a mask by name": lambda: optax.masked(
        optax.MultiSteps(optax.lamb(1e-2), 2).gradient_transformation(), unless_scalar
    ),
    "last gradients": lambda: optax.chain(keep_last(), optax.sgd(1e-2)),
}


@pytest.mark.parametrize("name", OPTAX)
def test_unfused_agrees_with_optax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tx = OPTAX[name]()
    agree(without_kernels(monkeypatch, fused(tx, 2)), tx, 2, steps=3)


@pytest.mark.parametrize(
    "name",
    ["lamb", "norm, schedule", "rmsprop", "several", "zeros for NaN", "labels by name",
     "last gradients"],
)  # fmt: skip
def test_kernels_agree_with_optax(name: str) -> None:
    tx = OPTAX[name]()
    agree(fused(tx, 2), tx, 2)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("form", ["step", "update"])
def test_on_other_groups(n: int, form: str) -> None:
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.lamb(1e-2))
    agree(fused(tx, n), tx, n, form=form, steps=3)


def test_gradients_that_are_not_finite_do_what_they_do_in_optax() -> None:
    def spoilt(grads: Any) -> Any:
        grads["a"][0, 1, 1], grads["big"][1, 3, 7] = np.nan, np.inf
        return grads

    adam = optax.adam(1e-2)
    agree(fused(adam, 2), adam, 2, steps=2, change=spoilt)
    finite = optax.apply_if_finite(adam, 3)
    agree(fused(finite, 2), finite, 2, steps=2, change=spoilt)


@pytest.mark.parametrize("shapes", [{}, {"none": (0, 3)}, {"none": (0,), "other": (2, 0)}])
@pytest.mark.parametrize("name", ["lamb", "norm, schedule", "labels by name", *REDUCES_NOTHING])
def test_trees_without_elements(name: str, shapes: Any) -> None:
    tx = OPTAX[name]()
    agree(fused(tx, 2), tx, 2, shapes=shapes, steps=2)


def test_every_rank_gets_the_same_bits() -> None:
    mesh, rng = mesh_of(4, "dp"), np.random.default_rng(1)
    tx = jaxcc.optim.lamb(1e-2, axis_name="dp", mesh=mesh)
    start, grads = randoms(rng, SHAPES), randoms(rng, SHAPES, (4,))
    params, _ = on_ranks(tx, mesh, start)(grads, tx.init(start), start)
    for x in params.values():
        assert len({np.asarray(s.data).tobytes() for s in x.addressable_shards}) == 1


def test_one_kernel_serves_all_parameters_that_are_computed_alike() -> None:
    tx = fused(optax.lamb(1e-2), 2)
    start = randoms(np.random.default_rng(2), {"a": (4, 3), "b": (5,), "c": (2, 2, 2)})
    grads = jax.tree.map(lambda p: jnp.ones((2, *p.shape)), start)
    text = on_ranks(tx, mesh_of(2, "dp"), start).lower(grads, tx.init(start), start).as_text()
    assert text.count("@jaxcc_fused") == 2
    # The norms are totals of the first kernel.
    assert text.count("stablehlo.all_gather") == 0


def test_master_copies_keep_what_the_parameters_cannot() -> None:
    mesh, rng = mesh_of(2, "dp"), np.random.default_rng(3)
    tx = fused(optax.adamw(1e-3), 2, master=jnp.float32)
    reference: Any = optax.adamw(1e-3)
    half = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), tree)  # noqa: E731
    start = half(randoms(rng, SHAPES))
    wide: Any = jax.tree.map(lambda p: p.astype(jnp.float32), start)
    params, state, whole = start, tx.init(start), reference.init(wide)
    run, by_update = on_ranks(tx, mesh, start), on_ranks(tx, mesh, start, "update")
    for _ in range(4):
        grads = half(randoms(rng, SHAPES, (2,)))
        updated, _ = by_update(grads, state, params)
        params, state = run(grads, state, params)
        # The sum over two ranks is rounded once.
        updates, whole = reference.update(mean(grads, jnp.bfloat16), whole, wide)
        wide = optax.apply_updates(wide, updates)
        for k in SHAPES:
            assert params[k].dtype == jnp.bfloat16
            np.testing.assert_array_equal(np.asarray(params[k]), np.asarray(updated[k]))
    masters = tx.save_form(state, start).master
    for k in SHAPES:
        assert masters[k].dtype == jnp.float32
        close(masters[k], wide[k])
        np.testing.assert_array_equal(np.asarray(params[k]), np.asarray(half(masters)[k]))


def refusal(tx: Any, shapes: Any) -> str:
    start = randoms(np.random.default_rng(0), shapes)
    made = fused(tx, 2)
    grads = jax.tree.map(lambda p: jnp.ones((2, *p.shape)), start)
    with pytest.raises(jaxcc.LayoutError) as caught:
        on_ranks(made, mesh_of(2, "dp"), start).lower(grads, made.init(start), start)
    assert caught.value.code == "OPTIM_UNSUPPORTED"
    return str(caught.value)


def elementwise(f: Callable[[Any], Any]) -> Any:
    return optax.stateless(lambda updates, params: f(updates))


@pytest.mark.parametrize(
    ("text", "f"),
    [
        ("dot_general", lambda g: {**g, "a": g["a"] @ g["a"]}),
        ("reduce_sum", lambda g: {**g, "a": g["a"] - g["a"].mean(0)}),
        ("transpose", lambda g: {**g, "a": g["a"].T}),
        ("two parameters", lambda g: {**g, "a": g["a"] + g["b"]}),
        ("cumsum", lambda g: {**g, "a": jnp.cumsum(g["a"], 0)}),
    ],
)
def test_what_needs_more_than_slices_is_refused(text: str, f: Any) -> None:
    message = refusal(elementwise(f), {"a": (4, 4), "b": (4, 4)})
    assert text in message and "jax.lax.pmean(grads" in message
    if "parameter" not in text:
        assert "test_fuse.py" in message


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_the_largest_or_smallest_element_of_a_parameter(reduce: Any) -> None:
    def scaled(g: Any) -> Any:
        return jax.tree.map(lambda v: v / reduce(jnp.abs(v) + 1) - reduce(v), g)

    tx, rng = optax.chain(elementwise(scaled), optax.sgd(0.1)), np.random.default_rng()
    made, start = fused(tx, 2), randoms(rng, SHAPES)
    grads = randoms(rng, SHAPES, (2,))
    new, _ = on_ranks(made, mesh_of(2, "dp"), start)(grads, made.init(start), start)
    updates, _ = tx.update(mean(grads, jnp.float32), tx.init(start), start)
    wanted: Any = optax.apply_updates(start, updates)
    for k in SHAPES:
        close(new[k], wanted[k])


def test_optax_own_lines_are_named() -> None:
    assert "unitwise_norm" in refusal(optax.adaptive_grad_clip(0.1), {"a": (4, 4)})
    message = refusal(optax.adafactor(1e-2), {"a": (256, 256)})
    assert "reduce_sum" in message and "optax" in message


def test_a_tree_of_several_dtypes_is_one_kernel_call_a_phase() -> None:
    mesh = mesh_of(2, "dp")
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)
    rng = np.random.default_rng()
    params = {
        name: jnp.asarray(rng.normal(size=shape), jnp.bfloat16 if n % 2 else jnp.float32)
        for n, (name, shape) in enumerate(SHAPES.items())
    }
    grads = {k: jnp.asarray(rng.normal(size=(2, *p.shape)), p.dtype) for k, p in params.items()}
    run, state = on_ranks(tx, mesh, params), tx.init(params)
    assert run.lower(grads, state, params).as_text().count("@jaxcc_fused") == 1
    new, _ = run(grads, state, params)
    reference = optax.adam(1e-2)
    for name, p in params.items():
        mine = mean({name: grads[name]}, p.dtype)
        updates, _ = reference.update(mine, reference.init({name: p}))
        stepped: Any = optax.apply_updates({name: p}, updates)
        wanted = np.asarray(stepped[name], np.float64)
        tolerance = 2**-7 if p.dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(np.asarray(new[name], np.float64), wanted, tolerance, tolerance)
