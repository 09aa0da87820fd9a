"""Walks a program's trace at n beside its trace at 1 and relates each pair of values.

Only computing equations are matched. Shape operations and collectives act on the side where they stand, so that it
does not matter if JAX leaves some of them out for some sizes. Two operands match only if both come, through shape
operations, from one matched pair: a wrong alignment can refuse a program but never accept one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import jaxcc.layout.rules as rules
from jaxcc import _compat
from jaxcc.layout._digits import CutError, Digits, uniform, whole_dim
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Program, Slot, Step, flatten
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._outputs import check_output
from jaxcc.layout._relation import (
    Relation,
    constant,
    from_layout,
    layout_seen,
    same_scale,
    seen_through,
)
from jaxcc.layout._report import ReportLine, report_line
from jaxcc.layout._rules import (
    Equation,
    Refused,
    Side,
    collective_of,
    computing_rule_of,
    shape_rule_of,
)
from jaxcc.layout._trace import Trace
from jaxcc.layout._values import Held, Origin, Whole, type_text

_LOOK_AHEAD = 8
assert rules.__name__  # Imported for what it registers.


@dataclass(frozen=True)
class WalkResult:
    """What a walk found.

    Attributes:
      findings: all that is wrong and reaches an output or an effect; empty if the program is accepted.
      outputs: for each output, its relation to that of a group of one, or None if it has none.
      out_layouts: for each output, its layout, or None if no layout says it.
      lines: the program at n, a line for each operation that a reader cares about.
    """

    findings: tuple[Finding, ...]
    outputs: tuple[Relation | None, ...]
    out_layouts: tuple[LayoutMap | None, ...]
    lines: tuple[ReportLine, ...]
    _layouts: Mapping[Any, LayoutMap | str]

    def layout_of(self, var: Any) -> LayoutMap | str:
        """The layout of a variable of the trace at n, or a short text where no layout says it."""
        return self._layouts[var]


def walk(
    trace_n: Trace,
    trace_1: Trace,
    in_layouts: Sequence[LayoutMap],
    in_names: Sequence[str],
    out_layouts: Sequence[LayoutMap] | None,
) -> WalkResult:
    """Relates the values of `trace_n` to those of `trace_1`, where every axis has size 1.

    Args:
      trace_n: the program as a rank of a group of n sees it.
      trace_1: the program on a group of one.
      in_layouts: for each input.
      in_names: what messages call each input.
      out_layouts: for each output; None infers them.
    """
    walker = _Walker(trace_n, trace_1)
    walker.start(in_layouts, in_names)
    walker.align()
    return walker.finish(out_layouts)


class _Walker:
    def __init__(self, trace_n: Trace, trace_1: Trace) -> None:
        self.trace_n = trace_n
        self.sizes = trace_n.sizes
        self.n: Program = flatten(trace_n)
        self.one: Program = flatten(trace_1)
        self.held: dict[Slot, Held] = {}
        self.whole: dict[Slot, Whole] = {}
        self.findings: list[Finding] = []
        self.bases = 0

    def start(self, in_layouts: Sequence[LayoutMap], in_names: Sequence[str]) -> None:
        """Relates inputs by their layouts, and captured arrays by their values."""
        slots = zip(self.n.inputs, self.one.inputs, in_layouts, in_names, strict=True)
        for slot, whole, layout, name in slots:
            relation = from_layout(layout, whole.shape, self.sizes)
            origin = Origin(None, f"argument {name!r}", f"{name!r}")
            self._pair(slot, whole, Held(0, relation, origin, origin))
        for index, slot in enumerate(self.n.consts):
            other = self.one.consts[index] if index < len(self.one.consts) else None
            self._pair_captured(slot, other)
        for slot in self.one.consts:
            if slot not in self.whole:
                self.whole[slot] = self._alone(slot)

    def align(self) -> None:
        """Matches the computing steps of both sides in order."""
        n, one = self.n.steps, self.one.steps
        i = j = 0
        while i < len(n) or j < len(one):
            if i < len(n) and self._one_sided_n(n[i]):
                i += 1
            elif j < len(one) and self._one_sided_1(one[j]):
                j += 1
            elif i == len(n) or j == len(one):
                i, j = self._skip(n, i, len(n)), self._skip_1(one, j, len(one))
            else:
                to_i, to_j = self._next_match(i, j)
                i, j = self._skip(n, i, to_i), self._skip_1(one, j, to_j)
                if i < len(n) and j < len(one):
                    self._match(n[i], one[j])
                    i, j = i + 1, j + 1

    def finish(self, out_layouts: Sequence[LayoutMap] | None) -> WalkResult:
        """Holds the outputs against their layouts."""
        outputs: list[Relation | None] = []
        layouts: list[LayoutMap | None] = []
        for index, (slot, whole_slot) in enumerate(
            zip(self.n.outputs, self.one.outputs, strict=True)
        ):
            held, whole = self._read_n(slot), self._read_1(whole_slot)
            declared = out_layouts[index] if out_layouts is not None else None
            relation: Relation | None = None
            layout: LayoutMap | None = None
            if held.findings:
                self._report(held.findings)
            else:
                try:
                    relation = self._related(held, whole)
                except Refused as refused:
                    self._report((self._finding(refused, held.origin.line, ()),))
                else:
                    layout, findings = check_output(
                        index, relation, whole_slot.shape, declared, self.sizes, held, slot
                    )
                    self._report(findings)
            outputs.append(relation)
            layouts.append(layout)
        lines = [report_line(step, self.held, self.sizes) for step in self.n.steps]
        shown = {
            var: self._shown(self.held[slot])
            for var, slot in self.n.slots.items()
            if slot in self.held
        }
        return WalkResult(
            tuple(self.findings),
            tuple(outputs),
            tuple(layouts),
            tuple(line for line in lines if line is not None),
            shown,
        )

    def _shown(self, held: Held) -> LayoutMap | str:
        return "refused" if held.relation is None else layout_seen(held.relation, tuple(self.sizes))

    # Values ---------------------------------------------------------------------------------------

    def _new_base(self) -> int:
        self.bases += 1
        return self.bases

    def _pair(self, slot: Slot, whole: Slot, held: Held) -> None:
        """Makes both slots one matched pair, related as `held` says."""
        base = self._new_base()
        const = held.relation.const if held.relation is not None else None
        self.held[slot] = replace(held, base=base, const=const[0] if const else None)
        dims = tuple(whole_dim(d, size) for d, size in enumerate(whole.shape))
        self.whole[whole] = Whole(base, dims, const[1] if const else None)

    def _pair_captured(self, slot: Slot, other: Slot | None) -> None:
        origin = Origin(None, "an array that the function captured", "a captured array")
        relation = None if other is None else _captured(slot.value, other.value)
        if other is None or relation is None:
            finding = Finding(
                "LAYOUT_STRUCTURE",
                "the function captured an array that differs with the number of ranks",
                because="a group of one would compute with other numbers",
                fixes=("pass it as an argument with a layout",),
            )
            self.held[slot] = Held(self._new_base(), None, origin, origin, findings=(finding,))
            return
        self._pair(slot, other, Held(0, relation, origin, origin))

    def _alone(self, slot: Slot) -> Whole:
        """A value of the group of one that nothing at n is related to, unless it is a number."""
        dims = tuple(whole_dim(d, size) for d, size in enumerate(slot.shape))
        return Whole(self._new_base(), dims, _number(slot.value))

    def _read_n(self, slot: Slot) -> Held:
        if slot not in self.held:
            number = _number(slot.value)
            origin = Origin(None, "a constant", f"the constant {number}")
            relation = constant(slot.shape, (number, number))
            self.held[slot] = Held(self._new_base(), relation, origin, origin, number)
        return self.held[slot]

    def _read_1(self, slot: Slot) -> Whole:
        if slot not in self.whole:
            self.whole[slot] = self._alone(slot)
        return self.whole[slot]

    def _related(self, held: Held, whole: Whole) -> Relation:
        """The relation of `held` to `whole`, if they are one pair or both numbers."""
        assert held.relation is not None
        if held.const is not None and whole.const is not None:
            return constant(held.relation.shape, (held.const, whole.const))
        if held.base != whole.base:
            raise Refused(
                "LAYOUT_STRUCTURE",
                f"{held.origin.name} is not the value that a group of one has in this place",
                because="the program takes another path on one rank than on n",
            )
        try:
            return seen_through(held.relation, whole.dims)
        except CutError:
            raise Refused(
                "LAYOUT_RESHAPE",
                f"{held.origin.name} is rearranged on n ranks in another way than on one",
                because="its blocks are no blocks of the rearranged whole",
            ) from None

    def _corresponds(self, a: Step, b: Step, *, known_only: bool = False) -> bool:
        """Whether two computing steps are the same operation on the same values."""
        if a.op != b.op or len(a.operands) != len(b.operands):
            return False
        for slot, whole_slot in zip(a.operands, b.operands, strict=True):
            unknown = (slot not in self.held and slot.value is None) or (
                whole_slot not in self.whole and whole_slot.value is None
            )
            if unknown:
                if known_only:
                    continue
                return False
            held, whole = self._read_n(slot), self._read_1(whole_slot)
            numbers = held.const is not None and whole.const is not None
            if not numbers and held.base != whole.base:
                return False
        return True

    # Steps ----------------------------------------------------------------------------------------

    def _one_sided_n(self, step: Step) -> bool:
        """Applies a step that only moves or communicates; False if it has to be matched."""
        collective, shape = collective_of(step.op), shape_rule_of(step.op)
        if collective is None and shape is None:
            return False
        made: list[Held] = []
        for slot, out in zip(step.operands, step.results, strict=True):
            held = self._read_n(slot)
            if held.relation is None:
                made.append(held)
                continue
            try:
                if collective is not None:
                    relation = collective.relate(self._equation(step, step, [held]), held.relation)
                else:
                    assert shape is not None
                    dims = tuple(shape(step.params, held.relation.dims, out.shape))
                    relation = replace(held.relation, dims=dims)
            except CutError:
                if computing_rule_of(step.op) is not None:
                    return False
                made.append(self._bad(step, held, _cut(step, held)))
            except Refused as refused:
                made.append(self._bad(step, held, refused))
            else:
                made.append(self._made(step, held, relation, moved=shape is not None))
        self.held.update(zip(step.results, made, strict=True))
        return True

    def _one_sided_1(self, step: Step) -> bool:
        """The same on the side of the group of one, where a collective is the identity."""
        collective = collective_of(step.op)
        shape = shape_rule_of(step.op) if collective is None else collective.alone
        if shape is None:
            return False
        made: list[Whole] = []
        for slot, out in zip(step.operands, step.results, strict=True):
            whole = self._read_1(slot)
            try:
                made.append(
                    replace(whole, dims=tuple(shape(step.params, whole.dims, out.shape)))
                )
            except CutError:
                if computing_rule_of(step.op) is not None:
                    return False
                made.append(self._alone(out))
        self.whole.update(zip(step.results, made, strict=True))
        return True

    def _match(self, step: Step, other: Step) -> None:
        helds = [self._read_n(slot) for slot in step.operands]
        findings = tuple(dict.fromkeys(f for held in helds for f in held.findings))
        if findings:
            self._refuse(step, other, findings)
            return
        try:
            wholes = [self._read_1(slot) for slot in other.operands]
            relations = [self._related(h, w) for h, w in zip(helds, wholes, strict=True)]
            seen = [replace(h, relation=r) for h, r in zip(helds, relations, strict=True)]
            made = self._apply(step, other, seen, relations)
        except CutError:
            refused = Refused("LAYOUT_MISMATCH", f"{step.op} has operands that do not line up")
            self._refuse(step, other, (self._finding(refused, step.line, helds, step),))
        except Refused as refused:
            self._refuse(step, other, (self._finding(refused, step.line, helds, step),))
        else:
            for slot, whole_slot, relation in zip(step.results, other.results, made, strict=True):
                source = _source(seen, relation)
                self._pair(slot, whole_slot, self._made(step, source, relation))

    def _apply(
        self, step: Step, other: Step, helds: Sequence[Held], relations: Sequence[Relation]
    ) -> Sequence[Relation]:
        rule = computing_rule_of(step.op)
        if rule is None:
            return self._without_rule(step, other, relations)
        made = rule(self._equation(step, other, helds), *relations)
        made = [made] if isinstance(made, Relation) else list(made)
        shapes = [slot.shape for slot in step.results]
        if [relation.shape for relation in made] != shapes:
            raise Refused(
                "LAYOUT_RULE",
                f"the layout rule of {step.op} gives shapes {[r.shape for r in made]}, not {shapes}",
            )
        return made

    def _without_rule(
        self, step: Step, other: Step, relations: Sequence[Relation]
    ) -> Sequence[Relation]:
        """A pure function of what every rank holds alike, and of Local values, needs no rule."""
        whole_shapes = [slot.shape for slot in other.operands]
        plain = all(_plain(r, shape) for r, shape in zip(relations, whole_shapes, strict=True))
        effects = [e for e in step.eqn.effects]
        same = str(step.params) == str(other.params)
        if not plain or effects or not same or _communicates(step.eqn):
            reason = (
                f"it has the effect {effects[0]}" if effects else
                "it communicates" if _communicates(step.eqn) else
                "its parameters change with the number of ranks" if not same else
                "its operands are not all Replicated and equal to those of a group of one"
            )  # fmt: skip
            refused = Refused(
                "LAYOUT_NO_RULE",
                f"no layout rule says what {step.op} does",
                because=f"without a rule it is accepted only on plain Replicated values, and {reason}",
                fixes=(f'register one: @jaxcc.register_layout_rule("{step.op}")',),
            )
            if effects:
                helds = [self._read_n(slot) for slot in step.operands]
                self._report((self._finding(refused, step.line, helds, step),))
            raise refused
        local = frozenset[str]().union(*(relation.local for relation in relations))
        unmeasured = any(relation.unmeasured for relation in relations)
        return [
            Relation(
                tuple(whole_dim(d, size) for d, size in enumerate(slot.shape)),
                local=local,
                unmeasured=unmeasured,
            ).scaled(1.0)
            for slot in step.results
        ]

    def _refuse(self, step: Step, other: Step | None, findings: tuple[Finding, ...]) -> None:
        self._effect(step, findings)
        for index, slot in enumerate(step.results):
            origin = _origin(step)
            bad = Held(0, None, origin, origin, findings=findings)
            if other is None:
                self.held[slot] = replace(bad, base=self._new_base())
            else:
                self._pair(slot, other.results[index], bad)

    def _effect(self, step: Step, findings: tuple[Finding, ...]) -> None:
        if not step.results or step.eqn.effects:
            self._report(findings)

    def _skip(self, steps: Sequence[Step], start: int, stop: int) -> int:
        for step in steps[start:stop]:
            if self._one_sided_n(step) or self._fold(step):
                continue
            finding = Finding(
                "LAYOUT_STRUCTURE",
                f"{step.shown} runs on {self._group()}, but a group of one has no such step",
                step.line,
                because="the program takes another path on one rank than on n",
                fixes=("let the path not depend on the group's size",),
            )
            helds = [self._read_n(slot) for slot in step.operands]
            earlier = tuple(dict.fromkeys(f for held in helds for f in held.findings))
            self._refuse(step, None, earlier or (finding,))
        return stop

    def _fold(self, step: Step) -> bool:
        """Computes a step that only stands at n, if its operands are numbers."""
        rule = computing_rule_of(step.op)
        helds = [self._read_n(slot) for slot in step.operands]
        if rule is None or not helds or any(held.const is None for held in helds):
            return False
        relations = [
            constant(slot.shape, (h.const, h.const))
            for slot, h in zip(step.operands, helds, strict=True)
        ]
        try:
            made = rule(self._equation(step, step, helds), *relations)
        except (Refused, CutError):
            return False
        if not isinstance(made, Relation) or made.const is None:
            return False
        (slot,) = step.results
        held = self._made(step, helds[0], made)
        self.held[slot] = replace(held, base=self._new_base(), const=made.const[0])
        return True

    def _skip_1(self, steps: Sequence[Step], start: int, stop: int) -> int:
        for step in steps[start:stop]:
            if not self._one_sided_1(step):
                for slot in step.results:
                    self.whole[slot] = self._alone(slot)
        return stop

    def _next_match(self, i: int, j: int) -> tuple[int, int]:
        """The next two computing steps that correspond, a short way ahead."""
        n, one = self.n.steps, self.one.steps
        if self._corresponds(n[i], one[j]):
            return i, j
        ahead = [i, *(k for k in range(i + 1, len(n)) if not _moves(n[k]))][: _LOOK_AHEAD + 1]
        ahead_1 = [j, *(k for k in range(j + 1, len(one)) if not _moves(one[k]))][: _LOOK_AHEAD + 1]
        pairs = [(a, b) for a in range(len(ahead)) for b in range(len(ahead_1)) if a or b]
        for a, b in sorted(pairs, key=lambda pair: (sum(pair), pair)):
            if self._corresponds(n[ahead[a]], one[ahead_1[b]], known_only=True):
                if n[i].op == one[j].op and not self._corresponds(n[ahead[a]], one[ahead_1[b]]):
                    continue
                return ahead[a], ahead_1[b]
        if n[i].op == one[j].op and len(n[i].operands) == len(one[j].operands):
            return i, j
        return (ahead[1] if len(ahead) > 1 else len(n)), (
            ahead_1[1] if len(ahead_1) > 1 else len(one)
        )

    # Messages -------------------------------------------------------------------------------------

    def _equation(self, step: Step, other: Step, helds: Sequence[Held]) -> Equation:
        return Equation(
            step.op,
            self.sizes,
            _side(step),
            _side(other),
            name=lambda i: helds[i].origin.name,
            layout=lambda i: _text(self._shown(helds[i])),
        )

    def _made(
        self, step: Step, source: Held | None, relation: Relation, *, moved: bool = False
    ) -> Held:
        """What `step` made of `source`, with the lines where layout and scale last changed.

        A value that was only `moved` keeps its name and its number.
        """
        made = _origin(step)
        if source is None or source.relation is None:
            return Held(0, relation, made, made)
        old = source.relation
        placed = (
            old.partial != relation.partial
            or old.local != relation.local
            or old.ranks != relation.ranks
        )
        return Held(
            source.base,
            relation,
            source.origin if moved else made,
            source.scaled if same_scale(old.scale, relation.scale) else made,
            const=source.const if moved else None,
            placed=made if placed else source.placed or source.origin,
        )

    def _bad(self, step: Step, held: Held, refused: Refused) -> Held:
        """The result of a step that refuses `held`."""
        findings = (self._finding(refused, step.line, [held], step),)
        origin = _origin(step)
        return Held(held.base, None, origin, origin, findings=findings)

    def _finding(
        self, refused: Refused, line: Any, helds: Sequence[Held], step: Step | None = None
    ) -> Finding:
        operands: list[str] = []
        slots = step.operands if step is not None else ()
        for index, (held, slot) in enumerate(zip(helds, slots, strict=False)):
            where = held.placed or held.origin
            operands.append(
                f"operand {index}: {type_text(slot)} {_text(self._shown(held))}, {where.describe()}"
            )
        return Finding(
            refused.code, refused.what, line, tuple(operands), refused.because, refused.fixes
        )

    def _report(self, findings: Sequence[Finding]) -> None:
        self.findings += [finding for finding in findings if finding not in self.findings]

    def _group(self) -> str:
        return "ranks " + ", ".join(f"{axis}={n}" for axis, n in self.sizes.items())


def _origin(step: Step) -> Origin:
    return Origin(step.line, f"made by {step.shown}", f"the result of {step.shown}")


def _cut(step: Step, held: Held) -> Refused:
    return Refused(
        "LAYOUT_RESHAPE",
        f"{step.op} cuts {held.origin.name} where its blocks are not whole",
        because="a block of the result is no block of the whole result",
        fixes=("gather it first, or reshape so that the sliced dimension stays a leading part",),
    )


def _moves(step: Step) -> bool:
    return shape_rule_of(step.op) is not None or collective_of(step.op) is not None


def _communicates(eqn: Any) -> bool:
    return any(
        collective_of(_compat.op_name(inner)) is not None or _communicates(inner)
        for jaxpr in _compat.inner_jaxprs(eqn)
        for inner in _compat.open_jaxpr(jaxpr).eqns
    )


def _plain(relation: Relation, whole: tuple[int, ...]) -> bool:
    unit = relation.unmeasured or same_scale(relation.scale, 1.0) or relation.scale == float("inf")
    return (
        unit
        and not relation.ranks
        and not relation.partial
        and relation.shape == whole
        and all(
            digits in (whole_dim(d, size), uniform(size))
            for d, (digits, size) in enumerate(zip(relation.dims, whole, strict=True))
        )
    )


def _source(helds: Sequence[Held], relation: Relation) -> Held | None:
    """The operand whose layout the result has, so that it keeps that operand's history."""
    for held in helds:
        old = held.relation
        if old is not None and old.partial == relation.partial and old.ranks == relation.ranks:
            return held
    return helds[0] if helds else None


