"""Finds the fastest schedule of a program by running those that the cost model ranks first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc.layout import ScheduleError
from jaxcc.schedule._compile import Compiled, require_backend
from jaxcc.schedule._place import place, sharding_of
from jaxcc.schedule._schedule import Schedule
from jaxcc.schedule.tuner import _store
from jaxcc.schedule.tuner._candidates import Candidate, candidates
from jaxcc.schedule.tuner._check import compare, numbers, tolerance
from jaxcc.schedule.tuner._cost import cost
from jaxcc.schedule.tuner._default import profile_for
from jaxcc.schedule.tuner._digest import digest
from jaxcc.schedule.tuner._profile import Profile
from jaxcc.schedule.tuner._timing import Spread, in_turns, seconds
from jaxcc.schedule.tuner._tuned import FAILED, FASTEST, TIMED, WRONG, Trial, Tuned

# The share of the budget after which nothing more is compiled, the most schedules that are, and the
# most rounds of timing.
_COMPILING, _MOST_TRIES, _ROUNDS = 0.6, 24, 25


@dataclass(frozen=True)
class _Ready:
    """A candidate that compiled and computes what it should."""

    candidate: Candidate
    schedule: Schedule
    compiled: Compiled
    run: Callable[[], float]
    difference: float


class _Tuner:
    """What all trials of one call share."""

    def __init__(
        self,
        args: tuple[Any, ...],
        reference: Callable[[], Any],
        backend: str,
        donate: tuple[str, ...],
        rtol: float | None,
    ) -> None:
        self.args = args
        self.backend = backend
        self.donate = donate
        self.rtol = rtol
        self.expected = [numbers(jnp.asarray(x)) for x in jax.tree.leaves(reference())]

    def ready(self, candidate: Candidate) -> _Ready:
        """The candidate verified, compiled, run once and held against the reference.

        Raises:
          ScheduleError: SCHEDULE_WRONG_RESULT, or it does not verify.
        """
        schedule = candidate.schedule()
        fused = any(op.has_collective for op in candidate.program.ops)
        # With "auto" a kernel that cannot be built would be timed as what it replaces.
        backend = "host" if fused and self.backend == "auto" else self.backend
        compiled = schedule.compile(backend, donate=self.donate)
        leaves = self._placed(schedule)
        result = self._call(compiled, leaves)
        difference, right = compare(
            jax.tree.leaves(result), self.expected, self.rtol or tolerance(candidate.program)
        )
        if not right:
            raise ScheduleError(
                "SCHEDULE_WRONG_RESULT",
                f"its result differs from the reference by {difference:.3g}",
                fixes=("autotune(..., rtol=) allows larger differences",),
            )
        run = self._timed(compiled, leaves)
        return _Ready(candidate, schedule, compiled, run, difference)

    def _placed(self, schedule: Schedule) -> list[Any]:
        """The arguments where the schedule wants them, which no call then pays for."""
        program, mesh = schedule.program, schedule.source.mesh
        ndims = [len(t.shape) for t in program.in_types]
        return [
            place(jnp.asarray(x), sharding_of(layout, ndim, mesh))
            for x, layout, ndim in zip(
                jax.tree.leaves(self.args), program.in_layouts, ndims, strict=True
            )
        ]

    def _fresh(self, compiled: Compiled, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of one call, with copies of those that it takes."""
        names = compiled.program.inputs
        copies = [
            jnp.copy(x) if n in self.donate else x for n, x in zip(names, leaves, strict=True)
        ]
        jax.block_until_ready(copies)
        return jax.tree.unflatten(jax.tree.structure(self.args), copies)

    def _call(self, compiled: Compiled, leaves: Sequence[Any]) -> Any:
        return jax.block_until_ready(compiled(*self._fresh(compiled, leaves)))

    def _timed(self, compiled: Compiled, leaves: Sequence[Any]) -> Callable[[], float]:
        def run() -> float:
            args = self._fresh(compiled, leaves)
            return seconds(lambda: compiled(*args))

        return run


