"""Fixes that are tried: a message shows one if the program passes with it, and what it costs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._traffic import size_text

if TYPE_CHECKING:
    from jaxcc.layout._errors import Finding

_TRIED = 8
# Of these many findings pairs of repairs are tried, too, each of which needs walks of its own.
_TRIED_IN_PAIRS = 2


@dataclass(frozen=True)
class Repair:
    """A change to what one operation reads, or to one result.

    Attributes:
      fixes: what the user can write, each of which comes to this.
      operand: which operand of the operation; None if it is none, so that it cannot be tried.
      reduce: the all-reduces to do first, by axis.
      factor: what to multiply by then.
      at: the operation's place in the program, or that of the result.
      also: the places of other operations of which the same is to be said.
      result: whether it is a result that is changed.
      everywhere: whether later operations that read the same value read the changed one too.
      instead: whether later sums of what every rank then holds are left out.
      last: whether it is tried only if no other one mends the program.
      inside: the library function that the operation is a part of.
      bytes: what one rank gives to one all-reduce.
    """

    fixes: tuple[str, ...]
    operand: int | None = 0
    reduce: tuple[tuple[str, ReduceOp], ...] = ()
    factor: float = 1.0
    at: int = -1
    also: tuple[int, ...] = ()
    result: bool = False
    everywhere: bool = False
    instead: bool = False
    last: bool = False
    inside: str = ""
    bytes: int = 0

    def changes(self, at: int, *, result: bool = False) -> bool:
        """Whether it is about the operation, or the result, of this place."""
        return self.result == result and (at == self.at or at in self.also)

    def with_places_of(self, other: Repair) -> Repair:
        """This one, made where `other` is, too."""
        places = dict.fromkeys((*self.also, other.at, *other.also))
        return replace(self, also=tuple(at for at in places if at != self.at))

    def applied(self, x: Relation, sizes: Mapping[str, int]) -> Relation:
        """The relation after the change."""
        scale = x.scale * self.factor
        partial = dict(x.partial)
        for axis, op in self.reduce:
            if partial.pop(axis, None) is None and op == "sum":
                scale *= sizes[axis]
        return replace(x, partial=partial).scaled(scale)

    def texts(self) -> list[str]:
        """The fixes, with what they communicate more than the program does."""
        if not self.reduce or not self.bytes:
            return list(self.fixes)
        if self.instead:
            return [f"{fix}, instead of the sum after it" for fix in self.fixes]
        kind = "all-reduce" if len(self.reduce) == 1 else f"all-reduce over {len(self.reduce)} axes"
        return [f"{fix} (one {kind} of {size_text(self.bytes)})" for fix in self.fixes]


Walked = Callable[[tuple[Repair, ...]], "Sequence[Finding]"]
"""Checks the program with repairs."""


def with_tried_fixes(findings: Sequence[Finding], walked: Walked) -> tuple[Finding, ...]:
    """The findings, where of the fixes that can be tried only those are left that mend theirs."""
    walked = functools.cache(walked)
    return tuple(
        _tried(finding, findings, walked, number < _TRIED_IN_PAIRS)
        if number < _TRIED and finding.repairs
        else finding
        for number, finding in enumerate(findings)
    )


def _tried(
    finding: Finding, findings: Sequence[Finding], walked: Walked, in_pairs: bool
) -> Finding:
    before = Counter(map(_key, findings))
    tried = {fix for repair in finding.repairs for fix in repair.fixes}
    passed: list[str] = []

    def mends(*repairs: Repair) -> bool:
        after = Counter(map(_key, walked(repairs)))
        return not after - before and after[_key(finding)] < before[_key(finding)]

    for repair in finding.repairs:
        if repair.last and passed:
            continue
        for one in _variants(repair):
            if mends(one):
                passed += one.texts()
                break
    if not passed and in_pairs:
        pairs = _pairs(finding, findings, walked)
        passed = next((_pair_text(*pair) for pair in pairs if mends(*pair)), passed)
    return replace(finding, fixes=(*passed, *(fix for fix in finding.fixes if fix not in tried)))


def _pairs(
    finding: Finding, findings: Sequence[Finding], walked: Walked
) -> Iterator[tuple[Repair, Repair]]:
    """Each reduction, with one that is missing where it is done."""
    for repair in finding.repairs:
        if repair.reduce:
            one = _variants(repair)[0]
            for left in walked((one,)):
                if left not in findings:
                    yield from ((one, _variants(two)[0]) for two in left.repairs if two.reduce)


def _pair_text(one: Repair, other: Repair) -> list[str]:
    (first, *_), (second, *_) = one.texts(), other.texts()
    where = f"in a {one.inside.lstrip('_')} of your own: " if one.inside else ""
    return [f"{where}{first}, and {second}"]


def _variants(repair: Repair) -> list[Repair]:
    """The ways in which a change may be meant, the plainest first."""
    if repair.result:
        return [repair]
    wide = replace(repair, everywhere=True)
    found = [wide, repair]
    return [*found, replace(wide, instead=True)] if repair.reduce else found


def _key(finding: Finding) -> object:
    return finding.code, finding.line


def unit_factor(scale: float) -> float:
    """What brings a scale to 1; 1 where nothing does."""
    return 1 / scale if math.isfinite(scale) and scale else 1.0