def _side(step: Step) -> Side:
    return Side(
        step.params,
        tuple(slot.shape for slot in step.operands),
        tuple(slot.shape for slot in step.results),
        tuple(slot.dtype for slot in step.operands),
        tuple(slot.dtype for slot in step.results),
    )


def _text(layout: LayoutMap | str) -> str:
    return layout if isinstance(layout, str) else layout.describe()


def _number(value: Any) -> Any:
    """The number that fills `value`, or None if it is no array or has several."""
    if (
        value is None
        or not hasattr(value, "dtype")
        and not isinstance(value, (bool, int, float, complex))
    ):
        return None
    array = np.asarray(value)
    if array.size == 0 or array.dtype.kind not in "biufcV":
        return None
    first = array.flat[0]
    if array.size > 1 and not bool((array == first).all()):
        return None
    return first.item() if array.dtype.kind != "V" else float(first)


def _captured(at_n: Any, at_1: Any) -> Relation | None:
    """How two captured arrays are related: one is a multiple of the other."""
    number, whole_number = _number(at_n), _number(at_1)
    shape = tuple(np.shape(at_n))
    if number is not None and whole_number is not None:
        return constant(shape, (number, whole_number))
    if shape != tuple(np.shape(at_1)) or not hasattr(at_n, "dtype"):
        return None
    if not np.array_equal(np.asarray(at_n), np.asarray(at_1)):
        return None
    dims: tuple[Digits, ...] = tuple(whole_dim(d, size) for d, size in enumerate(shape))
    return Relation(dims)
