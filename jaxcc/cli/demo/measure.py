"""Interleaved timing: two ways to do one work take turns, so what slows one slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcc.schedule.tuner import seconds

_BUDGET_S = 8.0
_FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        low, median, high = np.percentile(samples, (25, 50, 75))
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """Seconds for jaxcc and for XLA, and XLA's over jaxcc's, round by round."""

    jaxcc: Spread
    xla: Spread
    speedup: Spread

    @classmethod
    def of(cls, jaxcc: Sequence[float], xla: Sequence[float]) -> Comparison:
        ratios = [theirs / ours for ours, theirs in zip(jaxcc, xla, strict=True)]
        return cls(Spread.of(jaxcc), Spread.of(xla), Spread.of(ratios))


class Carried:
    """A program `f(state) -> state` that donates its state: each call feeds the next."""

    def __init__(self, f: Callable[[Any], Any], state: Any) -> None:
        self._f = f
        self._state = state

    def __call__(self) -> Any:
        self._state = self._f(self._state)
        return self._state


def compare(
    jaxcc: Callable[[], Any], xla: Callable[[], Any], *, rounds: int, warm_up: int = 3
) -> Comparison:
    """Times both in turns, `rounds` times each; the warm-up compiles and touches memory.

    On a machine too slow for that many rounds, as many as fit into 8 s, and 5 at least.
    """
    for _ in range(warm_up):
        jax.block_until_ready((jaxcc(), xla()))
    ours: list[float] = []
    theirs: list[float] = []
    start = time.perf_counter()
    for done in range(rounds):
        if done >= _FEWEST_ROUNDS and time.perf_counter() - start > _BUDGET_S:
            break
        for work, times in ((jaxcc, ours), (xla, theirs)):
            # Not counted: this call pays for what the other side left. XLA goes on freeing large
            # buffers for tens of milliseconds after its results are ready.
            jax.block_until_ready(work())
            times.append(seconds(work))
    return Comparison.of(ours, theirs)
