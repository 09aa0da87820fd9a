"""What one step of a program does to what is known of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc._compat import SourceLine
from jaxcc.layout._advice import RANDOM_FIXES, RANDOM_WHY, is_random
from jaxcc.layout._digits import CutError, count, uniform, whole_dim
from jaxcc.layout._errors import Finding, LayoutError
from jaxcc.layout._flatten import Step
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._params import require_same_operation
from jaxcc.layout._relation import (
    Relation,
    constant,
    empty,
    layout_seen,
    same_scale,
    stored,
)
from jaxcc.layout._rules import (
    Equation,
    Refused,
    Side,
    collective_of,
    computing_rule_of,
    shape_rule_of,
)
from jaxcc.layout._unruled import outside_effects, relations_of, why_rule_needed
from jaxcc.layout._values import Held, Origin, Whole, type_text


class Applier:
    """Applies steps to the values in `pairs` and collects what is wrong.

    A step that refuses its operands marks its results; that is reported when it reaches an output
    or an effect, since right programs hold dead and unselected values.
    """

    def __init__(self, pairs: Pairs, sizes: Mapping[str, int]) -> None:
        self.pairs = pairs
        self.sizes = sizes
        self.findings: list[Finding] = []

    def report(self, findings: Sequence[Finding]) -> None:
        """Adds what is not yet reported."""
        self.findings += [finding for finding in findings if finding not in self.findings]

    def shown(self, held: Held) -> LayoutMap | str:
        """The layout to show for a value."""
        if held.relation is None:
            return "refused"
        return layout_seen(held.relation, tuple(self.sizes))

    # One side -------------------------------------------------------------------------------------

    def moved_at_n(self, step: Step) -> bool:
        """Applies a step that only moves or communicates; False if it has to be matched."""
        collective, shape = collective_of(step.op), shape_rule_of(step.op)
        if collective is None and shape is None:
            return False
        made: list[Held] = []
        for slot, out in zip(step.operands, step.results, strict=True):
            held = self.pairs.at_n(slot)
            if held.relation is None:
                made.append(held)
                continue
            if 0 in out.shape:
                made.append(_made(step, held, empty(out.shape), moved=shape is not None))
                continue
            try:
                if collective is not None:
                    relation = collective.relate(self._equation(step, step, [held]), held.relation)
                    relation = stored(relation, out.dtype)
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
                made.append(_made(step, held, relation, moved=shape is not None))
        self.pairs.held.update(zip(step.results, made, strict=True))
        return True

    def moved_at_1(self, step: Step) -> bool:
        """The same on the side of the group of one, where a collective is the identity."""
        collective = collective_of(step.op)
        shape = shape_rule_of(step.op) if collective is None else collective.alone
        if shape is None:
            return False
        made: list[Whole] = []
        for slot, out in zip(step.operands, step.results, strict=True):
            whole = self.pairs.at_1(slot)
            try:
                if 0 in out.shape:
                    dims = tuple(uniform(size) for size in out.shape)
                else:
                    dims = tuple(shape(step.params, whole.dims, out.shape))
                if tuple(count(digits) for digits in dims) != out.shape:
                    # A reduction over the axis of a vmap, which is refused at n.
                    raise CutError
            except CutError:
                if computing_rule_of(step.op) is not None:
                    return False
                made.append(self.pairs.alone(out))
            else:
                made.append(replace(whole, dims=dims))
        self.pairs.whole.update(zip(step.results, made, strict=True))
        return True

    def unmatched_at_n(self, step: Step) -> None:
        """A computing step that only stands at n: fine among numbers."""
        if self._folded(step):
            return
        group = ", ".join(f"{axis}={n}" for axis, n in self.sizes.items())
        finding = Finding(
            "LAYOUT_STRUCTURE",
            f"{step.shown} runs on ranks {group}, but a group of one has no such step",
            step.line,
            because="the program takes another path on one rank than on n",
            fixes=("let the path not depend on the group's size",),
        )
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        earlier = tuple(dict.fromkeys(f for held in helds for f in held.findings))
        self._refuse(step, None, earlier or (finding,))

    def unmatched_at_1(self, step: Step) -> None:
        """A computing step that only stands on the group of one."""
        for slot in step.results:
            self.pairs.whole[slot] = self.pairs.alone(slot)

    def _folded(self, step: Step) -> bool:
        rule = computing_rule_of(step.op)
        helds = [self.pairs.at_n(slot) for slot in step.operands]
        if rule is None or not helds or any(held.const is None for held in helds):
            return False
        relations = [
            constant(slot.shape, (held.const, held.const))
            for slot, held in zip(step.operands, helds, strict=True)
        ]
        try:
            made = rule(self._equation(step, step, helds), *relations)
        except (Refused, CutError):
            return False
        if not isinstance(made, Relation) or made.const is None:
            return False
        (slot,) = step.results
        held = _made(step, helds[0], made)
        self.pairs.held[slot] = replace(held, base=self.pairs.new_base(), const=made.const[0])
        return True

    # Both sides -----------------------------------------------------------------------------------

    def matched(self, step: Step, other: Step) -> None:
        """Relates the results of a computing step to those of the same step on the group of one."""
        pairs = self.pairs
        helds = [pairs.at_n(slot) for slot in step.operands]
        earlier = tuple(dict.fromkeys(f for held in helds for f in held.findings))
        if earlier:
            self._refuse(step, other, _for_random(step, earlier))
            return
        try:
            wholes = [pairs.at_1(slot) for slot in other.operands]
            relations = [pairs.related(h, w) for h, w in zip(helds, wholes, strict=True)]
            seen = [replace(h, relation=r) for h, r in zip(helds, relations, strict=True)]
            made = self._results(step, other, seen, relations)
        except LayoutError as error:
            why = error.findings[0]
            refused = Refused(why.code, why.what, because=why.because, fixes=why.fixes)
            self._refuse(step, other, (self.finding(refused, step.line, helds, step),))
        except CutError:
            refused = Refused("LAYOUT_MISMATCH", f"the operands of {step.op} do not line up")
            self._refuse(step, other, (self.finding(refused, step.line, helds, step),))
        except Refused as refused:
            found = (self.finding(refused, step.line, helds, step),)
            self._refuse(step, other, _for_random(step, found))
        else:
            for slot, whole, relation in zip(step.results, other.results, made, strict=True):
                pairs.pair(slot, whole, _made(step, _source(seen, relation), relation))

    def _results(
        self, step: Step, other: Step, helds: Sequence[Held], relations: Sequence[Relation]
    ) -> Sequence[Relation]:
        if all(0 in slot.shape for slot in (*step.results, *other.results)):
            return [empty(slot.shape) for slot in step.results]
        rule = computing_rule_of(step.op)
        if rule is None:
            return self._without_rule(step, other, relations)
        require_same_operation(step, other)
        made = rule(self._equation(step, other, helds), *relations)
        made = relations_of(step.op, made)
        shapes = [slot.shape for slot in step.results]
        if [relation.shape for relation in made] != shapes:
            claimed = [relation.shape for relation in made]
            raise Refused(
                "LAYOUT_RULE", f"the layout rule of {step.op} gives shapes {claimed}, not {shapes}"
            )
        return made

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
        origin = _origin(step)
        bad = Held(0, None, origin, origin, findings=findings)
        for index, slot in enumerate(step.results):
            if other is None:
                self.pairs.held[slot] = replace(bad, base=self.pairs.new_base())
            else:
                self.pairs.pair(slot, other.results[index], bad)

    def _bad(self, step: Step, held: Held, refused: Refused) -> Held:
        """The result of a step that refuses `held`."""
        findings = (self.finding(refused, step.line, [held], step),)
        origin = _origin(step)
        return Held(held.base, None, origin, origin, findings=findings)

    # Messages -------------------------------------------------------------------------------------

    def finding(
        self,
        refused: Refused,
        line: SourceLine | None,
        helds: Sequence[Held],
        step: Step | None = None,
    ) -> Finding:
        """What a rule refused, with the line and each operand's layout and where it got it."""
        operands: list[str] = []
        slots = step.operands if step is not None else ()
        for index, (held, slot) in enumerate(zip(helds, slots, strict=False)):
            where = held.placed or held.origin
            shown = f"{type_text(slot)} {_text(self.shown(held))}"
            operands.append(f"operand {index}: {shown}, {where.describe()}")
        return Finding(
            refused.code, refused.what, line, tuple(operands), refused.because, refused.fixes
        )

    def _equation(self, step: Step, other: Step, helds: Sequence[Held]) -> Equation:
        return Equation(
            step.op,
            self.sizes,
            _side(step),
            _side(other),
            name=lambda i: helds[i].origin.name,
            layout=lambda i: _text(self.shown(helds[i])),
            held=lambda i: helds[i],
        )


