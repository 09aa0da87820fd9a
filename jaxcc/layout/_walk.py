"""Walks a program's trace at n beside its trace at 1 and relates each pair of values.

Only computing equations are matched. Shape operations and collectives act on the side where they
stand, so that it does not matter if JAX leaves some of them out for some sizes. Two operands match
only if both come, through shape operations, from one matched pair: a wrong alignment can refuse a
program but never accept one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jaxcc.layout.rules as rules
from jaxcc.layout._apply import Applier
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Program, Slot, Step, flatten
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._outputs import check_output
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._params import require_same_dtype
from jaxcc.layout._relation import Relation, from_layout
from jaxcc.layout._report import ReportLine, report_line
from jaxcc.layout._rules import Refused, collective_of, shape_rule_of
from jaxcc.layout._trace import Trace
from jaxcc.layout._values import Held, Origin

_LOOK_AHEAD = 8
assert rules.__name__  # Imported for what it registers.


@dataclass(frozen=True)
class WalkResult:
    """What a walk found.

    Attributes:
      findings: all that is wrong and reaches an output or an effect; empty if it is accepted.
      outputs: for each output, its relation to that of a group of one, or None if it has none.
      out_layouts: for each output, its layout, or None if no layout says it.
      lines: the program at n, a line for each operation that a reader cares about.
    """

    findings: tuple[Finding, ...]
    outputs: tuple[Relation | None, ...]
    out_layouts: tuple[LayoutMap | None, ...]
    lines: tuple[ReportLine, ...]
    _layouts: Mapping[Any, LayoutMap | str]

    def layout_of(self, var: Any) -> LayoutMap | str:
        """The layout of a variable of the trace at n, or a short text where no layout says it."""
        return self._layouts[var]


def walk(
    trace_n: Trace,
    trace_1: Trace,
    in_layouts: Sequence[LayoutMap],
    in_names: Sequence[str],
    out_layouts: Sequence[LayoutMap] | None,
) -> WalkResult:
    """Relates the values of `trace_n` to those of `trace_1`, where every axis has size 1.

    Args:
      trace_n: the program as a rank of a group of n sees it.
      trace_1: the program on a group of one.
      in_layouts: for each input.
      in_names: what messages call each input.
      out_layouts: for each output; None infers them.
    """
    pairs = Pairs()
    n, one = flatten(trace_n), flatten(trace_1)
    for slot, whole, layout, name in zip(n.inputs, one.inputs, in_layouts, in_names, strict=True):
        relation = from_layout(layout, whole.shape, trace_n.sizes)
        origin = Origin(None, f"argument {name!r}", f"{name!r}")
        pairs.pair(slot, whole, Held(0, relation, origin, origin))
    for slot, whole in itertools.zip_longest(n.consts, one.consts):
        if slot is not None:
            pairs.pair_captured(slot, whole)
    applier = Applier(pairs, trace_n.sizes)
    _align(n.steps, one.steps, applier)
    return _finish(n, one, applier, out_layouts)


def _align(n: Sequence[Step], one: Sequence[Step], applier: Applier) -> None:
    """Matches the computing steps of both sides in order."""
    i = j = 0
    while i < len(n) or j < len(one):
        if i < len(n) and applier.moved_at_n(n[i]):
            i += 1
        elif j < len(one) and applier.moved_at_1(one[j]):
            j += 1
        else:
            to_i, to_j = _next_match(n, i, one, j, applier.pairs)
            for step in n[i:to_i]:
                if not applier.moved_at_n(step):
                    applier.unmatched_at_n(step)
            for step in one[j:to_j]:
                if not applier.moved_at_1(step):
                    applier.unmatched_at_1(step)
            i, j = to_i, to_j
            if i < len(n) and j < len(one):
                applier.matched(n[i], one[j])
                i, j = i + 1, j + 1


def _next_match(
    n: Sequence[Step], i: int, one: Sequence[Step], j: int, pairs: Pairs
) -> tuple[int, int]:
    """The next two computing steps that correspond, a short way ahead; else the ends of both lists
    or a step on."""
    if i == len(n) or j == len(one):
        return len(n), len(one)
    if pairs.correspond(n[i], one[j]):
        return i, j
    same = n[i].op == one[j].op and len(n[i].operands) == len(one[j].operands)
    ahead, ahead_1 = _ahead(n, i), _ahead(one, j)
    choices = [(a, b) for a in range(len(ahead)) for b in range(len(ahead_1)) if a or b]
    for a, b in sorted(choices, key=lambda choice: (sum(choice), choice)):
        step, other = n[ahead[a]], one[ahead_1[b]]
        # Where the next steps are alike anyway, only a certain match is better.
        if pairs.correspond(step, other, so_far=not same):
            return ahead[a], ahead_1[b]
    if same:
        return i, j
    return (ahead[1] if len(ahead) > 1 else len(n)), (ahead_1[1] if len(ahead_1) > 1 else len(one))


def _ahead(steps: Sequence[Step], start: int) -> list[int]:
    """`start` and the next few computing steps."""
    later = (k for k in range(start + 1, len(steps)) if not _moves(steps[k]))
    return [start, *itertools.islice(later, _LOOK_AHEAD)]


def _moves(step: Step) -> bool:
    return shape_rule_of(step.op) is not None or collective_of(step.op) is not None


def _finish(
    n: Program, one: Program, applier: Applier, out_layouts: Sequence[LayoutMap] | None
) -> WalkResult:
    """Holds the outputs against their layouts."""
    outputs: list[Relation | None] = []
    layouts: list[LayoutMap | None] = []
    for index, (slot, whole) in enumerate(zip(n.outputs, one.outputs, strict=True)):
        declared = out_layouts[index] if out_layouts is not None else None
        relation, layout = _output(index, slot, whole, declared, applier)
        outputs.append(relation)
        layouts.append(layout)
    held, sizes = applier.pairs.held, applier.sizes
    lines = [report_line(step, held, sizes) for step in n.steps]
    return WalkResult(
        tuple(applier.findings),
        tuple(outputs),
        tuple(layouts),
        tuple(line for line in lines if line is not None),
        {var: applier.shown(held[slot]) for var, slot in n.slots.items() if slot in held},
    )


def _output(
    index: int, slot: Slot, whole: Slot, declared: LayoutMap | None, applier: Applier
) -> tuple[Relation | None, LayoutMap | None]:
    held = applier.pairs.at_n(slot)
    if held.findings:
        applier.report(held.findings)
        return None, None
    try:
        relation = applier.pairs.related(held, applier.pairs.at_1(whole))
        require_same_dtype(slot, whole, f"result {index} is")
    except Refused as refused:
        applier.report((applier.finding(refused, held.origin.line, ()),))
        return None, None
    layout, findings = check_output(
        index, relation, whole.shape, declared, applier.sizes, held, slot
    )
    applier.report(findings)
    return relation, layout
