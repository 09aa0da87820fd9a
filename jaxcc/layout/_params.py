"""The parameters and types of one operation on both sides, which have to be the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcc import _compat
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._rules import Refused

# What says nothing of the values, and the shapes, which the relations of the results are held to.
APART = frozenset({"sharding", "out_sharding", "mesh", "weak_type", "shape", "new_sizes"})
_SCATTERS = ("", "-add", "-sub", "-mul", "-max", "-min")
# What the operation's rule itself reads on both sides.
_COMPARED_BY_RULE = {
    "conv_general_dilated": {"batch_group_count", "feature_group_count"},
    "dot_general": {"dimension_numbers"},
    "dynamic_slice": {"slice_sizes"},
    "fft": {"fft_lengths"},
    "gather": {"slice_sizes", "fill_value", "dimension_numbers"},
    "pad": {"padding_config"},
    "reduce": {"computation"},
    "slice": {"start_indices", "limit_indices"},
    "split": {"sizes"},
    **{f"scatter{kind}": {"dimension_numbers"} for kind in _SCATTERS},
    **{f"reduce_{kind}": {"axes"} for kind in ("sum", "max", "min", "prod", "and", "or")},
}


def require_same_operation(step: Step, other: Step) -> None:
    """Refuses a computing step that is another function on n ranks than on one."""
    compared = APART | _COMPARED_BY_RULE.get(step.op, set())
    for name in sorted({*step.params, *other.params} - compared):
        at_n, at_1 = step.params.get(name), other.params.get(name)
        if not _same(at_n, at_1):
            raise differs(f"{step.op} has {name}={at_n} on n ranks and {name}={at_1} on one")
    for what, slots, wholes in (
        ("reads", step.operands, other.operands),
        ("makes", step.results, other.results),
    ):
        if len(slots) != len(wholes):
            raise differs(
                f"{step.op} {what} {len(slots)} values on n ranks and {len(wholes)} on one"
            )
        for slot, whole in zip(slots, wholes, strict=True):
            require_same_dtype(slot, whole, f"{step.op} {what}")


def require_same_dtype(slot: Slot, whole: Slot, what: str) -> None:
    """Refuses two values of different element types; `what` begins the sentence."""
    if slot.dtype != whole.dtype:
        raise differs(f"{what} {slot.dtype} on n ranks and {whole.dtype} on one")


def _same(at_n: Any, at_1: Any) -> bool:
    if hasattr(_compat.open_jaxpr(at_n), "eqns"):
        return True
    try:
        same = at_n == at_1
        return same if isinstance(same, bool) else bool(np.all(same))
    except ValueError:
        return False


def differs(what: str) -> Refused:
    """The error for an operation that is another one on n ranks than on one."""
    return Refused(
        "LAYOUT_STRUCTURE",
        what,
        because="the program computes another function on one rank than on n",
        fixes=("let it not depend on the group's size",),
    )