def tune(
    schedule: Schedule,
    args: tuple[Any, ...],
    reference: Callable[[], Any],
    *,
    budget_s: float = 60.0,
    slice: Iterable[str] = (),
    donate: Iterable[str] = (),
    backend: str = "auto",
    profile: Profile | None = None,
    rtol: float | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Tuned:
    """The fastest schedule of a program that is found within the budget.

    See `TypedFunction.autotune`. `args` are global arrays; `reference` computes what the result
    has to be.
    """
    started = time.perf_counter()
    tell = progress or (lambda _: None)
    _check_options(schedule, budget_s, backend)
    names, taken = tuple(slice), tuple(donate)
    key = _store.key_of(digest(schedule.program), slice=names, donate=taken, backend=backend)
    path = _store.path_of("tuned", key) if cache else None
    stored = _store.load(path, key) if path else None
    tell("computing the reference")
    tuner = _Tuner(args, reference, backend, taken, rtol)
    if stored is not None and (stored.complete or stored.budget_s >= budget_s):
        found = _from_store(schedule, stored, tuner)
        if found is not None:
            return found
    ranked = _ranked(schedule, names, backend, profile, tell)
    trials, ready = _tried(ranked, tuner, started, budget_s, tell)
    times = in_turns(
        [one.run for one in ready], until=started + budget_s, rounds=_ROUNDS, progress=tell
    )
    winner, rows = _results(trials, ready, [Spread.of(one) for one in times])
    if path is not None:
        complete = all(trial.median_us is not None or trial.message for trial in rows)
        _store.save(
            path, key, _store.Stored(winner.schedule.steps, tuple(rows), budget_s, complete)
        )
    return Tuned(winner.schedule, winner.compiled, rows, cached=False)


def _check_options(schedule: Schedule, budget_s: float, backend: str) -> None:
    if not (budget_s > 0 and math.isfinite(budget_s)):
        raise ScheduleError("SCHEDULE_ARGUMENT", f"autotune: budget_s is {budget_s}, not seconds")
    require_backend(backend)
    schedule.source.require_devices()


def _ranked(
    schedule: Schedule,
    names: Sequence[str],
    backend: str,
    profile: Profile | None,
    tell: Callable[[str], None],
) -> list[tuple[Candidate, Trial]]:
    """The candidates: the program as it was written, then the others, the cheapest first."""
    machine = profile or profile_for(schedule.source.mesh)
    found = candidates(schedule, slice=names, progress=tell)
    if backend == "xla":
        # It runs a fused operation's parts one by one: another candidate's program.
        found = [one for one in found if not any(op.has_collective for op in one.program.ops)]
    rows = [
        (one, Trial(tuple(map(str, one.steps)), cost(one.program, machine).total_us))
        for one in found
    ]
    return [rows[0], *sorted(rows[1:], key=lambda row: row[1].estimate_us)]


def _tried(
    ranked: Sequence[tuple[Candidate, Trial]],
    tuner: _Tuner,
    started: float,
    budget_s: float,
    tell: Callable[[str], None],
) -> tuple[list[Trial], list[_Ready]]:
    """Each candidate's trial so far, and those that can be timed; the first always is."""
    trials = [trial for _, trial in ranked]
    tell("as written")
    ready, longest = [tuner.ready(ranked[0][0])], 0.0
    trials[0] = replace(trials[0], status=TIMED, difference=ready[0].difference)
    for index, (candidate, trial) in enumerate(ranked[1 : _MOST_TRIES + 1], start=1):
        start = time.perf_counter()
        spent = start - started
        if spent > _COMPILING * budget_s or spent + longest > budget_s:
            break
        tell(f"{index} of {len(ranked) - 1}: {trial.verbs}")
        try:
            one = tuner.ready(candidate)
        # Whatever the generator, a compiler or XLA raises is an answer about this candidate.
        except Exception as error:
            status = WRONG if getattr(error, "code", "") == "SCHEDULE_WRONG_RESULT" else FAILED
            trials[index] = replace(trial, status=status, message=_one_line(error))
        else:
            ready.append(one)
            trials[index] = replace(trial, status=TIMED, difference=one.difference)
        longest = max(longest, time.perf_counter() - start)
    return trials, ready


def _results(
    trials: Sequence[Trial], ready: Sequence[_Ready], spreads: Sequence[Spread]
) -> tuple[_Ready, list[Trial]]:
    """The fastest, and all trials with what was measured, the fastest first."""
    measured = {
        tuple(map(str, one.candidate.steps)): spread
        for one, spread in zip(ready, spreads, strict=True)
    }
    fastest = int(np.argmin([spread.median_us for spread in spreads]))
    winner = ready[fastest]
    best = tuple(map(str, winner.candidate.steps))
    rows = [
        replace(
            trial,
            **measured[trial.steps]._asdict(),
            status=FASTEST if trial.steps == best else TIMED,
        )
        if trial.steps in measured
        else trial
        for trial in trials
    ]
    return winner, sorted(rows, key=lambda row: (row.median_us is None, row.median_us or 0.0))


def _from_store(schedule: Schedule, stored: _store.Stored, tuner: _Tuner) -> Tuned | None:
    """The stored winner, verified and checked as any candidate; None if it fails at that."""
    try:
        program = Schedule(schedule.source, stored.steps).program
        one = tuner.ready(Candidate(schedule.source, stored.steps, program, ""))
    except Exception:
        return None
    return Tuned(one.schedule, one.compiled, stored.trials, cached=True)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
