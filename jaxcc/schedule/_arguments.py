"""Whether a step that was written by hand or read from a file is one that a verb can carry out."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxcc.layout import ScheduleError
from jaxcc.program import Program
from jaxcc.schedule._step import REWRITES, Step

_LISTS = (Sequence, tuple, list)


def checked(step: Step) -> Step:
    """The step with its lists as tuples, if a verb of that name takes arguments of these types.

    Raises:
      ScheduleError: there is no such verb, or it takes other arguments.
    """
    if not isinstance(step, Step):
        raise ScheduleError(
            "SCHEDULE_ARGUMENT", f"apply: {step!r} is not a step; schedule.steps has those of one"
        )
    if step.verb not in REWRITES:
        raise ScheduleError(
            "SCHEDULE_VERB",
            f"there is no verb {step.verb!r}; there are {', '.join(sorted(REWRITES))}",
        )
    rewrite = REWRITES[step.verb]
    hints = get_type_hints(rewrite)
    wanted = {
        name: parameter
        for name, parameter in inspect.signature(rewrite).parameters.items()
        if hints.get(name) is not Program
    }
    for name, value in step.arguments.items():
        if name not in wanted:
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"{step.verb} has no argument {name!r}; it has {', '.join(wanted)}",
            )
        if not _fits(value, hints[name]):
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"{step.verb}: {name} is {value!r}, not {_described(hints[name])}",
            )
    for name, parameter in wanted.items():
        if name not in step.arguments and parameter.default is parameter.empty:
            raise ScheduleError("SCHEDULE_ARGUMENT", f"{step.verb} lacks its argument {name!r}")
    return Step(step.verb, {name: _frozen(value) for name, value in step.arguments.items()})


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin in _LISTS:
        return isinstance(value, list | tuple) and all(_fits(x, inner[0]) for x in value)
    # A bool is an int to Python, but True is no dimension.
    return type(value) is hint


def _described(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(map(_described, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in _LISTS:
        return f"a list of {_described(inner[0])}"
    return "null" if hint is type(None) else hint.__name__


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
