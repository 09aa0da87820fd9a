"""What one step of a program does to what is known of its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxcc._compat import SourceLine
from jaxcc.layout._advice import RANDOM_FIXES, RANDOM_WHY, is_random
from jaxcc.layout._digits import CutError, Digits, count, uniform, whole_dim
from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._errors import Finding, LayoutError
from jaxcc.layout._explain import (
    cut_refused,
    finding_of,
    for_random,
    layout_text,
    unmatched_finding,
)
from jaxcc.layout._flatten import Program, Slot, Step
from jaxcc.layout._memo import Made, Memo, alone_key, key_of, move_key
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._params import require_same_operation
from jaxcc.layout._ranked import each_rank
from jaxcc.layout._relation import Relation, Turn, constant, empty, stored
from jaxcc.layout._repair import Repair
from jaxcc.layout._repairs import Repairs
from jaxcc.layout._rules import (
    Equation,
    Refused,
    ShapeRule,
    Side,
    collective_of,
    computing_rule_of,
    sees_ranks,
    shape_rule_of,
)
from jaxcc.layout._settle import settled
from jaxcc.layout._tie import Tie
from jaxcc.layout._turns import straightened, turned_back
from jaxcc.layout._unruled import outside_effects, relations_of, why_rule_needed
from jaxcc.layout._values import Held, Whole, continued, made_by

ControlRule = Callable[["Applier", Step, Step], Sequence[Held]]
"""(applier, the step at n, the same at 1) -> what is known of each result."""


class Applier:
    """Applies steps to the values in `pairs` and collects what is wrong.

    A step that refuses its operands marks its results; that is reported when it reaches an output
    or an effect, since right programs hold dead and unselected values.
    """

    def __init__(
        self,
        pairs: Pairs,
        sizes: Mapping[str, int],
        control: Mapping[str, ControlRule],
        repairs: Sequence[Repair] = (),
    ) -> None:
        self.pairs = pairs
        self.sizes = sizes
        self.control = control
        self.repairs = Repairs(repairs, pairs, sizes)
        self.findings: list[Finding] = []
        self.assumptions: list[str] = []
        # Every walk of the body of a loop or of a branch, with what was read and made there.
        self.bodies: list[Program] = []
        self._memo = Memo()

    def report(self, findings: Sequence[Finding]) -> None:
        """Adds what is not yet reported; of what is, its place, where it has to be mended too."""
        for finding in findings:
            if finding not in self.findings:
                self.findings.append(finding)
                continue
            at = self.findings.index(finding)
            known = self.findings[at]
            if known is not finding and len(known.repairs) == len(finding.repairs):
                pairs = zip(known.repairs, finding.repairs, strict=True)
                repairs = tuple(one.with_places_of(other) for one, other in pairs)
                self.findings[at] = replace(known, repairs=repairs)

    def assume(self, claim: str) -> None:
        """Adds a claim that is taken on trust, for the report."""
        if claim not in self.assumptions:
            self.assumptions.append(claim)

    def pair(self, slot: Slot, whole: Slot, held: Held) -> None:
        """Makes both slots one matched pair, related as `held` says."""
        if held.relation is not None:
            held = held._replace(relation=self._memo.kept(held.relation))
        self.pairs.pair(slot, whole, held)

    # One side -------------------------------------------------------------------------------------

    def moved_at_n(self, step: Step) -> bool:
        """Applies a step that only moves or communicates; False if it has to be matched."""
        collective, shape = collective_of(step.op), shape_rule_of(step.op)
        if collective is None and shape is None:
            return False
        if collective is not None:
            self.repairs.read(step)
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        made: list[Held] = []
        for index, (held, out) in enumerate(zip(helds, step.results, strict=True)):
            if held.relation is None:
                made.append(held)
                continue
            key = None
            if not self.repairs.change(step):
                key = move_key(step, held, step.operands[index], out)
            relation = self._memo.known(key)
            try:
                if relation is None:
                    relation = self._memo.kept(self._moved(step, shape, helds, index))
                    self._memo.learn(key, relation, [held])
            except CutError:
                if computing_rule_of(step.op) is not None:
                    return False
                made.append(self._bad(step, helds, index, cut_refused(step, held)))
            except Refused as refused:
                made.append(self._bad(step, helds, index, refused))
            else:
                made.append(made_by(step, held, relation, moved=shape is not None))
        self.pairs.held.update(zip(step.results, made, strict=True))
        return True

    def _moved(
        self, step: Step, shape: ShapeRule | None, helds: Sequence[Held], index: int
    ) -> Relation:
        held, out = helds[index], step.results[index]
        assert held.relation is not None
        relation = self.repairs.mended(step, index, held.relation)
        if 0 in out.shape:
            return empty(out.shape)
        if shape is not None:
            return replace(relation, dims=tuple(shape(step.params, relation.dims, out.shape)))
        collective = collective_of(step.op)
        assert collective is not None
        if self.repairs.left_out(step, relation):
            return relation
        eqn = self.equation(step, step, helds).only(index)
        turned: Mapping[str, Turn] = {}
        if not collective.turns:
            turned, (relation,) = straightened(eqn, [relation])
        if not sees_ranks(step.op):
            relation = settled(eqn, 0, relation)
        return turned_back(turned, stored(collective.relate(eqn, relation), out.dtype))

    def moved_at_1(self, step: Step) -> bool:
        """The same on the side of the group of one, where a collective is the identity."""
        collective = collective_of(step.op)
        shape = shape_rule_of(step.op) if collective is None else collective.alone
        if shape is None:
            return False
        made: list[Whole] = []
        for slot, out in zip(step.operands, step.results, strict=True):
            whole = self.pairs.at_1(slot)
            key = alone_key(step, whole.dims, out)
            dims = self._memo.known(key)
            try:
                if dims is None:
                    dims = _moved_alone(step, shape, whole, out)
                    self._memo.learn(key, dims)
            except CutError:
                if computing_rule_of(step.op) is not None:
                    return False
                made.append(self.pairs.alone(out, step))
            else:
                moved = whole.moved or dims != whole.dims
                made.append(Whole(whole.base, dims, whole.const, moved))
        self.pairs.whole.update(zip(step.results, made, strict=True))
        return True

    def unmatched_at_n(self, step: Step) -> None:
        """A computing step that only stands at n: fine among numbers."""
        if self._folded(step) or self._rescaled(step):
            return
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        earlier = tuple(dict.fromkeys(f for held in helds for f in held.findings))
        self._refuse(step, None, earlier or (unmatched_finding(step, self.sizes),))

    def unmatched_at_1(self, step: Step) -> None:
        """A computing step that only stands on the group of one."""
        for slot in step.results:
            self.pairs.whole[slot] = self.pairs.alone(slot, step)

    def _folded(self, step: Step) -> bool:
        rule = computing_rule_of(step.op)
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        if rule is None or any(held.const is None for held in helds):
            return False
        relations = [
            constant(slot.shape, (held.const, each_rank(held.const, 1)[0]))
            for slot, held in zip(step.operands, helds, strict=True)
        ]
        try:
            made = rule(self.equation(step, step, helds), *relations)
        except (Refused, CutError):
            return False
        if not isinstance(made, Relation) or made.const is None:
            return False
        (slot,) = step.results
        held = made_by(step, helds[0] if helds else None, self._memo.kept(made))
        self.pairs.held[slot] = held._replace(base=self.pairs.new_base())
        return True

    def _rescaled(self, step: Step) -> bool:
        """A product with a number that a group of one does not multiply by: another scale."""
        if step.op not in ("mul", "div") or kind_of(step.results[0].dtype) != "f":
            return False
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        places = (0, 1) if step.op == "mul" else (0,)
        for at in places:
            held, number = helds[at], helds[1 - at].const
            x = held.relation
            if x is None or x.by_rank or step.operands[at].shape != step.results[0].shape:
                continue
            if not isinstance(number, (int, float)) or not 0 < number < math.inf:
                continue
            if "prod" in x.partial.values() or math.isnan(x.scale):
                continue
            scale = x.scale * number if step.op == "mul" else x.scale / number
            made = self._memo.kept(replace(x, tie=None).scaled(scale))
            self.pairs.held[step.results[0]] = made_by(step, held, made)
            return True
        return False

    # Both sides -----------------------------------------------------------------------------------

    def matched(self, step: Step, other: Step) -> None:
        """Relates the results of a computing step to those of the same step on the group of one."""
        pairs = self.pairs
        self.repairs.read(step)
        helds = [pairs.at_n(slot) for slot in step.operands]
        if step.op in self.control:
            made = self._controlled(step, other, helds)
            for slot, whole, held in zip(step.results, other.results, made, strict=True):
                self.pair(slot, whole, held)
            return
        counts = [(len(one.operands), len(one.results)) for one in (step, other)]
        if counts[0] != counts[1]:
            self._refuse(step, None, (unmatched_finding(step, self.sizes),))
            self.unmatched_at_1(other)
            return
        if any(held.relation is None for held in helds):
            earlier = tuple(dict.fromkeys(f for held in helds for f in held.findings))
            self._refuse(step, other, for_random(step, earlier))
            return
        wholes = [pairs.at_1(slot) for slot in other.operands]
        key = key_of(step, other, helds, wholes)
        if self.repairs.change(step):
            key = None
        known = self._memo.known(key)
        if known is None:
            try:
                known = self._related(step, other, helds, wholes)
            except (LayoutError, Refused, CutError) as error:
                found = (self.finding(_as_refused(error, step), step.line, helds, step),)
                self._refuse(step, other, for_random(step, found))
                return
            self._memo.learn(key, known, helds)
        for slot, whole, (relation, source) in zip(step.results, other.results, known, strict=True):
            held = made_by(step, helds[source] if source >= 0 else None, relation)
            pairs.pair(slot, whole, held)

    def _related(
        self, step: Step, other: Step, helds: Sequence[Held], wholes: Sequence[Whole]
    ) -> Made:
        """The results' relations, each with the operand whose history it continues."""
        relations = [
            self.repairs.mended(
                step, at, rooted(self.pairs.related(held, whole), slot, held, whole)
            )
            for at, (slot, held, whole) in enumerate(zip(step.operands, helds, wholes, strict=True))
        ]
        seen = [h._replace(relation=r) for h, r in zip(helds, relations, strict=True)]
        made = self._results(step, other, seen, relations)
        return tuple((self._memo.kept(one), continued(relations, one)) for one in made)

    def _controlled(self, step: Step, other: Step, helds: Sequence[Held]) -> Sequence[Held]:
        """What is known of the results of a loop or a choice."""
        try:
            return self.control[step.op](self, step, other)
        except (LayoutError, Refused, CutError) as error:
            findings = (self.finding(_as_refused(error, step), step.line, helds, step),)
        return [Held(0, None, step, step, findings=findings)] * len(step.results)

    def _results(
        self, step: Step, other: Step, helds: Sequence[Held], relations: Sequence[Relation]
    ) -> Sequence[Relation]:
        if all(0 in slot.shape for slot in (*step.results, *other.results)):
            return [empty(slot.shape) for slot in step.results]
        eqn = self.equation(step, other, helds)
        turned, relations = straightened(eqn, relations)
        rule = computing_rule_of(step.op)
        if rule is None or not sees_ranks(step.op):
            relations = [settled(eqn, i, x) for i, x in enumerate(relations)]
        if rule is None:
            return self._without_rule(step, other, relations)
        require_same_operation(step, other)
        made = relations_of(step.op, rule(eqn, *relations))
        shapes = [slot.shape for slot in step.results]
        if [relation.shape for relation in made] != shapes:
            claimed = [relation.shape for relation in made]
            raise Refused(
                "LAYOUT_RULE", f"the layout rule of {step.op} gives shapes {claimed}, not {shapes}"
            )
        return [turned_back(turned, one) for one in made]

    def _without_rule(
        self, step: Step, other: Step, relations: Sequence[Relation]
    ) -> Sequence[Relation]:
        """A pure function of what every rank holds alike, or of Local values, needs no rule."""
        reason = why_rule_needed(step, other, relations, self.sizes)
        if reason and is_random(step.op):
            raise Refused(
                "LAYOUT_NO_RULE",
                f"{step.shown.lstrip('_')} makes other random numbers on n ranks than on one",
                because=RANDOM_WHY,
                fixes=RANDOM_FIXES,
            )
        if reason:
            refused = Refused(
                "LAYOUT_NO_RULE",
                f"no layout rule says what {step.op} does",
                because=f"without one, {reason}",
                fixes=(f'register one: @jaxcc.register_layout_rule("{step.op}")',),
            )
            if outside_effects(step.eqn):
                helds = [self.pairs.at_n(slot) for slot in step.operands]
                self.report((self.finding(refused, step.line, helds, step),))
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
        if not step.results or outside_effects(step.eqn):
            self.report(findings)
        bad = Held(0, None, step, step, findings=findings)
        for index, slot in enumerate(step.results):
            if other is None:
                self.pairs.held[slot] = bad._replace(base=self.pairs.new_base())
            else:
                self.pairs.pair(slot, other.results[index], bad)

    def _bad(self, step: Step, helds: Sequence[Held], index: int, refused: Refused) -> Held:
        """The result of a step that refuses operand `index`."""
        findings = (self.finding(refused, step.line, helds, step),)
        return Held(helds[index].base, None, step, step, findings=findings)

    # For rules and messages -----------------------------------------------------------------------

    def finding(
        self,
        refused: Refused,
        line: SourceLine | None,
        helds: Sequence[Held],
        step: Step | None = None,
    ) -> Finding:
        """What a rule refused."""
        return finding_of(refused, line, helds, self.sizes, step)

    def shown(self, held: Held) -> str:
        """The layout to show for a value."""
        return layout_text(held, self.sizes)

    def equation(self, step: Step, other: Step, helds: Sequence[Held]) -> Equation:
        """What a rule sees of a step."""
        return Equation(
            step.op,
            self.sizes,
            _side(step),
            _side(other),
            name=lambda i: helds[i].origin.name,
            layout=lambda i: self.shown(helds[i]),
            held=lambda i: helds[i],
        )


