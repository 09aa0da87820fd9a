"""Tactics: functions from a schedule to a schedule, and how larger ones are made of small ones."""

from __future__ import annotations

from collections.abc import Callable

from jaxcc.layout import ScheduleError
from jaxcc.schedule._schedule import Schedule

type Tactic = Callable[[Schedule], Schedule]
"""A verb with its arguments, `lambda s: s.split("total")`, or any function that calls verbs."""


def sequence(*tactics: Tactic) -> Tactic:
    """The tactic that applies these one after the other.

    Raises, when it is applied:
      ScheduleError: one of them does; or SCHEDULE_TACTIC, which no tactic catches, if one returns
        something other than a schedule.
    """

    def one_after_the_other(schedule: Schedule) -> Schedule:
        for tactic in tactics:
            schedule = _applied(tactic, schedule)
        return schedule

    return one_after_the_other


def attempt(tactic: Tactic) -> Tactic:
    """The tactic that applies this one, or leaves the schedule as it is where that raises a
    `ScheduleError`.

    Of a sequence that fails halfway nothing remains. Other errors are raised.
    """

    def if_possible(schedule: Schedule) -> Schedule:
        return _after(tactic, schedule) or schedule

    return if_possible


def repeat(tactic: Tactic, limit: int = 100) -> Tactic:
    """The tactic that applies this one until it raises a `ScheduleError` or adds no step, at most
    `limit` times.

    Raises:
      ScheduleError: SCHEDULE_ARGUMENT if `limit` is not a count.
    """
    if type(limit) is not int or limit < 0:
        raise ScheduleError("SCHEDULE_ARGUMENT", f"repeat: limit is {limit!r}, not a count")

    def again_and_again(schedule: Schedule) -> Schedule:
        for _ in range(limit):
            longer = _after(tactic, schedule)
            if longer is None or longer.steps == schedule.steps:
                break
            schedule = longer
        return schedule

    return again_and_again


def _after(tactic: Tactic, schedule: Schedule) -> Schedule | None:
    """The schedule after the tactic; None if a condition of its verbs is not met."""
    try:
        result = tactic(schedule)
    except ScheduleError as error:
        if error.code == "SCHEDULE_TACTIC":
            raise
        return None
    return _required(result, tactic)


def _applied(tactic: Tactic, schedule: Schedule) -> Schedule:
    return _required(tactic(schedule), tactic)


def _required(result: Schedule, tactic: Tactic) -> Schedule:
    # A function that forgets its `return` would otherwise fail later, as "None has no attribute".
    if not isinstance(result, Schedule):
        name = getattr(tactic, "__name__", repr(tactic))
        raise ScheduleError(
            "SCHEDULE_TACTIC",
            f"the tactic {name} returned {result!r}, not a schedule",
            fixes=("return what the last verb returns",),
        )
    return result
