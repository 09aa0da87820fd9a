"""What the autotuner found: the fastest schedule, and a table of all that it tried."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxcc.layout import ScheduleError
from jaxcc.schedule._compile import Compiled
from jaxcc.schedule._schedule import Schedule

FASTEST, TIMED, WRONG, FAILED, UNTRIED = "fastest", "timed", "wrong", "failed", "not tried"


@dataclass(frozen=True)
class Trial:
    """One schedule that was looked at.

    Attributes:
      steps: its steps as text; none are the program as it was written.
      estimate_us: what the cost model says.
      status: `fastest`, `timed`, `wrong` (its result differs), `failed` (it does not verify,
        compile or run) or `not tried` (the budget was used up by what should be faster).
      median_us, low_us, high_us: median and quartiles of what was measured.
      difference: the largest from the reference.
      message: why it failed.
    """

    steps: tuple[str, ...]
    estimate_us: float
    status: str = UNTRIED
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    difference: float | None = None
    message: str = ""

    @property
    def verbs(self) -> str:
        """Its verbs, short: `split reorder fuse`."""
        verbs = [step.partition("(")[0] for step in self.steps]
        return " ".join(dict.fromkeys(verbs)) or "as written"


class Tuned:
    """The fastest schedule that was found, callable as `schedule.compile()` is.

    Attributes:
      schedule: its steps and program.
      compiled: what a call runs; `compiled.local` is for use inside a `shard_map`.
      trials: all that were looked at, the fastest first.
      cached: whether it comes from an earlier run on this machine.
    """

    __module__ = "jaxcc"

    def __init__(
        self, schedule: Schedule, compiled: Compiled, trials: Sequence[Trial], *, cached: bool
    ) -> None:
        self.schedule = schedule
        self.compiled = compiled
        self.trials = tuple(trials)
        self.cached = cached

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for global arrays of the shapes that were tuned for."""
        return self.compiled(*args, **kwargs)

    def __str__(self) -> str:
        return self.table

    @property
    def table(self) -> str:
        """What was tried, as text: numbers refer to the steps below it."""
        rows = [("", "schedule", "estimate", "median [quartiles]", "difference", "")]
        for number, trial in enumerate(self.trials):
            rows.append(
                (
                    str(number),
                    trial.verbs,
                    _time(trial.estimate_us),
                    _measured(trial),
                    "" if trial.difference is None else f"{trial.difference:.1e}",
                    f"{trial.status}{': ' if trial.message else ''}{trial.message}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        steps = [
            f"{number}: {'; '.join(trial.steps)}"
            for number, trial in enumerate(self.trials)
            if trial.steps
        ]
        return "\n".join([*lines, *([""] if steps else []), *steps])

    def to_json(self) -> dict[str, Any]:
        """The same as values for `json.dumps`."""
        return {
            "program": self.schedule.source.name,
            "cached": self.cached,
            "steps": [str(step) for step in self.schedule.steps],
            "trials": [asdict(trial) for trial in self.trials],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws medians with their quartiles, beside the estimates, to a file; its ending says
        in which format.

        Raises:
          ScheduleError: matplotlib is not installed, or nothing was timed.
        """
        try:
            canvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
            new_figure = importlib.import_module("matplotlib.figure").Figure
        except ImportError as error:
            raise ScheduleError(
                "SCHEDULE_NO_MATPLOTLIB",
                f"a plot needs matplotlib: {error}",
                fixes=("pip install 'jaxcc[plot]'",),
            ) from None
        timed = [(i, one) for i, one in enumerate(self.trials) if one.median_us is not None]
        figure = new_figure(figsize=(8, 1.5 + 0.35 * len(timed)), layout="constrained")
        canvas(figure)
        axes = figure.subplots()
        rows = range(len(timed))
        medians = [_number(one.median_us) for _, one in timed]
        spreads = [
            [m - _number(one.low_us) for m, (_, one) in zip(medians, timed, strict=True)],
            [_number(one.high_us) - m for m, (_, one) in zip(medians, timed, strict=True)],
        ]
        axes.barh(rows, medians, xerr=spreads, capsize=3, label="median, quartiles")
        estimates = [one.estimate_us for _, one in timed]
        axes.plot(estimates, rows, "D", color="black", markersize=5, label="estimate")
        axes.set_yticks(rows, [f"{i}: {one.verbs}" for i, one in timed])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("microseconds for a call")
        axes.set_title(self.schedule.source.name)
        axes.legend(loc="lower right")
        figure.savefig(path)


def _number(x: float | None) -> float:
    assert x is not None
    return x


def _time(us: float) -> str:
    """`12.3 us`, `4.56 ms`."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us:.3g} us"


def _measured(trial: Trial) -> str:
    if trial.median_us is None:
        return ""
    low, high = _time(_number(trial.low_us)), _time(_number(trial.high_us))
    return f"{_time(trial.median_us)} [{low}, {high}]"
