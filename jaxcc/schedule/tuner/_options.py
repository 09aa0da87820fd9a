"""How to tune: what a caller may choose, checked before anything takes time."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jaxcc.layout import ScheduleError
from jaxcc.schedule._compile import require_backend
from jaxcc.schedule._schedule import Schedule
from jaxcc.schedule.tuner._default import find_profile
from jaxcc.schedule.tuner._profile import Profile


@dataclass(frozen=True)
class Options:
    """See `TypedFunction.autotune`; names are one, or several."""

    budget_s: float = 60.0
    slice: str | Iterable[str] = ()
    dead: str | Iterable[str] = ()
    donate: str | Iterable[str] = ()
    backend: str = "auto"
    profile: Profile | str | None = None
    rtol: float | None = None
    cache: bool = True
    progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Checked:
    """The same, of a schedule that has what they name."""

    budget_s: float
    slice: tuple[str, ...]
    donate: tuple[str, ...]
    backend: str
    profile: Profile
    rtol: float | None
    cache: bool
    tell: Callable[[str], None]


def checked(schedule: Schedule, options: Options) -> tuple[Schedule, Checked]:
    """The schedule to start from, without what is dead, and the options.

    Raises:
      ScheduleError: SCHEDULE_ARGUMENT, or a dead result is none.
      BackendError: there is no such backend, or the mesh has no devices.
      TableError: there is no such profile.
    """
    if not (_is_finite(options.budget_s) and options.budget_s > 0):
        raise _refused(f"budget_s is {options.budget_s!r}, not a number of seconds above 0")
    if options.rtol is not None and not (_is_finite(options.rtol) and options.rtol >= 0):
        raise _refused(f"rtol is {options.rtol!r}, not a number of at least 0")
    require_backend(options.backend)
    schedule.source.require_devices()
    start = schedule.dead(*_names("dead", options.dead))
    program = start.program
    sliced, donated = _names("slice", options.slice), _names("donate", options.donate)
    values = [*program.inputs, *(op.name for op in program.ops)]
    _check_known("slice", sliced, values, f"no input or result of {program.name}")
    _check_known("donate", donated, program.inputs, f"no input of {program.name}")
    return start, Checked(
        float(options.budget_s),
        sliced,
        donated,
        options.backend,
        find_profile(options.profile, schedule.source.mesh),
        options.rtol,
        options.cache,
        options.progress or (lambda _: None),
    )


def _names(option: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise _refused(f"{option} has {name!r}, which is no name")
    return tuple(dict.fromkeys(names))


def _check_known(option: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in names:
        # Steps make `total.scatter` of `total`.
        if not any(name == one or name.startswith(f"{one}.") for one in known):
            close = difflib.get_close_matches(name, known) or known[:8]
            raise _refused(f"{option}: '{name}' is {what}; there are {', '.join(close)}")


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _refused(what: str) -> ScheduleError:
    return ScheduleError("SCHEDULE_ARGUMENT", f"autotune: {what}")
