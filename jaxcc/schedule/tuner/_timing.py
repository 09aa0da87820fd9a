"""Times programs in turns, so that what slows one slows all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

# After this many rounds a program that was this much slower than the best at its best drops out.
_ROUNDS_TO_DROP, _HOPELESS = 3, 1.5

Run = Callable[[], float]
"""Runs a program once and says how many seconds that took."""


class Spread(NamedTuple):
    """Median and quartiles, in microseconds."""

    median_us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The spread of some times."""
        low, median, high = np.percentile(seconds, (25, 50, 75))
        return cls(float(median) * 1e6, float(low) * 1e6, float(high) * 1e6)


def seconds(work: Callable[[], Any]) -> float:
    """How long `work()` takes, until its arrays are ready."""
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def in_turns(
    runs: Sequence[Run], *, until: float, rounds: int, progress: Callable[[str], None]
) -> list[list[float]]:
    """Seconds of each run in each round.

    A round has a run of each that is not counted, as it pays for what the one before left, and one
    that is. Rounds end when the next would go on beyond `until`, a `time.perf_counter()`; the first
    is always run.
    """
    times: list[list[float]] = [[] for _ in runs]
    running = list(range(len(runs)))
    for done in range(rounds):
        start = time.perf_counter()
        for index in running[done % len(running) :] + running[: done % len(running)]:
            runs[index]()
            times[index].append(runs[index]())
        progress(f"timed {done + 1} times")
        end = time.perf_counter()
        if end + (end - start) > until:
            break
        if done + 1 >= _ROUNDS_TO_DROP:
            best = min(float(np.median(times[index])) for index in running)
            # The first is what others are held against.
            running = [i for i in running if i == 0 or min(times[i]) < _HOPELESS * best]
    return times
