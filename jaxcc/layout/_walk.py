"""Walks a program's trace at n beside its trace at 1 and relates each pair of values.

Only computing equations are matched. Shape operations and collectives act on the side where they
stand, so that it does not matter if JAX leaves some of them out for some sizes. Two operands match
only if both come, through shape operations, from one matched pair: a wrong alignment can refuse a
program but never accept one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jaxcc.layout.rules as rules
from jaxcc.layout._align import align
from jaxcc.layout._apply import Applier
from jaxcc.layout._collector import collector_at_rest
from jaxcc.layout._control import CONTROL
from jaxcc.layout._dtypes import bytes_of
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Program, Slot, Step, flatten
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._outputs import check_output
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._params import require_same_dtype
from jaxcc.layout._relation import Relation, from_layout
from jaxcc.layout._repair import Repair
from jaxcc.layout._report import ReportSource
from jaxcc.layout._rules import Refused
from jaxcc.layout._settle import settled_value
from jaxcc.layout._trace import Trace
from jaxcc.layout._values import Given, Held

assert rules.__name__  # Imported for what it registers.


@dataclass(frozen=True)
class WalkResult:
    """What a walk found.

    Attributes:
      findings: all that is wrong and reaches an output or an effect; empty if it is accepted.
      outputs: for each output, its relation to that of a group of one, or None if it has none.
      out_layouts: for each output, its layout, or None if no layout says it.
      source: the program at n with what is known of each value, for a report.
      assumptions: what `unsafe_assume` claims in it.
      out_slots: its outputs.
    """

    findings: tuple[Finding, ...]
    outputs: tuple[Relation | None, ...]
    out_layouts: tuple[LayoutMap | None, ...]
    source: ReportSource
    assumptions: tuple[str, ...]
    out_slots: tuple[Slot, ...]
    _slots: Mapping[Any, Slot]
    _bodies: Sequence[Program]

    def steps(self) -> list[Step]:
        """Every step, those in loops and branches too."""
        return [*self.source.steps, *(step for body in self._bodies for step in body.steps)]

    def layout_of(self, var: Any) -> LayoutMap | str:
        """The layout of a variable of the trace at n, or a short text where no layout says it."""
        return self.source.layout(self._slots[var])


@collector_at_rest()
def walk(
    trace_n: Trace,
    trace_1: Trace,
    in_layouts: Sequence[LayoutMap],
    in_names: Sequence[str],
    out_layouts: Sequence[LayoutMap | None] | None,
    out_names: Sequence[str] = (),
    repairs: Callable[[Sequence[Step]], Sequence[Repair]] | None = None,
) -> WalkResult:
    """Relates the values of `trace_n` to those of `trace_1`, where every axis has size 1.

    Args:
      trace_n: the program as a rank of a group of n sees it.
      trace_1: the program on a group of one.
      in_layouts: for each input.
      in_names: what messages call each input.
      out_layouts: for each output; None infers it.
      out_names: what messages call each output.
      repairs: of the program at n the changes to be tried.
    """
    pairs = Pairs()
    n, one = flatten(trace_n), flatten(trace_1)
    changes = repairs(n.steps) if repairs is not None else ()
    applier = Applier(pairs, trace_n.sizes, CONTROL, changes)
    for slot, whole, layout, name in zip(n.inputs, one.inputs, in_layouts, in_names, strict=True):
        relation = from_layout(layout, whole.shape, trace_n.sizes)
        origin = Given(None, f"argument {name!r}", f"{name!r}")
        applier.pair(slot, whole, Held(0, relation, origin, origin))
    for slot, whole in itertools.zip_longest(n.consts, one.consts):
        if slot is not None:
            pairs.pair_captured(slot, whole)
    align(n.steps, one.steps, applier)
    return _finish(n, one, applier, out_layouts, out_names)


def _finish(
    n: Program,
    one: Program,
    applier: Applier,
    out_layouts: Sequence[LayoutMap | None] | None,
    out_names: Sequence[str],
) -> WalkResult:
    """Holds the outputs against their layouts."""
    outputs: list[Relation | None] = []
    layouts: list[LayoutMap | None] = []
    for index, (slot, whole) in enumerate(zip(n.outputs, one.outputs, strict=True)):
        declared = out_layouts[index] if out_layouts is not None else None
        name = out_names[index] if out_names else f"result {index}"
        relation, layout = _output(index, name, slot, whole, declared, applier)
        outputs.append(relation)
        layouts.append(layout)
    return WalkResult(
        tuple(applier.findings),
        tuple(outputs),
        tuple(layouts),
        ReportSource(n.steps, applier.pairs.held, applier.sizes),
        tuple(applier.assumptions),
        n.outputs,
        n.slots,
        applier.bodies,
    )


def _output(
    index: int, name: str, slot: Slot, whole: Slot, declared: LayoutMap | None, applier: Applier
) -> tuple[Relation | None, LayoutMap | None]:
    held = applier.pairs.at_n(slot)
    if held.findings:
        applier.report(held.findings)
        return None, None
    try:
        relation = applier.pairs.related(held, applier.pairs.at_1(whole))
        relation = settled_value(relation, name, applier.sizes)
        relation = applier.repairs.result(index, relation)
        require_same_dtype(slot, whole, f"{name} is")
    except Refused as refused:
        alone = applier.pairs.origin_alone(applier.pairs.at_1(whole))
        line = held.origin.line or (alone.line if alone else None)
        applier.report((applier.finding(refused, line, ()),))
        return None, None
    layout, findings = check_output(
        name, relation, whole.shape, declared, applier.sizes, held, slot
    )
    applier.report([_placed(finding, index, slot) for finding in findings])
    return relation, layout


def _placed(finding: Finding, index: int, slot: Slot) -> Finding:
    """The finding with its repairs at a result."""
    repairs = [
        replace(one, at=(index,), result=True, bytes=bytes_of(slot)) for one in finding.repairs
    ]
    return replace(finding, repairs=tuple(repairs))
