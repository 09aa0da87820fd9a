"""The bodies of loops and branches as programs of their own, and what several values share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcc.layout._align import align
from jaxcc.layout._apply import Applier, rooted
from jaxcc.layout._digits import CutError
from jaxcc.layout._flatten import Program, Slot, Step, flatten_body
from jaxcc.layout._params import require_same_dtype
from jaxcc.layout._relation import ANY_SCALE, EXACT_TOLERANCE, Relation, joined, same_scale
from jaxcc.layout._rules import Equation, Refused, Side
from jaxcc.layout._settle import settle, settled_value
from jaxcc.layout._turns import require_straight
from jaxcc.layout._values import Held
from jaxcc.layout.rules._combine import additive

_OWN_BLOCKS = "through loops and branches only blocks are followed that are the ranks' own"


@dataclass(frozen=True)
class Body:
    """A jaxpr inside a step, at n and at 1."""

    n: Program
    one: Program

    def walk(self, applier: Applier, inputs: Sequence[Held]) -> list[Held]:
        """What is known of the outputs, each in terms of the whole one."""
        pairs = applier.pairs
        applier.bodies.append(self.n)
        for slot, whole, held in zip(self.n.inputs, self.one.inputs, inputs, strict=True):
            applier.pair(slot, whole, held)
        for slot, whole in zip(self.n.consts, self.one.consts, strict=True):
            pairs.pair_captured(slot, whole)
        align(self.n.steps, self.one.steps, applier)
        made: list[Held] = []
        for slot, whole in zip(self.n.outputs, self.one.outputs, strict=True):
            held = pairs.at_n(slot)
            if held.relation is None:
                made.append(held)
                continue
            try:
                require_same_dtype(slot, whole, "the body of the loop makes")
                relation = pairs.related(held, pairs.at_1(whole))
                require_straight(relation, held.origin.name, _OWN_BLOCKS)
                made.append(held._replace(relation=relation))
            except Refused as refused:
                finding = applier.finding(refused, held.origin.line, ())
                made.append(held._replace(relation=None, findings=(finding,)))
        return made


def body_of(step: Step, other: Step, name: str, index: int | None = None) -> Body:
    """The jaxpr of a parameter on both sides."""
    here, whole = step.params[name], other.params[name]
    if index is not None:
        here, whole = here[index], whole[index]
    # A while has two.
    number = index if index is not None else int(name == "body_jaxpr")
    body = Body(flatten_body(here, step, number), flatten_body(whole, other))
    counts = [(len(p.inputs), len(p.outputs), len(p.consts)) for p in (body.n, body.one)]
    if counts[0] != counts[1]:
        raise other_structure(f"the body of {step.op} reads or makes other values")
    return body


def other_structure(what: str) -> Refused:
    """The error for a program that takes another path on one rank than on n."""
    return Refused(
        "LAYOUT_STRUCTURE",
        f"{what} on n ranks than on one",
        because="the program takes another path on one rank than on n",
        fixes=("let the path not depend on the group's size",),
    )


def inputs_of(applier: Applier, step: Step, other: Step) -> list[Held]:
    """What is known of the operands, each in terms of the whole one."""
    read = [applier.pairs.at_n(slot) for slot in step.operands]
    helds: list[Held] = []
    for held, slot, whole_slot in zip(read, step.operands, other.operands, strict=True):
        whole = applier.pairs.at_1(whole_slot)
        if held.relation is not None:
            try:
                require_same_dtype(slot, whole_slot, f"{step.op} reads")
                relation = applier.pairs.related(held, whole)
                require_straight(relation, held.origin.name, _OWN_BLOCKS)
                held = held._replace(relation=rooted(relation, slot, held, whole))
            except Refused as refused:
                finding = applier.finding(refused, step.line, read, step)
                held = held._replace(relation=None, findings=(finding,))
        helds.append(held)
    return helds


def without_ties(applier: Applier, step: Step, held: Held, name: str) -> Held:
    """The value without ties to integers, which another turn of a loop has others of."""
    if held.relation is None or (not held.relation.by_rank and held.relation.tie is None):
        return held
    try:
        return held._replace(relation=settled_value(held.relation, name, applier.sizes))
    except Refused as refused:
        return refused_value(applier, step, held, refused)


def refused_value(applier: Applier, step: Step, held: Held, refused: Refused) -> Held:
    """The value, which need be no operand of the step, marked with why it is refused."""
    finding = applier.finding(refused, step.line, [held])
    return held._replace(relation=None, findings=(finding,))


def _side(shape: tuple[int, ...], count: int, dtype: Any) -> Side:
    return Side({}, (shape,) * count, (shape,), (dtype,) * count, (dtype,))


def joined_value(
    applier: Applier, step: Step, helds: Sequence[Held], slot: Slot, what: str
) -> Held:
    """What is known of a value that is one of `helds`, and no rank or reader can tell which."""
    for held in helds:
        if held.relation is None:
            return held
    first = helds[0]
    relations = [held.relation for held in helds if held.relation is not None]
    if all(same_relation(relation, relations[0]) for relation in relations):
        return first
    name = f"{what} of {step.op}"
    try:
        known = [settled_value(relation, name, applier.sizes) for relation in relations]
        return first._replace(relation=_join(applier, step, helds, known, slot, name), const=None)
    except CutError:
        texts = " and ".join(dict.fromkeys(applier.shown(held) for held in helds))
        refused = Refused(
            "LAYOUT_LOOP",
            f"{name} has no one layout: {texts}",
            because="it must be one whatever turn or branch it comes from",
            fixes=("bring it to one layout inside (all_gather, psum) before it is returned",),
        )
    except Refused as error:
        because = error.because or f"{name} must have one layout and scale in every turn or branch"
        code = "LAYOUT_LOOP" if error.code == "LAYOUT_SCALE" else error.code
        refused = Refused(code, error.what, because=because, fixes=error.fixes)
    return refused_value(applier, step, first, refused)


def same_relation(a: Relation, b: Relation) -> bool:
    """Whether two relations say the same; 0.0 and -0.0 are equal, and no one number."""
    return a is b or (a == b and repr(a.const) == repr(b.const))


def _join(
    applier: Applier,
    step: Step,
    helds: Sequence[Held],
    relations: Sequence[Relation],
    slot: Slot,
    name: str,
) -> Relation:
    """The relation that each of `relations` implies."""
    local = frozenset[str]().union(*(x.local for x in relations))
    if any(axis in x.ranks for x in relations for axis in local):
        raise CutError
    dims, ranks = joined(relations)
    shape = relations[0].shape
    eqn = Equation(
        step.op,
        applier.sizes,
        _side(shape, len(relations), slot.dtype),
        _side(slot.shape, len(relations), slot.dtype),
        name=lambda index: f"{name} ({helds[index].origin.name})",
        layout=lambda index: applier.shown(helds[index]),
        held=lambda index: helds[index],
        number=lambda index: None,
    )
    # 0 and infinities are what they are on every rank, so they fit any scale and a pending sum.
    free = [math.isinf(x.scale) and not x.partial for x in relations]
    bound = [x for x, is_free in zip(relations, free, strict=True) if not is_free]
    scales = [x.scale for x in bound if not math.isinf(x.scale)]
    alike = all(x.partial == bound[0].partial for x in bound)
    # A factor that is only nearly 1 is a power of it after many turns.
    if bound and alike and all(_same_factor(scale, scales[0]) for scale in scales):
        scale, partial = scales[0] if scales else ANY_SCALE, bound[0].partial
        if any(free) and (scale <= 0 or any(op != "sum" for op in partial.values())):
            raise CutError
    else:
        scale, partial = additive(eqn, relations)
    base = Relation(
        dims,
        ranks,
        {axis: op for axis, op in partial.items() if axis not in local},
        local,
        unmeasured=any(x.unmeasured for x in relations),
    )
    return base.scaled(scale)


def _same_factor(a: float, b: float) -> bool:
    """Whether two scales are one, exactly: what is carried is multiplied again and again."""
    return abs(a - b) <= EXACT_TOLERANCE * max(abs(a), abs(b))


def require_one_path(applier: Applier, step: Step, predicate: Held, name: str) -> None:
    """Reports a predicate that is not the same on every rank and on a group of one."""
    if predicate.relation is None:
        applier.report(predicate.findings)
        return
    if not one_path(predicate.relation, applier.sizes):
        applier.report((applier.finding(two_paths(applier, predicate, name), step.line, ()),))


def one_path(predicate: Relation, sizes: Mapping[str, int]) -> bool:
    """Whether a predicate is the same on every rank and on a group of one."""
    plain = settle(predicate, sizes)
    if plain is None or plain.ranks or plain.partial or plain.local:
        return False
    return math.isinf(plain.scale) or same_scale(plain.scale, 1.0)


def chosen_by(held: Held, predicate: Held) -> Held:
    """What a predicate decided: if that comes from a Local value, ranks went one way, and a group
    of one perhaps another.
    """
    x = held.relation
    if x is None or predicate.relation is None or not predicate.relation.unmeasured:
        return held
    return held._replace(relation=replace(x, unmeasured=True).scaled(x.scale), const=None)


def two_paths(applier: Applier, predicate: Held, name: str) -> Refused:
    """The error for a predicate that is not the same on every rank."""
    return Refused(
        "LAYOUT_PREDICATE",
        f"{name} is not the same on every rank: {predicate.origin.name} is "
        f"{applier.shown(predicate)}",
        because="ranks that take other paths wait for one another in collectives, for ever",
        fixes=("reduce it over the ranks first (psum, pmax, pmin)",),
    )
