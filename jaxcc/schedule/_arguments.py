"""Whether the arguments of a verb, in a call or in a step from a file, are such as it takes."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from jaxcc.layout import ScheduleError
from jaxcc.program import Program
from jaxcc.schedule._step import REWRITES, Step

_LISTS = (Sequence, tuple, list)


def checking[F: Callable[..., Any]](verb: F) -> F:
    """The verb, which refuses arguments of other types than it says.

    Raises:
      ScheduleError: SCHEDULE_ARGUMENT.
    """
    generic = {one.__name__: one for one in verb.__type_params__}
    hints, signature = get_type_hints(verb, localns=generic), inspect.signature(verb)

    @functools.wraps(verb)
    def checked_verb(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(schedule, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{verb.__name__}: {error}") from None
        for name, given in list(bound.arguments.items())[1:]:
            several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for value in given if several else (given,):
                _check_type(verb.__name__, name, value, hints[name])
        return verb(schedule, *args, **kwargs)

    return cast(F, checked_verb)


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
        _check_type(step.verb, name, value, hints[name])
    for name, parameter in wanted.items():
        if name not in step.arguments and parameter.default is parameter.empty:
            raise ScheduleError("SCHEDULE_ARGUMENT", f"{step.verb} lacks its argument {name!r}")
    return Step(step.verb, {name: _frozen(value) for name, value in step.arguments.items()})


def _check_type(verb: str, name: str, value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        raise ScheduleError(
            "SCHEDULE_ARGUMENT", f"{verb}: {name} is {value!r}, not {_described(hint)}"
        )


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
    if hint is types.EllipsisType:
        return "`...`"
    return "null" if hint is type(None) else hint.__name__


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