def _moved_alone(step: Step, shape: ShapeRule, whole: Whole, out: Slot) -> tuple[Digits, ...]:
    """The digits that each dimension of what a step only moved walks on a group of one."""
    if 0 in out.shape:
        return tuple(uniform(size) for size in out.shape)
    dims = tuple(shape(step.params, whole.dims, out.shape))
    if tuple(count(digits) for digits in dims) != out.shape:
        # A reduction over the axis of a vmap, which is refused at n.
        raise CutError
    return dims


def rooted(relation: Relation, slot: Slot, held: Held, whole: Whole) -> Relation:
    """The relation of an integer, which masks and shifts by the rank's number may refer to."""
    if relation.tie is not None or relation.const is not None or slot.dtype not in _SIGNED:
        return relation
    return replace(relation, tie=Tie(held.base, whole.dims, shift=(0, 0)))


_SIGNED = tuple(np.dtype(name) for name in ("int8", "int16", "int32", "int64"))


def _as_refused(error: LayoutError | Refused | CutError, step: Step) -> Refused:
    if isinstance(error, CutError):
        return Refused("LAYOUT_MISMATCH", f"the operands of {step.op} do not line up")
    if isinstance(error, LayoutError):
        why = error.findings[0]
        return Refused(why.code, why.what, because=why.because, fixes=why.fixes)
    return error


def _side(step: Step) -> Side:
    return Side(
        step.params,
        tuple([slot.shape for slot in step.operands]),
        tuple([slot.shape for slot in step.results]),
        tuple([slot.dtype for slot in step.operands]),
        tuple([slot.dtype for slot in step.results]),
    )
