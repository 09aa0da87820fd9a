"""Finds the fastest schedule of a program by running those that the cost model ranks first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc.layout import ScheduleError
from jaxcc.schedule._compile import Compiled
from jaxcc.schedule._place import place, sharding_of
from jaxcc.schedule._schedule import Schedule
from jaxcc.schedule.tuner import _store
from jaxcc.schedule.tuner._candidates import Candidate, candidates
from jaxcc.schedule.tuner._check import compare, numbers, tolerance
from jaxcc.schedule.tuner._cost import cost
from jaxcc.schedule.tuner._digest import digest
from jaxcc.schedule.tuner._options import Checked, Options, checked
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
        self, args: tuple[Any, ...], reference: Callable[[], Any], options: Checked
    ) -> None:
        self.args = args
        self.options = options
        self.expected = [numbers(jnp.asarray(x)) for x in jax.tree.leaves(reference())]

    def ready(self, candidate: Candidate) -> _Ready:
        """The candidate verified, compiled, run once and held against the reference.

        Raises:
          ScheduleError: SCHEDULE_WRONG_RESULT, or it does not verify.
        """
        schedule = candidate.schedule()
        fused = any(op.has_kernel for op in candidate.program.ops)
        # With "auto" a kernel that cannot be built would be timed as what it replaces.
        backend = self.options.backend
        backend = "host" if fused and backend == "auto" else backend
        compiled = schedule.compile(backend, donate=self.options.donate)
        leaves = self._placed(schedule)
        result = self._call(compiled, leaves)
        # Without those that are dead.
        expected = [self.expected[index] for index in candidate.program.results]
        rtol = self.options.rtol
        rtol = tolerance(candidate.program) if rtol is None else rtol
        difference, right = compare(jax.tree.leaves(result), expected, rtol)
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
        taken = [name in self.options.donate for name in compiled.program.inputs]
        copies = [jnp.copy(x) if own else x for own, x in zip(taken, leaves, strict=True)]
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
    options: Options,
) -> Tuned:
    """The fastest schedule of a program that is found within the budget.

    See `TypedFunction.autotune`. `args` are global arrays; `reference` computes what the result
    has to be.
    """
    started = time.perf_counter()
    schedule, chosen = checked(schedule, options)
    key = _store.key_of(
        digest(schedule.program),
        slice=chosen.slice,
        donate=chosen.donate,
        backend=chosen.backend,
    )
    path = _store.path_of("tuned", key) if chosen.cache else None
    stored = _store.load(path, key) if path else None
    chosen.tell("computing the reference")
    tuner = _Tuner(args, reference, chosen)
    if stored is not None and (stored.complete or stored.budget_s >= chosen.budget_s):
        found = _from_store(schedule, stored, tuner)
        if found is not None:
            return found
    ranked = _ranked(schedule, chosen)
    trials, ready = _tried(ranked, tuner, started)
    times = in_turns(
        [one.run for one in ready],
        until=started + chosen.budget_s,
        rounds=_ROUNDS,
        progress=chosen.tell,
    )
    winner, rows = _results(trials, ready, [Spread.of(one) for one in times])
    if path is not None:
        complete = all(trial.median_us is not None or trial.message for trial in rows)
        steps = winner.schedule.steps
        _store.save(path, key, _store.Stored(steps, tuple(rows), chosen.budget_s, complete))
    return Tuned(winner.schedule, winner.compiled, rows, cached=False)


def _ranked(schedule: Schedule, options: Checked) -> list[tuple[Candidate, Trial]]:
    """The candidates: the program as it was written, then the others, the cheapest first."""
    found = candidates(schedule, slice=options.slice, progress=options.tell)
    if options.backend == "xla":
        # It runs a fused operation's parts one by one: another candidate's program.
        found = [one for one in found if not any(op.has_kernel for op in one.program.ops)]
    rows = [
        (one, Trial(tuple(map(str, one.steps)), cost(one.program, options.profile).total_us))
        for one in found
    ]
    return [rows[0], *sorted(rows[1:], key=lambda row: row[1].estimate_us)]


def _tried(
    ranked: Sequence[tuple[Candidate, Trial]], tuner: _Tuner, started: float
) -> tuple[list[Trial], list[_Ready]]:
    """Each candidate's trial so far, and those that can be timed; the first always is."""
    budget_s, tell = tuner.options.budget_s, tuner.options.tell
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
