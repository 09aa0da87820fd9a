"""The steps that have a body or a claim of their own: loops, choices and `unsafe_assume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcc.layout._apply import Applier, ControlRule
from jaxcc.layout._assume import ASSUME
from jaxcc.layout._branches import cond
from jaxcc.layout._flatten import Step
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._loops import scan, while_
from jaxcc.layout._relation import from_layout
from jaxcc.layout._rules import Refused
from jaxcc.layout._trace import per_rank_shape
from jaxcc.layout._values import Given, Held, type_text


def _assumed(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    """What `unsafe_assume` says, whatever was known, or refused, before."""
    (slot,), (whole,) = step.operands, other.operands
    stated: LayoutMap = step.params["layout"]
    unknown = [axis for axis in stated if axis not in applier.sizes]
    if unknown:
        raise Refused("LAYOUT_AXIS", f"unsafe_assume names '{unknown[0]}', which is no axis here")
    layout = LayoutMap(tuple((axis, stated[axis]) for axis in _axes(stated, applier.sizes)))
    per_rank = per_rank_shape(whole.shape, layout, applier.sizes, "the assumed value")
    if per_rank != slot.shape or slot.dtype != whole.dtype:
        raise Refused(
            "LAYOUT_SHAPE",
            f"unsafe_assume says {layout.describe()} of a value of whole type {type_text(whole)}, "
            f"so a rank has shape {per_rank}; here it has {type_text(slot)}",
            fixes=("assume a layout that fits the shapes",),
        )
    where = "" if step.line is None else f" at {step.line}"
    applier.assume(f"assumed, not proved{where}: {type_text(whole)} {layout.describe()}")
    origin = Given(step.line, f"assumed{where}", "the assumed value")
    return [Held(0, from_layout(layout, whole.shape, applier.sizes), origin, origin)]


def _axes(stated: LayoutMap, sizes: Mapping[str, int]) -> list[str]:
    return [*stated, *(axis for axis in sizes if axis not in stated)]


CONTROL: Mapping[str, ControlRule] = {
    "scan": scan,
    "while": while_,
    "cond": cond,
    ASSUME: _assumed,
}
"""How each step that has a body, or a claim of its own, relates its results."""
