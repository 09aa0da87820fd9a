"""Loops and choices: their bodies are walked as programs of their own.

What a loop carries is related by a relation that holds before the loop and that its body keeps; it
is found by walking the body until nothing changes. What a `cond` returns is what all its branches
return, as `select` would choose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcc import _compat
from jaxcc.layout._align import align
from jaxcc.layout._apply import Applier, ControlRule, rooted
from jaxcc.layout._assume import ASSUME
from jaxcc.layout._digits import CutError, Digit, Digits, uniform, whole_dim
from jaxcc.layout._flatten import Program, Slot, Step, flatten_body
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._params import require_same_dtype
from jaxcc.layout._relation import ANY_SCALE, Relation, from_layout, joined, same_scale
from jaxcc.layout._rows import all_rows
from jaxcc.layout._rules import Equation, Refused, Side, collective_of, computing_rule_of
from jaxcc.layout._settle import settle, settled_value
from jaxcc.layout._trace import per_rank_shape
from jaxcc.layout._values import Held, Origin, origin_of, type_text
from jaxcc.layout.rules._combine import additive

_ROUNDS = 8


@dataclass(frozen=True)
class _Body:
    """A jaxpr inside a step, at n and at 1."""

    n: Program
    one: Program

    def walk(self, applier: Applier, inputs: Sequence[Held]) -> list[Held]:
        """What is known of the outputs, each in terms of the whole one."""
        pairs = applier.pairs
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
                made.append(held._replace(relation=relation))
            except Refused as refused:
                finding = applier.finding(refused, held.origin.line, ())
                made.append(held._replace(relation=None, findings=(finding,)))
        return made


def _body(step: Step, other: Step, name: str, index: int | None = None) -> _Body:
    """The jaxpr of a parameter on both sides."""
    here, whole = step.params[name], other.params[name]
    if index is not None:
        here, whole = here[index], whole[index]
    body = _Body(flatten_body(here, step), flatten_body(whole, other))
    counts = [(len(p.inputs), len(p.outputs), len(p.consts)) for p in (body.n, body.one)]
    if counts[0] != counts[1]:
        raise _other_structure(f"the body of {step.op} reads or makes other values")
    return body


def _other_structure(what: str) -> Refused:
    return Refused(
        "LAYOUT_STRUCTURE",
        f"{what} on n ranks than on one",
        because="the program takes another path on one rank than on n",
        fixes=("let the path not depend on the group's size",),
    )


def _inputs(applier: Applier, step: Step, other: Step) -> list[Held]:
    """What is known of the operands, each in terms of the whole one."""
    helds: list[Held] = []
    for slot, whole_slot in zip(step.operands, other.operands, strict=True):
        held, whole = applier.pairs.at_n(slot), applier.pairs.at_1(whole_slot)
        if held.relation is not None:
            try:
                require_same_dtype(slot, whole_slot, f"{step.op} reads")
                relation = applier.pairs.related(held, whole)
                held = held._replace(relation=rooted(relation, slot, held, whole))
            except Refused as refused:
                finding = applier.finding(refused, step.line, [held], step)
                held = held._replace(relation=None, findings=(finding,))
        helds.append(held)
    return helds


def _plain(applier: Applier, step: Step, held: Held, name: str) -> Held:
    """The value without ties to integers, which another turn of a loop has others of."""
    if held.relation is None or (not held.relation.by_rank and held.relation.tie is None):
        return held
    try:
        return held._replace(relation=settled_value(held.relation, name, applier.sizes))
    except Refused as refused:
        return _refused(applier, step, held, refused)


def _refused(applier: Applier, step: Step, held: Held, refused: Refused) -> Held:
    finding = applier.finding(refused, step.line, [held], step)
    return held._replace(relation=None, findings=(finding,))


def _side(shape: tuple[int, ...], count: int) -> Side:
    return Side({}, (shape,) * count, (shape,))


def _joined(
    applier: Applier, step: Step, helds: Sequence[Held], whole: tuple[int, ...], what: str
) -> Held:
    """What is known of a value that is one of `helds`, and no rank or reader can tell which."""
    for held in helds:
        if held.relation is None:
            return held
    first = helds[0]
    relations = [held.relation for held in helds if held.relation is not None]
    if all(_same(relation, relations[0]) for relation in relations):
        return first
    name = f"{what} of {step.op}"
    try:
        known = [settled_value(relation, name, applier.sizes) for relation in relations]
        return first._replace(relation=_join(applier, step, helds, known, whole, name), const=None)
    except CutError:
        texts = " and ".join(dict.fromkeys(_text(applier, held) for held in helds))
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
    return _refused(applier, step, first, refused)


def _same(a: Relation, b: Relation) -> bool:
    """Whether two relations say the same; 0.0 and -0.0 are equal, and no one number."""
    return a is b or (a == b and repr(a.const) == repr(b.const))


def _text(applier: Applier, held: Held) -> str:
    return applier.shown(held)


def _join(
    applier: Applier,
    step: Step,
    helds: Sequence[Held],
    relations: Sequence[Relation],
    whole: tuple[int, ...],
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
        _side(shape, len(relations)),
        _side(whole, len(relations)),
        name=lambda index: f"{name} ({helds[index].origin.name})",
        layout=lambda index: _text(applier, helds[index]),
        held=lambda index: helds[index],
    )
    # 0 and infinities are what they are on every rank, so they fit any scale and a pending sum.
    free = [math.isinf(x.scale) and not x.partial for x in relations]
    bound = [x for x, is_free in zip(relations, free, strict=True) if not is_free]
    scales = [x.scale for x in bound if not math.isinf(x.scale)]
    alike = all(x.partial == bound[0].partial for x in bound)
    if bound and alike and all(same_scale(scale, scales[0]) for scale in scales):
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


# Loops --------------------------------------------------------------------------------------------


def _fixed_point(
    applier: Applier,
    step: Step,
    start: Sequence[Held],
    wholes: Sequence[tuple[int, ...]],
    turn: Callable[[Sequence[Held]], list[Held]],
) -> list[Held]:
    """What is known of carried values in every turn; the last walk of the body is with these."""
    carry = [_plain(applier, step, held, "a carried value") for held in start]
    found = len(applier.findings)
    for _ in range(_ROUNDS):
        # What an earlier round found was of relations that do not hold in every turn.
        del applier.findings[found:]
        after = turn(carry)
        new: list[Held] = []
        for held, made, whole in zip(carry, after, wholes, strict=True):
            if held.relation is None:
                new.append(held)
                continue
            made = _plain(applier, step, made, "a carried value")
            both = _joined(applier, step, [held, made], whole, "a carried value")
            kept = both.relation is not None and _same(both.relation, held.relation)
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
    unsettled = [_refused(applier, step, held, refused) for held in carry]
    turn(unsettled)
    return unsettled


def _require_same(step: Step, other: Step, *names: str) -> None:
    for name in names:
        if step.params.get(name) != other.params.get(name):
            at_n, at_1 = step.params.get(name), other.params.get(name)
            raise _other_structure(f"{step.op} has {name}={at_n} and not {name}={at_1}")


def _scan(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    _require_same(step, other, "reverse")
    if step.params["length"] != other.params["length"]:
        jaxprs = all_rows(step), all_rows(other)
        if None not in jaxprs:
            body = _Body(*(flatten_body(j, s) for j, s in zip(jaxprs, (step, other), strict=True)))
            return body.walk(applier, _inputs(applier, step, other))
        raise Refused(
            "LAYOUT_LOOP",
            f"{step.shown} runs {step.params['length']} turns on each of n ranks and "
            f"{other.params['length']} on one",
            because="a loop over a sliced dimension carries from row to row of a rank's own block",
            fixes=("use jax.vmap over the sliced dimension", "gather the dimension first"),
        )
    constants, carried, walked = _compat.scan_counts(step.eqn)
    if (constants, carried, walked) != _compat.scan_counts(other.eqn):
        raise _other_structure(f"{step.op} reads other values")
    body = _body(step, other, "jaxpr")
    helds = _inputs(applier, step, other)
    fixed = helds[:constants]
    rows = [_row(applier, step, held) for held in helds[constants + carried :]]
    last: list[Held] = []

    def turn(carry: Sequence[Held]) -> list[Held]:
        made = body.walk(applier, [*fixed, *carry, *rows])
        last[:] = made[carried:]
        return made[:carried]

    start = helds[constants : constants + carried]
    wholes = [slot.shape for slot in other.results[:carried]]
    final = _fixed_point(applier, step, start, wholes, turn)
    return [*final, *(_stacked(applier, step, held) for held in last)]


def _row(applier: Applier, step: Step, held: Held) -> Held:
    """One row of an array that a scan walks through, of which every rank holds all rows."""
    held = _plain(applier, step, held, "an array that scan walks through")
    x = held.relation
    if x is None:
        return held
    length: int = step.params["length"]
    elsewhere = any(d.dim == 0 for held_ in (*x.dims[1:], *x.ranks.values()) for d in held_)
    if x.dims[0] not in (whole_dim(0, length), uniform(length)) or elsewhere:
        refused = Refused(
            "LAYOUT_LOOP",
            f"{step.shown} walks through dimension 0 of {held.origin.name}, which is "
            f"{_text(applier, held)}",
            because="a rank has not all of its rows, or has them in another order",
            fixes=("gather the dimension first",),
        )
        return _refused(applier, step, held, refused)
    ranks = {axis: _moved(digits, -1) for axis, digits in x.ranks.items()}
    dims = tuple(_moved(digits, -1) for digits in x.dims[1:])
    return held._replace(relation=replace(x, dims=dims, ranks=ranks))


def _stacked(applier: Applier, step: Step, held: Held) -> Held:
    """The rows that a scan makes, one for each turn."""
    held = _plain(applier, step, held, "a row that scan makes")
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


def _while(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    _require_same(step, other, "cond_nconsts", "body_nconsts")
    conditions, constants = step.params["cond_nconsts"], step.params["body_nconsts"]
    test, body = _body(step, other, "cond_jaxpr"), _body(step, other, "body_jaxpr")
    helds = _inputs(applier, step, other)
    read, fixed = helds[:conditions], helds[conditions : conditions + constants]
    start = helds[conditions + constants :]
    wholes = [slot.shape for slot in other.results]

    def turn(carry: Sequence[Held]) -> list[Held]:
        return body.walk(applier, [*fixed, *carry])

    final = _fixed_point(applier, step, start, wholes, turn)
    (predicate,) = test.walk(applier, [*read, *final])
    _require_one_path(applier, step, predicate, "the condition of while")
    return final


def _require_one_path(applier: Applier, step: Step, predicate: Held, name: str) -> None:
    """Reports a predicate that is not the same on every rank and on a group of one."""
    if predicate.relation is None:
        applier.report(predicate.findings)
        return
    plain = settle(predicate.relation, applier.sizes)
    if plain is not None and not (plain.ranks or plain.partial or plain.local):
        if math.isinf(plain.scale) or same_scale(plain.scale, 1.0):
            return
    applier.report((applier.finding(_two_paths(applier, predicate, name), step.line, ()),))


def _two_paths(applier: Applier, predicate: Held, name: str) -> Refused:
    return Refused(
        "LAYOUT_PREDICATE",
        f"{name} is not the same on every rank: {predicate.origin.name} is "
        f"{_text(applier, predicate)}",
        because="ranks that take other paths wait for one another in collectives, for ever",
        fixes=("reduce it over the ranks first (psum, pmax, pmin)",),
    )


# Choices ------------------------------------------------------------------------------------------


def _cond(applier: Applier, step: Step, other: Step) -> Sequence[Held]:
    index, *operands = _inputs(applier, step, other)
    count = len(step.params["branches"])
    if count != len(other.params["branches"]):
        raise _other_structure("cond has other branches")
    if index.relation is None:
        applier.report(index.findings)
        return [index._replace(relation=None)] * len(step.results)
    bodies = [_body(step, other, "branches", branch) for branch in range(count)]
    const = index.relation.const
    if const is not None and const[0] == const[1]:
        return bodies[min(max(int(const[0]), 0), count - 1)].walk(applier, operands)
    plain = settle(index.relation, applier.sizes)
    one_path = plain is not None and not (plain.ranks or plain.partial or plain.local)
    if one_path and plain is not None and (math.isinf(plain.scale) or same_scale(plain.scale, 1.0)):
        made = [body.walk(applier, operands) for body in bodies]
        return [
            _joined(applier, step, helds, slot.shape, "a result")
            for helds, slot in zip(zip(*made, strict=True), other.results, strict=True)
        ]
    if any(_communicates(body.n) for body in bodies):
        refused = _two_paths(applier, index, "the predicate of cond around a collective")
        finding = applier.finding(refused, step.line, ())
        applier.report((finding,))
        return [index._replace(relation=None, findings=(finding,))] * len(step.results)
    made = [body.walk(applier, operands) for body in bodies]
    return [
        _selected(applier, step, index, helds, slot)
        for helds, slot in zip(zip(*made, strict=True), other.results, strict=True)
    ]


def _communicates(program: Program) -> bool:
    return any(_has_collective(step.eqn) for step in program.steps)


def _has_collective(eqn: Any) -> bool:
    if collective_of(_compat.op_name(eqn)) is not None:
        return True
    inner = (e for j in _compat.inner_jaxprs(eqn) for e in _compat.open_jaxpr(j).eqns)
    return any(map(_has_collective, inner))


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
        layout=lambda i: _text(applier, index if i == 0 else helds[i - 1]),
        held=lambda i: index if i == 0 else helds[i - 1],
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
        return helds[0]._replace(relation=made, const=None, origin=origin_of(step))
    return _refused(applier, step, helds[0], refused)


# Claims -------------------------------------------------------------------------------------------


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
    origin = Origin(step.line, f"assumed{where}", "the assumed value")
    return [Held(0, from_layout(layout, whole.shape, applier.sizes), origin, origin)]


def _axes(stated: LayoutMap, sizes: Mapping[str, int]) -> list[str]:
    return [*stated, *(axis for axis in sizes if axis not in stated)]


CONTROL: Mapping[str, ControlRule] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    ASSUME: _assumed,
}
"""How each step that has a body, or a claim of its own, relates its results."""
