"""Entering a nested `shard_map` slices, leaving it puts slices together."""

from __future__ import annotations

from jaxcc.layout._nested import ENTER, LEAVE, spec_of
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, collective_rule
from jaxcc.layout.rules._combine import partial_refused
from jaxcc.layout.rules.collective import gathered, scattered


@collective_rule(ENTER)
def _enter(eqn: Equation, x: Relation) -> Relation:
    for dim, axes in spec_of(eqn.per_rank.params):
        for axis in axes:
            if not x.plain_over(axis):
                raise Refused(
                    "LAYOUT_MISMATCH",
                    f"the shard_map slices {eqn.name(0)} over '{axis}', but it is {eqn.layout(0)}",
                    because="it has to be one array for all ranks along that axis",
                )
            x = scattered(eqn, x, axis, dim)
    return x


@collective_rule(LEAVE)
def _leave(eqn: Equation, x: Relation) -> Relation:
    params = eqn.per_rank.params
    sliced = spec_of(params)
    named = {axis for _, axes in sliced for axis in axes}
    for axis in (*params["axes"], *sorted(named.difference(params["axes"]))):
        _require_known(eqn, x, axis, axis in named)
    for dim, axes in sliced:
        x = gathered(eqn, x, axes, dim)
    return x


def _require_known(eqn: Equation, x: Relation, axis: str, named: bool) -> None:
    """Refuses a result that is not what its spec says over one axis of the `shard_map`."""
    if eqn.sizes[axis] == 1:
        return
    if axis in x.partial:
        why = "leaving the shard_map takes one rank's term for the whole"
        if named:
            why = "leaving the shard_map lays the terms of a sum side by side"
        raise partial_refused(eqn, 0, axis, x.partial[axis], why)
    if named or x.plain_over(axis):
        return
    held = eqn.layout(0)
    raise Refused(
        "LAYOUT_RESULT",
        f"the result of the shard_map does not name '{axis}' in its out_specs, but is {held}",
        because="outside it is one array, of which every rank then has something else",
        fixes=(f"name '{axis}' in out_specs where the blocks lie", f"reduce it over '{axis}'"),
    )
