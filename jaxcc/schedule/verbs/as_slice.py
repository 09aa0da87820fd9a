"""as_slice: an input that only its slice is read of, or a result that need not be gathered, becomes
Sliced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxcc.layout import LayoutMap, Replicated, ScheduleError, Sliced
from jaxcc.program import Program, rename
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._find import find


def as_slice[S: Scheduled](schedule: S, *names: str) -> S:
    """Keeps inputs and results sliced between calls: 1/n of the memory, and no all-gather.

    Args:
      names: inputs that are only read through `own_slice`, and values that are only gathered to be
        returned.

    Rewrite:
      in m: Replicated ; m.slice = own_slice(m) ; new_m = f(m.slice) ; out all_gather(new_m):
        Replicated
      -->
      in m: Sliced(dim) ; new_m = f(m) ; out new_m: Sliced(dim)

    Raises:
      ScheduleError: a name is neither, or something reads the whole value.
    """
    for name in names:
        schedule = schedule.then(Step("as_slice", {"name": name}))
    return schedule


@rewrite("as_slice")
def _apply(program: Program, *, name: str) -> Program:
    if name in program.inputs:
        return _slice_input(program, name)
    return _slice_output(program, name)


def _slice_input(program: Program, name: str) -> Program:
    users = program.users(name)
    for op in users:
        if op.kind != "own_slice" or op.params != users[0].params:
            raise ScheduleError(
                "SCHEDULE_READ_WHOLE",
                f"as_slice: '{op.name}' ({op.kind}) reads all of '{name}', not only a slice",
                line=op.line,
                fixes=("reorder the all-gather past it first, so that it runs on slices",),
            )
    if not users or name in program.outputs:
        where = "is returned as it is" if name in program.outputs else "is not read"
        raise ScheduleError("SCHEDULE_READ_WHOLE", f"as_slice: '{name}' {where}")
    index = program.inputs.index(name)
    layouts, types = list(program.in_layouts), list(program.in_types)
    layouts[index] = _sliced(layouts[index], users[0].params, name)
    types[index] = users[0].types[0]
    mine = {op.outputs[0]: name for op in users}
    rest = [op for op in program.ops if op.outputs[0] not in mine]
    return program.with_ops(rename(rest, mine), in_layouts=tuple(layouts), in_types=tuple(types))


def _slice_output(program: Program, name: str) -> Program:
    value = find(program, name, "as_slice")
    candidates = (value, *program.users(name))
    gather = next((op for op in candidates if op.kind == "all_gather" and op.params), None)
    if gather is None or gather.name not in program.outputs:
        raise ScheduleError(
            "SCHEDULE_READ_WHOLE",
            f"as_slice: '{name}' is not a value that is gathered only to be returned",
            line=value.line,
        )
    if readers := program.users(gather.name):
        raise ScheduleError(
            "SCHEDULE_READ_WHOLE",
            f"as_slice: '{readers[0].name}' reads all of '{gather.name}'",
            line=readers[0].line,
        )
    layouts = [
        _sliced(layout, gather.params, name) if out == gather.name else layout
        for out, layout in zip(program.outputs, program.out_layouts, strict=True)
    ]
    outputs = tuple(gather.inputs[0] if out == gather.name else out for out in program.outputs)
    rest = [op for op in program.ops if op is not gather]
    return program.with_ops(rest, outputs=outputs, out_layouts=tuple(layouts))


def _sliced(layout: LayoutMap, params: Mapping[str, Any], name: str) -> LayoutMap:
    (axis,) = params["axes"]
    if layout[axis] != Replicated:
        raise ScheduleError(
            "SCHEDULE_READ_WHOLE", f"as_slice: '{name}' is {layout.describe()} already"
        )
    items = tuple((a, Sliced(params["dim"]) if a == axis else one) for a, one in layout.items_)
    return replace(layout, items_=items)
