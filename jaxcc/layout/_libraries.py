"""What to do about what a library computes, where the user can change no line."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc.layout._errors import Finding

_DROPOUT = (
    "flax's Dropout draws for the rank's own shape: multiply by a mask from "
    "jaxcc.random.bernoulli(key, keep, shape, axis_name=..., dim=...) / keep instead",
    "or give each rank a key of its own, and say what comes of it with jaxcc.unsafe_assume, which "
    "takes it on trust",
)


def advice_in_library(finding: Finding) -> tuple[str, ...] | None:
    """What to do about a finding in a layer of Flax, by its own options; None elsewhere."""
    within = "" if finding.line is None else finding.line.within
    if not within.startswith("flax/"):
        return None
    file = within.rpartition(":")[0].rpartition("/")[2]
    if file == "normalization.py":
        axes = dict.fromkeys(axis for one in finding.repairs for axis, _ in one.reduce)
        if axes:
            named = ", ".join(f"'{axis}'" for axis in axes)
            named = f"({named})" if len(axes) > 1 else named
            return (f"give the layer axis_name={named}, over which it then takes its statistics",)
    if file == "stochastic.py" and finding.code == "LAYOUT_RANDOM":
        return _DROPOUT
    return None


def of_your_own(finding: Finding, fixes: Sequence[str]) -> list[str]:
    """Fixes of an operation in a library, which only a version of the user's own can have."""
    within = "" if finding.line is None else finding.line.within
    if not within or finding.result:
        return list(fixes)
    return [f"in a version of your own of {within}: {fix}" for fix in fixes]
