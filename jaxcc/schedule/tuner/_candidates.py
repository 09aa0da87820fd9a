"""Enumerates the schedules of a program, breadth first, each program once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxcc.program import Program
from jaxcc.schedule._schedule import Schedule
from jaxcc.schedule._source import Source
from jaxcc.schedule._step import Step
from jaxcc.schedule.tuner._digest import Digester
from jaxcc.schedule.tuner._moves import Move, moves

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """A program that some steps lead to, not yet verified.

    Attributes:
      source: what the steps start from.
      steps: all of them.
      program: at the group's size.
      digest: equal for equal programs.
    """

    source: Source
    steps: tuple[Step, ...]
    program: Program
    digest: str

    def schedule(self) -> Schedule:
        """The schedule, verified as a whole.

        Raises:
          ScheduleError: it would change the result.
        """
        made = Schedule(self.source, self.steps)
        _ = made.layouts
        return made


def candidates(
    schedule: Schedule,
    *,
    slice: Iterable[str] = (),
    limit: int = 256,
    depth: int = 16,
    progress: Progress | None = None,
) -> list[Candidate]:
    """The schedule itself and those that further steps lead to, fewest moves first.

    Steps are carried out but not verified one by one: verifying traces and walks the whole
    program, a tenth of a second for a small one, hundreds of times what a rewrite takes.
    `Candidate.schedule` verifies one that is wanted.

    Args:
      schedule: where to start.
      slice: inputs and results that may become Sliced, which changes how callers hold them.
      limit: the most candidates. The one that takes the first move that there is until none is left
        is among them however many there are.
      depth: the most moves.
      progress: hears how many there are.
    """
    names = tuple(slice)
    digester = Digester()
    start = Candidate(schedule.source, schedule.steps, schedule.program, "")
    found: dict[str, Candidate] = {}

    def add(before: Candidate, move: Move | None) -> Candidate | None:
        program = move.program if move else before.program
        key = digester.of(program)
        if key in found:
            return None
        steps = (*before.steps, *(move.steps if move else ()))
        found[key] = Candidate(schedule.source, steps, program, key)
        return found[key]

    add(start, None)
    spine = _spine(start, names, depth)
    reserved = {digester.of(program) for _, program in spine}
    level = list(found.values())
    for _ in range(depth):
        following: list[Candidate] = []
        for one in level:
            for move in moves(one.program, names):
                if len(found) + len(reserved - found.keys()) >= limit:
                    level = following = []
                    break
                made = add(one, move)
                if made is not None:
                    following.append(made)
            if not level:
                break
        if progress:
            progress(f"{len(found)} programs")
        if not following:
            break
        level = following
    for steps, program in spine[: max(0, limit - 1)]:
        add(start, Move(steps, program))
    return list(found.values())


def _spine(start: Candidate, slices: tuple[str, ...], depth: int) -> list[Move]:
    """The programs along the first moves, each with its steps from the start."""
    done, taken = list[Move](), Move((), start.program)
    for _ in range(depth):
        step = next(iter(moves(taken.program, slices)), None)
        if step is None:
            break
        taken = Move((*taken.steps, *step.steps), step.program)
        done.append(taken)
    return done
