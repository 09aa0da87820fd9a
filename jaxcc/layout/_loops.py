"""Loops: what one carries is related by a relation that holds before it and that its body keeps.

It is found by walking the body until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxcc import _compat
from jaxcc.layout._apply import Applier
from jaxcc.layout._bodies import (
    Body,
    body_of,
    chosen_by,
    inputs_of,
    joined_value,
    other_structure,
    refused_value,
    require_one_path,
    same_relation,
    without_ties,
)
from jaxcc.layout._digits import Digit, Digits, uniform, whole_dim
from jaxcc.layout._flatten import Slot, Step, flatten_body
from jaxcc.layout._rows import all_rows
from jaxcc.layout._rules import Refused
from jaxcc.layout._values import Held

_ROUNDS = 8


def _fixed_point(
    applier: Applier,
    step: Step,
    start: Sequence[Held],
    slots: Sequence[Slot],
    turn: Callable[[Sequence[Held]], list[Held]],
) -> list[Held]:
    """What is known of carried values in every turn; the last walk of the body is with these."""
    carry = [without_ties(applier, step, held, "a carried value") for held in start]
    found = len(applier.findings)
    for _ in range(_ROUNDS):
        # What an earlier round found was of relations that do not hold in every turn.
        del applier.findings[found:]
        after = turn(carry)
        new: list[Held] = []
        for held, made, slot in zip(carry, after, slots, strict=True):
            if held.relation is None:
                new.append(held)
                continue
            made = without_ties(applier, step, made, "a carried value")
            both = joined_value(applier, step, [held, made], slot, "a carried value")
            kept = both.relation is not None and same_relation(both.relation, held.relation)
            new.append(held if kept else both)
        if all(a is b for a, b in zip(carry, new, strict=True)):
            return new
        carry = new
    del applier.findings[found:]
    refused = Refused(
        "LAYOUT_LOOP",
        f"what {step.op} carries is another multiple of a group of one's in every turn",
        because="a factor that depends on the number of ranks grows from turn to turn",
        fixes=("reduce inside the loop only what is pending, and take means with pmean",),
    )
    unsettled = [refused_value(applier, step, held, refused) for held in carry]
    turn(unsettled)
    return unsettled


def _require_same(step: Step, other: Step, *names: str) -> None:
    for name in names:
        if step.params.get(name) != other.params.get(name):
            at_n, at_1 = step.params.get(name), other.params.get(name)
            raise other_structure(f"{step.op} has {name}={at_n} and not {name}={at_1}")


def scan(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    """The carried values and rows of a scan."""
    _require_same(step, other, "reverse")
    if step.params["length"] != other.params["length"]:
        jaxprs = all_rows(step), all_rows(other)
        if None not in jaxprs:
            body = Body(*(flatten_body(j, s) for j, s in zip(jaxprs, (step, other), strict=True)))
            return body.walk(applier, inputs_of(applier, step, other))
        raise Refused(
            "LAYOUT_LOOP",
            f"{step.shown} runs {step.params['length']} turns on each of n ranks and "
            f"{other.params['length']} on one",
            because="a loop over a sliced dimension carries from row to row of a rank's own block",
            fixes=("use jax.vmap over the sliced dimension", "gather the dimension first"),
        )
    constants, carried, walked = _compat.scan_counts(step.eqn)
    if (constants, carried, walked) != _compat.scan_counts(other.eqn):
        raise other_structure(f"{step.op} reads other values")
    body = body_of(step, other, "jaxpr")
    helds = inputs_of(applier, step, other)
    fixed = helds[:constants]
    rows = [_row(applier, step, held) for held in helds[constants + carried :]]
    last: list[Held] = []

    def turn(carry: Sequence[Held]) -> list[Held]:
        made = body.walk(applier, [*fixed, *carry, *rows])
        last[:] = made[carried:]
        return made[:carried]

    start = helds[constants : constants + carried]
    final = _fixed_point(applier, step, start, other.results[:carried], turn)
    return [*final, *(_stacked(applier, step, held) for held in last)]


def _row(applier: Applier, step: Step, held: Held) -> Held:
    """One row of an array that a scan walks through, of which every rank holds all rows."""
    held = without_ties(applier, step, held, "an array that scan walks through")
    x = held.relation
    if x is None:
        return held
    length: int = step.params["length"]
    elsewhere = any(d.dim == 0 for held_ in (*x.dims[1:], *x.ranks.values()) for d in held_)
    if x.dims[0] not in (whole_dim(0, length), uniform(length)) or elsewhere:
        refused = Refused(
            "LAYOUT_LOOP",
            f"{step.shown} walks through dimension 0 of {held.origin.name}, which is "
            f"{applier.shown(held)}",
            because="a rank has not all of its rows, or has them in another order",
            fixes=(
                "pass it with the turns as dimension 0, which every rank holds whole, and what is "
                "Sliced as another",
                "gather the dimension first",
            ),
        )
        return refused_value(applier, step, held, refused)
    ranks = {axis: _moved(digits, -1) for axis, digits in x.ranks.items()}
    dims = tuple(_moved(digits, -1) for digits in x.dims[1:])
    return held._replace(relation=replace(x, dims=dims, ranks=ranks))


def _stacked(applier: Applier, step: Step, held: Held) -> Held:
    """The rows that a scan makes, one for each turn."""
    held = without_ties(applier, step, held, "a row that scan makes")
    x = held.relation
    if x is None:
        return held
    dims = (whole_dim(0, step.params["length"]), *(_moved(digits, 1) for digits in x.dims))
    ranks = {axis: _moved(digits, 1) for axis, digits in x.ranks.items()}
    # A number that is one in every turn was not proved to be so.
    return held._replace(relation=replace(x, dims=dims, ranks=ranks), const=None)


def _moved(digits: Digits, by: int) -> Digits:
    return tuple(
        Digit(digit.dim + by, digit.stride, digit.size) if digit.named else digit
        for digit in digits
    )


def while_(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    """What a while carries; its condition has to be the same on every rank."""
    _require_same(step, other, "cond_nconsts", "body_nconsts")
    conditions, constants = step.params["cond_nconsts"], step.params["body_nconsts"]
    test, body = body_of(step, other, "cond_jaxpr"), body_of(step, other, "body_jaxpr")
    helds = inputs_of(applier, step, other)
    read, fixed = helds[:conditions], helds[conditions : conditions + constants]
    start = helds[conditions + constants :]

    def turn(carry: Sequence[Held]) -> list[Held]:
        return body.walk(applier, [*fixed, *carry])

    final = _fixed_point(applier, step, start, other.results, turn)
    (predicate,) = test.walk(applier, [*read, *final])
    require_one_path(applier, step, predicate, "the condition of while")
    return [chosen_by(held, predicate) for held in final]
