"""Many random programs, counted; what is wrong is kept as a recipe that can be run again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fuzzing.choices import RandomChoices
from fuzzing.generate import recipe
from fuzzing.recipe import dumps, show
from fuzzing.verdict import Verdict, judge


@dataclass
class Failure:
    """A program of which the checker claimed something false, or a right one that it refused."""

    seed: str
    recipe: str
    shown: str
    sizes: dict[str, int]
    why: list[str]


@dataclass
class Tally:
    """What came of a number of programs.

    Attributes:
      counts: programs by what came of them, and `claims`.
      wrong: programs of which a claim or a result is false.
      refused: right programs that were refused.
      reasons: why programs were refused, with how many.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[Failure] = field(default_factory=list[Failure])
    refused: list[Failure] = field(default_factory=list[Failure])
    reasons: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Tally) -> None:
        """Counts what another tally counted."""
        self.counts += other.counts
        self.wrong += other.wrong
        self.refused += other.refused
        self.reasons += other.reasons

    @property
    def programs(self) -> int:
        """Programs that JAX can trace."""
        return sum(self.counts[kind] for kind in ("accepted", "refused", "crash"))


def run(
    seed: int, first: int, count: int, *, right: bool = False, all_sizes: bool = False
) -> Tally:
    """Judges programs `first`, `first` + 1, ... of a campaign.

    Args:
      seed: of the campaign.
      first: the first program's number.
      count: how many.
      right: whether they are right by construction.
      all_sizes: whether accepted ones are run on 2, 3 and 4 ranks, not only on those drawn.
    """
    tally = Tally()
    for number in range(first, first + count):
        name = f"{'right' if right else 'any'}/{seed}/{number}"
        program, sizes = recipe(RandomChoices(name), right=right)
        verdict = judge(program, sizes, seed=number, declared=right, all_sizes=all_sizes)
        _count(tally, verdict)
        tally.counts["refused and different"] += bool(verdict.mistaken)
        if verdict.problems or (right and verdict.status == "refused"):
            why = verdict.problems or [verdict.error, *verdict.mistaken]
            failure = Failure(name, dumps(program), show(program), dict(sizes), why[:5])
            (tally.wrong if verdict.problems else tally.refused).append(failure)
    return tally


def _count(tally: Tally, verdict: Verdict) -> None:
    tally.counts[verdict.status] += 1
    tally.counts["claims"] += verdict.claims
    tally.counts["unsupported"] += bool(verdict.unsupported)
    if verdict.status != "accepted":
        tally.reasons[verdict.error.split(":")[0]] += 1
