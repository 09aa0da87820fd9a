"""Findings of a walk: what a rule refused, with the operands and where they got their layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc._compat import SourceLine
from jaxcc.layout._advice import RANDOM_FIXES, RANDOM_WHY, is_random
from jaxcc.layout._dtypes import bytes_of
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Step
from jaxcc.layout._groups import group_text
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._relation import Relation, layout_seen, same_scale
from jaxcc.layout._repair import Repair
from jaxcc.layout._rules import Refused
from jaxcc.layout._values import Held, Origin, described, type_text


def layout_text(held: Held, sizes: Mapping[str, int]) -> str:
    """The layout to show for a value."""
    if held.relation is None:
        return "refused"
    seen = by_rank_text(held.relation, layout_seen(held.relation, tuple(sizes)))
    return seen.describe() if isinstance(seen, LayoutMap) else seen


def by_rank_text(relation: Relation, seen: LayoutMap | str) -> LayoutMap | str:
    """The layout, or a text that says that each rank has something of its own there."""
    if not relation.by_rank:
        return seen
    text = seen.describe() if isinstance(seen, LayoutMap) else seen
    if relation.const is not None:
        return "another number on every rank"
    owned = relation.tie is not None and (relation.tie.within or relation.tie.mask)
    what = "the part that each rank owns" if owned else "counted from each rank's own block"
    return what if text == "Replicated" else f"{text}, {what}"


def finding_of(
    refused: Refused,
    line: SourceLine | None,
    helds: Sequence[Held],
    sizes: Mapping[str, int],
    step: Step | None = None,
) -> Finding:
    """What a rule refused, with the line and each value's layout and where it got it.

    With a step, `helds` are its operands.
    """
    operands: list[str] = []
    for index, held in enumerate(helds):
        where = described(_place_shown(held, refused.code))
        shown = f"{layout_text(held, sizes)}, {where}"
        if step is None:
            operands.append(f"{held.origin.name}: {shown}")
        else:
            operands.append(f"operand {index}: {type_text(step.operands[index])} {shown}")
    repairs = _placed(refused.repairs, step)
    lost = {fix for one in refused.repairs if not _can_be_tried(one, step) for fix in one.fixes}
    return Finding(
        refused.code,
        refused.what,
        line,
        tuple(operands),
        refused.because,
        tuple(fix for fix in refused.fixes if fix not in lost),
        repairs,
        untried=tuple(fix for fix in refused.fixes if fix in lost),
    )


def _place_shown(held: Held, code: str) -> Origin:
    """Where a value got what is wrong with it: its factor, or its layout."""
    x = held.relation
    if code == "LAYOUT_SCALE" and x is not None and not same_scale(x.scale, 1.0):
        return held.scaled
    return held.placed or held.origin


def _can_be_tried(repair: Repair, step: Step | None) -> bool:
    return step is not None and repair.operand is not None


def _placed(repairs: Sequence[Repair], step: Step | None) -> tuple[Repair, ...]:
    """The repairs that can be tried, at the place of the step."""
    return tuple(
        replace(
            repair,
            at=step.place,
            inside=step.shown if step.shown != step.op else "",
            bytes=bytes_of(step.operands[repair.operand]),
        )
        for repair in repairs
        if step is not None and repair.operand is not None
    )


# What a key of a rank's own is refused for, depending on how it was made.
_OWN_KEY = ("LAYOUT_RANK_INDEX", "LAYOUT_STRUCTURE", "LAYOUT_RESHAPE", "LAYOUT_SLICE")


def for_random(step: Step, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, with what to do if a key or number of a rank's own makes random numbers."""
    if not is_random(step.op):
        return findings
    return tuple(
        replace(finding, code="LAYOUT_RANDOM", because=RANDOM_WHY, fixes=RANDOM_FIXES)
        if finding.code in _OWN_KEY
        else finding
        for finding in findings
    )


def cut_refused(step: Step, held: Held) -> Refused:
    """The error for a shape operation whose blocks are no blocks of the whole result."""
    return Refused(
        "LAYOUT_RESHAPE",
        f"{step.op} cuts {held.origin.name} where its blocks are not whole",
        because="a block of the result is no block of the whole result",
        fixes=("gather it first, or keep the sliced dimension a leading part",),
    )


def unmatched_finding(step: Step, sizes: Mapping[str, int]) -> Finding:
    """The finding for a step that a group of one does not have."""
    return Finding(
        "LAYOUT_STRUCTURE",
        f"{step.shown} runs on ranks {group_text(sizes)}, but a group of one has no such step",
        step.line,
        because="the program takes another path on one rank than on n",
        fixes=(
            "let the path not depend on the group's size",
            'for a ring or a pipeline: check(..., structure="rank-dependent"), which runs the '
            "program instead of proving it",
        ),
    )
