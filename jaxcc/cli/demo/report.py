"""What the demo found, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jaxcc.cli.demo.measure import Comparison, Spread


@dataclass(frozen=True)
class Row:
    """One work, done by jaxcc and by XLA.

    Attributes:
      work: what was done.
      times: of both.
      differences: largest difference of jaxcc's result from each oracle, by the oracle's name.
      allowed: how large a difference may be.
    """

    work: str
    times: Comparison
    differences: dict[str, float]
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether every difference is allowed; NaN is not."""
        return all(gap <= self.allowed for gap in self.differences.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"agrees": self.agrees}


@dataclass
class Report:
    """Everything, filled in as the demo goes.

    Attributes:
      fused: whether generated kernels ran; without a compiler their parts run one by one.
      attention: the refused program's `error`, and the listings `source` and `schedule`.
      losses: per training run, of each step.
      seconds: for all of the demo.
    """

    ranks: int
    fused: bool = False
    rows: list[Row] = field(default_factory=list[Row])
    attention: dict[str, str] = field(default_factory=dict[str, str])
    losses: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    warnings: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether all results agree with their references and training learned something."""
        return all(row.agrees for row in self.rows) and all(map(falls, self.losses.values()))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": [row.as_json() for row in self.rows], "clean": self.clean}

    def table(self) -> Table:
        """Times as median and quartiles, and the largest difference from each reference."""
        how = "fused" if self.fused else "unfused"
        title = f"{self.ranks} ranks, f32, jaxcc {how}, both sides donated: median [quartiles]"
        table = plain_table(
            title, "work", "jaxcc, ms", "XLA, ms", "XLA / jaxcc", "differs by", "from"
        )
        for row in self.rows:
            note = "" if row.agrees else f", more than {row.allowed:.0e}"
            for index, (oracle, gap) in enumerate(row.differences.items()):
                times = (
                    row.work,
                    _shown(row.times.jaxcc, 1e3),
                    _shown(row.times.xla, 1e3),
                    _shown(row.times.speedup),
                )
                cells = times if index == 0 else ("",) * len(times)
                table.add_row(
                    *cells, f"{gap:.1e}", oracle + note, style="" if row.agrees else "red"
                )
        return table


def falls(losses: list[float]) -> bool:
    """Whether the last third of the losses lies below the first."""
    last = losses[-(len(losses) // 3) :]
    return sum(last) / len(last) < losses[0]


def loss_table(losses: dict[str, list[float]], shown: int = 8) -> Table:
    """The loss of some steps, evenly spread, of each run."""
    table = plain_table("loss, nats per byte", "step", *losses)
    count = min(map(len, losses.values()))
    for step in sorted({round(i * (count - 1) / (shown - 1)) for i in range(shown)}):
        table.add_row(str(step + 1), *(f"{run[step]:.5f}" for run in losses.values()))
    return table


def plain_table(title: str, first: str, *others: str) -> Table:
    """An empty table without frames; all columns but the first hold numbers."""
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _shown(spread: Spread, factor: float = 1.0) -> str:
    median, low, high = (factor * x for x in (spread.median, spread.low, spread.high))
    digits = 2 if median < 10 else 1 if median < 100 else 0
    return f"{median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"
