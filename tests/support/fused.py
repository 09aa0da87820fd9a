"""Compares a fused optimizer on several ranks with optax's on the mean gradient on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc.optim

Tree = dict[str, Any]
SHAPES = {"a": (7, 3), "scalar": (), "one": (1,), "big": (30, 257)}


def randoms(rng: np.random.Generator, shapes: Any, lead: tuple[int, ...] = ()) -> Tree:
    """f32 arrays of the given shapes, each with the leading dims `lead`."""
    return {k: rng.normal(size=lead + s).astype(np.float32) for k, s in shapes.items()}


def mean(grads: Any, dtype: Any = np.float32) -> Any:
    """The mean over the leading dim, in f32."""
    return jax.tree.map(lambda g: jnp.asarray(g, np.float32).mean(0).astype(dtype), grads)


def on_ranks(tx: Any, mesh: Any, params: Any, form: str = "step", **jit: Any) -> Any:
    """A jitted `(grads, state, params) -> (params, state)`; gradients have a leading dim of the
    group's size.
    """

    def step(grads: Any, state: Any, params: Any) -> Any:
        mine = jax.tree.map(lambda g: g[0], grads)
        if form == "step":
            return tx.step(mine, state, params)
        updates, state = tx.update(mine, state, params)
        return optax.apply_updates(params, updates), state

    specs = tx.specs(params)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P("dp"), specs, P()), out_specs=(P(), specs))
    return quick.jit(mapped, **jit)


def without_kernels(monkeypatch: pytest.MonkeyPatch, tx: Any) -> Any:
    """The transformation as it is where there can be no kernels."""
    monkeypatch.setattr(tx._fused, "_call", lambda works: None)
    return tx


def agree(
    tx: Any,
    reference: optax.GradientTransformation,
    n: int,
    *,
    form: str = "step",
    steps: int = 5,
    shapes: Any = SHAPES,
    seed: int = 0,
    change: Callable[[Tree], Tree] = lambda grads: grads,
    tolerance: float = 2e-5,
) -> None:
    """Runs `steps` steps of both and compares parameters after each, and at the end the states."""
    rng = np.random.default_rng(100 * n + seed)
    mesh = mesh_of(n, "dp")
    start = randoms(rng, shapes)
    params, state = start, tx.init(start)
    expected: Any
    expected, whole = jax.tree.map(jnp.asarray, start), reference.init(start)
    run = on_ranks(tx, mesh, start, form)
    advance = quick.jit(reference.update)
    for _ in range(steps):
        grads = change(randoms(rng, shapes, (n,)))
        params, state = run(grads, state, params)
        updates, whole = advance(mean(grads), whole, expected)
        expected = optax.apply_updates(expected, updates)
        for k in shapes:
            same(params[k], expected[k], tolerance)
    saved = tx.save_form(state, start)
    assert jax.tree.structure(saved) == jax.tree.structure(whole)
    for ours, theirs in zip(jax.tree.leaves(saved), jax.tree.leaves(whole), strict=True):
        same(ours, theirs, tolerance)


def same(actual: Any, expected: Any, tolerance: float) -> None:
    """Close, with NaN in the same places."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    close(np.nan_to_num(actual), np.nan_to_num(expected), tolerance)


def fused(tx: optax.GradientTransformation, n: int, **kwargs: Any) -> Any:
    """`tx` fused over the first n devices."""
    return jaxcc.optim.fuse(tx, axis_name="dp", mesh=mesh_of(n, "dp"), **kwargs)
