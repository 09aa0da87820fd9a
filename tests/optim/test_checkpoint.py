"""A fused optimizer's state in checkpoints: for a group of another size, and to and from optax."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fused import fused, mean, on_ranks, randoms
from jax.sharding import AxisType
from oracles import close, mesh_of

import jaxcc

SHAPES = {"a": (7, 3), "b": (5,), "scalar": (), "odd": (83, 101)}


def transformation() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def advance(tx: Any, n: int, params: Any, state: Any, all_grads: Any) -> Any:
    """Parameters and state after a step with each of the gradients, whose mean any group takes."""
    run = on_ranks(tx, mesh_of(n, "dp"), params)
    for one in all_grads:
        params, state = run(jax.tree.map(lambda g: np.stack([g] * n), one), state, params)
    return jax.tree.map(np.asarray, params), state


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [1, 4])
def test_training_goes_on_with_another_number_of_ranks(n: int, tmp_path: Path) -> None:
    from orbax import checkpoint  # Its import is what the filter above is for.

    rng = np.random.default_rng(n)
    start, grads = randoms(rng, SHAPES), [randoms(rng, SHAPES) for _ in range(4)]
    two, other = fused(transformation(), 2), fused(transformation(), n)
    params, state = advance(two, 2, start, two.init(start), grads[:2])
    with checkpoint.StandardCheckpointer() as files:
        files.save(tmp_path / "state", two.save_form(state, params))
        files.wait_until_finished()
        like = jax.eval_shape(transformation().init, start)
        saved = files.restore(tmp_path / "state", like)
    resumed, _ = advance(other, n, params, other.load_form(saved, params), grads[2:])
    expected, _ = advance(two, 2, params, state, grads[2:])
    for k in SHAPES:
        close(resumed[k], expected[k], 1e-6)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("under_jit", [False, True])
def test_a_saved_state_has_whole_arrays_on_any_mesh(under_jit: bool, kind: AxisType) -> None:
    mesh = jax.make_mesh((2,), ("dp",), axis_types=(kind,), devices=jax.devices()[:2])
    start = randoms(np.random.default_rng(3), {**SHAPES, "even": (8, 6), "cube": (4, 3, 5)})
    tx = jaxcc.optim.fuse(optax.sgd(1e-2, 0.9), axis_name="dp", mesh=mesh, master=jnp.float32)
    with jax.set_mesh(mesh):
        state = tx.init(start)
        save = jax.jit(tx.save_form) if under_jit else tx.save_form
        saved = save(state, start)
    for k, x in start.items():
        np.testing.assert_array_equal(np.asarray(saved.master[k]), x)


def test_optax_goes_on_from_a_saved_state_and_back() -> None:
    rng = np.random.default_rng(0)
    start, grads = randoms(rng, SHAPES), [randoms(rng, SHAPES) for _ in range(3)]
    tx, plain = fused(transformation(), 2), transformation()
    state = plain.init(start)
    params: Any = start
    expected: Any = start
    whole = state
    for one in grads:
        updates, whole = plain.update(mean(jax.tree.map(lambda g: g[None], one)), whole, expected)
        expected = optax.apply_updates(expected, updates)
    params, sliced = advance(tx, 2, params, tx.load_form(state, params), grads[:2])
    updates, _ = plain.update(jax.tree.map(jnp.asarray, grads[2]), tx.save_form(sliced, start))
    for k in SHAPES:
        close(params[k] + updates[k], expected[k])


def test_optax_state_starts_the_master_copy_from_the_parameters() -> None:
    start = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.bfloat16), randoms(np.random.default_rng(1), SHAPES)
    )
    tx = fused(optax.sgd(1e-2, 0.9), 2, master=jnp.float32)
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), start)
    loaded = tx.load_form(optax.sgd(1e-2, 0.9).init(wide), start)
    for ours, fresh in zip(jax.tree.leaves(loaded), jax.tree.leaves(tx.init(start)), strict=True):
        assert ours.sharding == fresh.sharding
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(fresh))