def _made(step: Step, source: Held | None, relation: Relation, *, moved: bool = False) -> Held:
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


def _source(helds: Sequence[Held], relation: Relation) -> Held | None:
    """The operand whose layout the result has, so that it keeps that operand's history."""
    for held in helds:
        old = held.relation
        if old is not None and old.partial == relation.partial and old.ranks == relation.ranks:
            return held
    return helds[0] if helds else None


def _origin(step: Step) -> Origin:
    return Origin(step.line, f"made by {step.shown}", f"the result of {step.shown}")


# What a key of a rank's own is refused for, depending on how it was made.
_OWN_KEY = ("LAYOUT_RANK_INDEX", "LAYOUT_STRUCTURE", "LAYOUT_RESHAPE", "LAYOUT_SLICE")


def _for_random(step: Step, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, with what to do if a key or number of a rank's own makes random numbers."""
    if not is_random(step.op):
        return findings
    return tuple(
        replace(finding, because=RANDOM_WHY, fixes=RANDOM_FIXES)
        if finding.code in _OWN_KEY
        else finding
        for finding in findings
    )


def _cut(step: Step, held: Held) -> Refused:
    return Refused(
        "LAYOUT_RESHAPE",
        f"{step.op} cuts {held.origin.name} where its blocks are not whole",
        because="a block of the result is no block of the whole result",
        fixes=("gather it first, or keep the sliced dimension a leading part",),
    )


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
