"""Schedules as JSON: the steps, and the outline of the program that they were made for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxcc.layout import ScheduleError
from jaxcc.program import Program
from jaxcc.schedule._arguments import checked
from jaxcc.schedule._outline import Outline, outline
from jaxcc.schedule._step import Step

VERSION = 1


def saved(program: Program, steps: Sequence[Step], sizes: dict[str, int]) -> str:
    """The steps as JSON; see `Schedule.to_json`.

    Args:
      program: what they start from, on a group of one.
      steps: of a schedule.
      sizes: of the mesh that they were made for.
    """
    made = outline(program)
    content = {
        "version": VERSION,
        "function": program.name,
        "mesh": sizes,
        "inputs": dict(made.inputs),
        "operations": dict(made.operations),
        "results": list(made.results),
        "steps": list(map(step_content, steps)),
    }
    return json.dumps(content, indent=2) + "\n"


def loaded(text: str, program: Program) -> tuple[Step, ...]:
    """The steps in JSON that `saved` wrote for `program`, or for one with the same outline.

    The text is only data: verbs are looked up by name, and their arguments are names and numbers.

    Raises:
      ScheduleError: SCHEDULE_FORMAT, SCHEDULE_VERB, SCHEDULE_ARGUMENT, SCHEDULE_OTHER_PROGRAM.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it is not JSON: {error}") from None
    top = _mapping(content, "the whole")
    version = top.get("version")
    if type(version) is not int or version != VERSION:
        raise _malformed(f"its version is {version!r}, and this jaxcc reads version {VERSION}")
    was = Outline(
        axes=tuple(_mapping(top.get("mesh"), "mesh")),
        inputs=_texts(top.get("inputs"), "inputs"),
        operations=_texts(top.get("operations"), "operations"),
        results=tuple(
            _texts(dict(enumerate(_list(top.get("results"), "results"))), "results").values()
        ),
    )
    if differences := was.differences(outline(program)):
        name = top.get("function")
        whose = "" if name == program.name else f" of {name!r}"
        raise ScheduleError(
            "SCHEDULE_OTHER_PROGRAM",
            f"the saved steps{whose} were made for another program than {program.name} is now: "
            f"{differences[0]}",
            operands=tuple(differences[1:]),
            fixes=(f"schedule {program.name} anew and save that",),
        )
    return tuple(map(step_of, _list(top.get("steps"), "steps")))


def step_content(step: Step) -> dict[str, Any]:
    """The step as values for JSON."""
    step = checked(step)
    return {"verb": step.verb, "arguments": dict(step.arguments)}


def step_of(value: Any) -> Step:
    """The step that `step_content` gave.

    Raises:
      ScheduleError: SCHEDULE_FORMAT, SCHEDULE_VERB, SCHEDULE_ARGUMENT.
    """
    content = _mapping(value, "a step")
    verb = content.get("verb")
    if not isinstance(verb, str):
        raise _malformed(f"the verb of a step is {verb!r}, not a text")
    return checked(Step(verb, _mapping(content.get("arguments"), f"arguments of {verb!r}")))


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(f"{what} is {value!r}, not an object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _malformed(f"{what} is {value!r}, not a list")
    return value


def _texts(value: Any, what: str) -> dict[Any, str]:
    for one in _mapping(value, what).values():
        if not isinstance(one, str):
            raise _malformed(f"{what} holds {one!r}, not a text")
    return value


def _malformed(why: str) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_FORMAT",
        f"this is not a saved schedule: {why}",
        fixes=("pass the text that Schedule.to_json() returned",),
    )
