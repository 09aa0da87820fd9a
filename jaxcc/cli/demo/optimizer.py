"""Adam over data-parallel ranks: jaxcc's fused update, and `psum` with optax.adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

import jaxcc
from jaxcc.cli.demo.measure import Carried, Comparison, compare
from jaxcc.cli.demo.ranks import group, largest_difference, place

AXIS = "dp"
ALL, EACH = PartitionSpec(), PartitionSpec(AXIS)

# A pytree of arrays, as optax has it.
Tree = Any


@dataclass(frozen=True)
class DataParallelAdam:
    """Adam for the ranks of a mesh; `init` and `step` run inside `jax.shard_map`.

    Attributes:
      mesh: its axis is "dp".
      init: `params -> state`.
      step: `(gradients, state, params) -> (params, state)`; it averages the ranks' gradients.
      state_specs: how the state lies on the mesh, a pytree prefix.
    """

    mesh: Mesh
    init: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    state_specs: Tree

    @property
    def _specs(self) -> Tree:
        return ALL, self.state_specs

    def start(self, params: Tree) -> tuple[Tree, Tree]:
        """Params and state on the mesh, in buffers of their own: the programs below donate them."""
        held = place(params, self.mesh, ALL)
        init = self._on_ranks(self.init, (ALL,), self.state_specs)
        return held, jax.jit(init)(held)

    def updater(self) -> Callable[..., tuple[Tree, Tree]]:
        """Compiled `((params, state), gradients) -> (params, state)`.

        The ranks' gradients lie one after another along their first dim.
        """

        def update(carry: tuple[Tree, Tree], gradients: Tree) -> tuple[Tree, Tree]:
            params, state = carry
            return self.step(gradients, state, params)

        return jax.jit(self._on_ranks(update, (self._specs, EACH), self._specs), donate_argnums=0)

    def trainer(
        self, loss: Callable[[Tree, jax.Array], jax.Array]
    ) -> Callable[..., tuple[tuple[Tree, Tree], jax.Array]]:
        """Compiled `((params, state), batch) -> ((params, state), loss)`; the batch is split."""

        def train(
            carry: tuple[Tree, Tree], batch: jax.Array
        ) -> tuple[tuple[Tree, Tree], jax.Array]:
            params, state = carry
            # For replicated params JAX would sum the gradients itself; for varying ones not.
            own = jax.lax.pcast(params, AXIS, to="varying")
            value, gradients = jax.value_and_grad(loss)(own, batch)
            return self.step(gradients, state, params), jax.lax.pmean(value, AXIS)

        return jax.jit(
            self._on_ranks(train, (self._specs, EACH), (self._specs, ALL)), donate_argnums=0
        )

    def _on_ranks(self, f: Any, in_specs: Any, out_specs: Any) -> Any:
        return jax.shard_map(f, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)


def xla_adam(mesh: Mesh, learning_rate: float) -> DataParallelAdam:
    """`pmean` of the gradients and `optax.adam` on every rank."""
    adam = optax.adam(learning_rate)

    def step(gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        updates, state = adam.update(jax.lax.pmean(gradients, AXIS), state, params)
        return optax.apply_updates(params, updates), state

    return DataParallelAdam(mesh, adam.init, step, ALL)


def fused_adam(mesh: Mesh, learning_rate: float) -> DataParallelAdam:
    """`jaxcc.optim.adam`: reduce-scatter, update and all-gather in one call, m and v sliced."""
    adam = jaxcc.optim.adam(learning_rate, axis_name=AXIS, mesh=mesh)
    return DataParallelAdam(mesh, adam.init, adam.step, adam.specs())


def against_xla(
    params: Tree, mesh: Mesh, *, learning_rate: float, rounds: int, seed: int
) -> tuple[Comparison, dict[str, float]]:
    """Times the update alone on random gradients, both sides donated.

    Args:
      params: NumPy arrays.

    Returns:
      The times, and after two steps the largest difference of jaxcc's params from each oracle.
    """
    random = np.random.default_rng(seed)
    draws = [_random_like(random, params, mesh.size) for _ in range(2)]
    gradients = [place(_along_first_dim(draw), mesh, EACH) for draw in draws]
    fused, xla = fused_adam(mesh, learning_rate), xla_adam(mesh, learning_rate)
    update = fused.updater()
    xla_update = xla.updater()
    carry = fused.start(params)
    for one in gradients:
        carry = update(carry, one)

    alone = xla_adam(group(1, AXIS), learning_rate)
    expected = jax.tree.map(partial(adam_in_f64, learning_rate=learning_rate), params, *draws)
    differences = {
        "one rank": largest_difference(carry[0], _on_one_rank(alone, params, draws)),
        "NumPy f64": largest_difference(carry[0], expected),
    }
    comparison = compare(
        Carried(lambda held: update(held, gradients[-1]), carry),
        Carried(lambda held: xla_update(held, gradients[-1]), xla.start(params)),
        rounds=rounds,
    )
    return comparison, differences


def _random_like(random: np.random.Generator, params: Tree, ranks: int) -> Tree:
    return jax.tree.map(
        lambda x: random.standard_normal((ranks, *x.shape), dtype=np.float32), params
    )


def _along_first_dim(draw: Tree) -> Tree:
    """The ranks' arrays, f32[ranks, rows, ...], as f32[ranks * rows, ...]."""
    return jax.tree.map(lambda g: g.reshape(-1, *g.shape[2:]), draw)


def _on_one_rank(adam: DataParallelAdam, params: Tree, draws: Sequence[Tree]) -> Tree:
    """The params after a step for each of `draws`, with the mean over ranks taken beforehand."""
    update, carry = adam.updater(), adam.start(params)
    for draw in draws:
        carry = update(carry, jax.tree.map(lambda g: g.mean(axis=0), draw))
    return carry[0]


def adam_in_f64(
    param: np.ndarray,
    *gradients: np.ndarray,
    learning_rate: float,
    b1: float = 0.9,
    b2: float = 0.999,
) -> np.ndarray:
    """Adam as its paper writes it, one step for each of `gradients`, f32[ranks, *param.shape]."""
    w, m, v = param.astype(np.float64), np.zeros(param.shape), np.zeros(param.shape)
    for count, per_rank in enumerate(gradients, start=1):
        g = per_rank.mean(axis=0, dtype=np.float64)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        w -= learning_rate * (m / (1 - b1**count)) / (np.sqrt(v / (1 - b2**count)) + 1e-8)
    return w
