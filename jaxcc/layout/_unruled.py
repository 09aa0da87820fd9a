"""Primitives without a layout rule, and what rules return that is no relation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from jaxcc import _compat
from jaxcc.layout._digits import uniform, whole_dim
from jaxcc.layout._flatten import Step
from jaxcc.layout._relation import ANY_SCALE, Relation, same_scale
from jaxcc.layout._rules import Refused, collective_of

# Code that JAX does not see.
_OUTSIDE = ("ffi_call", "pure_callback", "io_callback")


def why_rule_needed(
    step: Step, other: Step, relations: Sequence[Relation], axes: Collection[str]
) -> str:
    """Why a primitive without a rule cannot be accepted here; empty if it can."""
    if effects := outside_effects(step.eqn):
        return f"nothing is known of its effect {effects[0]}"
    if step.op in _OUTSIDE:
        return "nothing is known of what it computes, or whether it communicates"
    if step.eqn.effects or any(_communicates(eqn, axes) for eqn in _compat.all_eqns([step.eqn])):
        return "nothing is known of the mesh axes that it uses"
    if str(step.params) != str(other.params):
        return "its parameters must not depend on the number of ranks"
    shapes = [slot.shape for slot in other.operands]
    if not all(_plain(r, shape) for r, shape in zip(relations, shapes, strict=True)):
        return "all its operands must be Replicated and equal to those of a group of one"
    return ""


def outside_effects(eqn: Any) -> list[Any]:
    """The effects that somebody can see; using a mesh axis is one only to JAX."""
    return [effect for effect in eqn.effects if type(effect).__name__ != "NamedAxisEffect"]


def _communicates(eqn: Any, axes: Collection[str]) -> bool:
    """Whether an equation by itself names an axis of the mesh or is a collective."""
    return (
        any(names_axis(value, axes) for value in eqn.params.values())
        or "axis_name" in eqn.params
        or "axis_index_groups" in eqn.params
        or collective_of(_compat.op_name(eqn)) is not None
    )


def names_axis(value: Any, axes: Collection[str]) -> bool:
    """Whether a parameter says one of the axes, by itself or inside."""
    if isinstance(value, str):
        return value in axes
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(names_axis(part, axes) for part in cast(Collection[Any], value))
    return False


def _plain(relation: Relation, whole: tuple[int, ...]) -> bool:
    """Whether every rank holds the very value of the group of one, or an unrelated one of its
    shape."""
    return (
        (relation.scale == ANY_SCALE or same_scale(relation.scale, 1.0))
        and not relation.ranks
        and not relation.partial
        and relation.shape == whole
        and all(
            digits in (whole_dim(d, size), uniform(size))
            for d, (digits, size) in enumerate(zip(relation.dims, whole, strict=True))
        )
    )


def relations_of(op: str, made: Any) -> list[Relation]:
    """What a rule returned, as a relation for each result."""
    several = isinstance(made, Sequence) and not isinstance(made, str)
    relations: list[Any] = list(cast(Sequence[Any], made)) if several else [made]
    for relation in relations:
        if not isinstance(relation, Relation):
            raise Refused(
                "LAYOUT_RULE",
                f"the layout rule of {op} returned {relation!r}, not a relation",
                because="a rule returns a relation for its result, or a sequence of one for each",
                fixes=(f"return a relation from the rule that is registered for {op}",),
            )
    return relations
