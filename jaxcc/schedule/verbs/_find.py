"""How verbs name what they act on, and what they say when it is not there."""

from __future__ import annotations

import difflib

from jaxcc.layout import ScheduleError
from jaxcc.program import COLLECTIVES, Op, Program


def find(program: Program, name: str, verb: str) -> Op:
    """The operation with this name.

    Raises:
      ScheduleError: there is none; the message has the names that are close.
    """
    names = [op.name for op in program.ops]
    for op in program.ops:
        if op.name == name:
            return op
    inside = next((op for op in program.ops for part in _inside(op) if part.name == name), None)
    if inside is not None:
        how = "fused into" if inside.kind == "fused" else "part of"
        raise ScheduleError(
            "SCHEDULE_NOT_FOUND",
            f"{verb}: '{name}' is already {how} '{inside.name}'",
            fixes=(f"take the step before the one that made '{inside.name}'",),
        )
    made = ("scatter", "gather", "reduce", "broadcast")
    parts = [f"{name}.{part}" for part in made if f"{name}.{part}" in names]
    close = difflib.get_close_matches(name, names, n=3)
    has = f"it has been split into {' and '.join(parts)}" if parts else ""
    has = has or (f"close to it are {', '.join(close)}" if close else f"it has {', '.join(names)}")
    raise ScheduleError(
        "SCHEDULE_NOT_FOUND",
        f"{verb}: {program.name} on {describe_sizes(program)} has no operation '{name}'; {has}",
        fixes=("print(schedule) shows all names; jaxcc.name(x, 'label') gives one of your own",),
    )


def _inside(op: Op) -> tuple[Op, ...]:
    """The operations inside, groups and what they hold."""
    return (*op.body, *(part for one in op.body for part in _inside(one)))


def find_kind(program: Program, name: str, verb: str, kind: str) -> Op:
    """The operation with this name, which must be of this kind."""
    op = find(program, name, verb)
    if op.kind != kind:
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"{verb}: '{name}' is {op.kind}, but {verb} acts on {kind}",
            line=op.line,
            fixes=_ways_to(kind, op),
        )
    if kind in COLLECTIVES and not op.params:
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"{verb}: '{name}' is not tiled, or runs over several axes or a part of one",
            line=op.line,
            fixes=(f"pass tiled=True to {kind}",),
        )
    return op


def _ways_to(kind: str, op: Op) -> tuple[str, ...]:
    if kind == "all_gather" and op.kind == "all_reduce":
        return (f"split('{op.name}') makes the all-gather '{op.name}.gather'",)
    return ()


def between_names(program: Program, moved: Op, after: Op) -> set[str]:
    """The names of the operations that `moved` would pass on its way past `after`, that included.

    Raises:
      ScheduleError: `after` does not depend on it.
    """
    between = program.reached_from(moved.outputs) & program.reaching(after.outputs)
    if after.name not in between:
        raise ScheduleError(
            "SCHEDULE_NOT_DEPENDENT",
            f"reorder: '{after.name}' does not depend on '{moved.name}'",
            line=after.line,
        )
    return between


def describe_sizes(program: Program) -> str:
    """`tp=2`, as listings show a mesh."""
    return " ".join(f"{axis}={size}" for axis, size in program.sizes.items())
