"""Checks a rewritten program as it would any other, and reads the layouts of its values."""

from __future__ import annotations

from typing import Any

from jaxcc import _compat
from jaxcc.layout import LayoutMap, ScheduleError, Trace, trace, walk
from jaxcc.program import VALUE_LABEL, Program, run
from jaxcc.schedule._rooted import rooted_layouts
from jaxcc.schedule._source import Source
from jaxcc.schedule.verbs._broadcast import ON_ROOT


def layouts_of(source: Source, program: Program, whole: Program) -> dict[str, LayoutMap | str]:
    """The layout of every value of `program`, a text where it is none that users can write.

    Args:
      source: where both programs come from.
      program: the rewritten program at the group's size.
      whole: the same steps applied to the program of a group of one.

    Raises:
      ScheduleError: `program` does not compute what `whole` does.
    """
    traced = _labelled_trace(source, program)
    result = walk(
        traced,
        _labelled_trace(source, whole),
        in_layouts=program.in_layouts,
        in_names=program.inputs,
        out_layouts=program.out_layouts,
    )
    if result.findings:
        first = result.findings[0]
        raise ScheduleError(
            "SCHEDULE_CHANGES_RESULT",
            f"this step would change what {program.name} computes: {first.what}",
            line=first.line,
            operands=first.operands,
            because=first.because,
        )
    layouts: dict[str, LayoutMap | str] = dict(zip(program.inputs, program.in_layouts, strict=True))
    for eqn in traced.eqns:
        label = str(eqn.params.get("name", "")) if _compat.op_name(eqn) == "name" else ""
        if label.startswith(VALUE_LABEL):
            layouts[label.removeprefix(VALUE_LABEL)] = result.layout_of(eqn.outvars[0])
    return rooted_layouts(program, layouts, ON_ROOT)


def describe(layout: LayoutMap | str) -> str:
    """The layout as listings show it."""
    return layout if isinstance(layout, str) else layout.describe()


def _labelled_trace(source: Source, program: Program) -> Trace:
    def function(*leaves: Any) -> list[Any]:
        return run(program, leaves, label=True, check_vma=source.check_vma)

    return trace(
        function,
        source.leaves(),
        program.in_layouts,
        program.sizes,
        check_vma=source.check_vma,
        mesh=program.mesh,
    )
