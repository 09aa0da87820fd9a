"""Training the same model on the same text with jaxcc's Adam, with XLA's, and on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcc.cli.demo import model
from jaxcc.cli.demo.measure import Comparison
from jaxcc.cli.demo.optimizer import AXIS, EACH, DataParallelAdam, fused_adam, xla_adam
from jaxcc.cli.demo.ranks import group, place
from jaxcc.cli.demo.settings import Settings
from jaxcc.schedule.tuner import seconds


@dataclass(frozen=True)
class Training:
    """What the runs did.

    Attributes:
      losses: the loss of each step before its update, by the run: "jaxcc", "XLA" and "one rank".
      step: seconds for a whole step on all ranks.
    """

    losses: dict[str, list[float]]
    step: Comparison

    def differences(self) -> dict[str, float]:
        """Largest difference of jaxcc's loss from each other run's, over all steps."""
        ours = self.losses["jaxcc"]
        return {
            name: float(np.abs(np.subtract(ours, losses)).max())
            for name, losses in self.losses.items()
            if losses is not ours
        }


class _Run:
    """One training run; each call is a step, and leaves its loss in `losses`."""

    def __init__(self, adam: DataParallelAdam, params: Any, config: model.Config) -> None:
        self._mesh = adam.mesh
        self._train = adam.trainer(partial(model.loss, config=config))
        self._carry = adam.start(params)
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self, text: np.ndarray) -> None:
        batch = place(text, self._mesh, EACH)
        self.times.append(seconds(partial(self._advance, batch)))

    def _advance(self, batch: jax.Array) -> Any:
        self._carry, loss = self._train(self._carry, batch)
        self.losses.append(float(loss))
        return self._carry


def train(
    params: model.Params, mesh: Mesh, settings: Settings, tell: Callable[[str], None]
) -> Training:
    """Trains three times at once, a step of each in turn; `tell` hears of every step."""
    rate, alone = settings.learning_rate, group(1, AXIS)
    adams = {
        "jaxcc": fused_adam(mesh, rate),
        "XLA": xla_adam(mesh, rate),
        "one rank": xla_adam(alone, rate),
    }
    runs = {name: _Run(adam, params, settings.model) for name, adam in adams.items()}
    # One window for each rank at least, and the same number for all.
    batch = max(1, settings.batch // mesh.size) * mesh.size
    windows = model.batches(1, settings.steps, batch, settings.model.context)
    for number, text in enumerate(windows, start=1):
        for run in runs.values():
            run.step(text)
        losses = ", ".join(f"{name} {run.losses[-1]:.4f}" for name, run in runs.items())
        tell(f"step {number} of {settings.steps}, loss {losses}")
    # The first step compiles.
    step = Comparison.of(runs["jaxcc"].times[1:], runs["XLA"].times[1:])
    return Training({name: run.losses for name, run in runs.items()}, step)
