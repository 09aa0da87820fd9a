"""Choices: what a `cond` returns is what all its branches return, as `select` would choose it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc import _compat
from jaxcc.layout._apply import Applier
from jaxcc.layout._bodies import (
    body_of,
    chosen_by,
    inputs_of,
    joined_value,
    one_path,
    other_structure,
    refused_value,
    two_paths,
)
from jaxcc.layout._digits import CutError
from jaxcc.layout._flatten import Program, Slot, Step
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, Side, collective_of, computing_rule_of
from jaxcc.layout._values import Held


def cond(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    """The results of a cond or switch."""
    index, *operands = inputs_of(applier, step, other)
    count = len(step.params["branches"])
    if count != len(other.params["branches"]):
        raise other_structure("cond has other branches")
    if index.relation is None:
        applier.report(index.findings)
        return [index._replace(relation=None)] * len(step.results)
    bodies = [body_of(step, other, "branches", branch) for branch in range(count)]
    const = index.relation.const
    if const is not None and const[0] == const[1]:
        return bodies[min(max(int(const[0]), 0), count - 1)].walk(applier, operands)
    if one_path(index.relation, applier.sizes):
        made = [body.walk(applier, operands) for body in bodies]
        results = [
            joined_value(applier, step, helds, slot, "a result")
            for helds, slot in zip(zip(*made, strict=True), other.results, strict=True)
        ]
        return [chosen_by(held, index) for held in results]
    if any(_communicates(body.n) for body in bodies):
        refused = two_paths(applier, index, "the predicate of cond around a collective")
        finding = applier.finding(refused, step.line, ())
        applier.report((finding,))
        return [index._replace(relation=None, findings=(finding,))] * len(step.results)
    made = [body.walk(applier, operands) for body in bodies]
    return [
        _selected(applier, step, index, helds, slot)
        for helds, slot in zip(zip(*made, strict=True), other.results, strict=True)
    ]


def _communicates(program: Program) -> bool:
    eqns = _compat.all_eqns(step.eqn for step in program.steps)
    return any(collective_of(_compat.op_name(eqn)) is not None for eqn in eqns)


def _selected(applier: Applier, step: Step, index: Held, helds: Sequence[Held], slot: Slot) -> Held:
    """One result of branches that ranks choose between by themselves, as select chooses."""
    for held in helds:
        if held.relation is None:
            return held
    relations = [held.relation for held in helds if held.relation is not None]
    assert index.relation is not None
    shape, whole = relations[0].shape, slot.shape
    dtypes = (step.operands[0].dtype, *(slot.dtype,) * len(helds))
    eqn = Equation(
        "select_n",
        applier.sizes,
        Side({}, ((), *(shape,) * len(helds)), (shape,), dtypes, dtypes[1:2]),
        Side({}, ((), *(whole,) * len(helds)), (whole,), dtypes, dtypes[1:2]),
        name=lambda i: "the predicate of cond" if i == 0 else helds[i - 1].origin.name,
        layout=lambda i: applier.shown(index if i == 0 else helds[i - 1]),
        held=lambda i: index if i == 0 else helds[i - 1],
        number=lambda i: None,
    )
    rule = computing_rule_of("select_n")
    assert rule is not None
    try:
        made = rule(eqn, index.relation, *relations)
    except CutError:
        refused = Refused("LAYOUT_MISMATCH", "the branches of cond return different parts")
    except Refused as error:
        refused = error
    else:
        assert isinstance(made, Relation)
        return helds[0]._replace(relation=made, const=None, origin=step)
    return refused_value(applier, step, helds[0], refused)
