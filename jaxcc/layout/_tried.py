"""Fixes that are tried: a message shows one if the whole program passes with it, on every group
that is checked, and what it costs."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from jaxcc.layout._errors import Finding
from jaxcc.layout._factors import Change, Factors, both
from jaxcc.layout._libraries import of_your_own
from jaxcc.layout._repair import Repair
from jaxcc.layout._walk import WalkResult

_Pick = tuple[int, int]
"""A change that mends a finding: the number of the repair, and of the change among its changes."""

# How many changes of one program are tried; each needs at least a walk.
_TRIED = 40
# Of these many findings pairs of repairs are tried, too, each of which needs walks of its own.
_IN_PAIRS = 2
# A message has no more fixes of one value.
_SHOWN = 2

Walked = Callable[[Change], Iterator[WalkResult]]
"""Checks the program with repairs: what is found on each group, in their order."""

Traced = Callable[[WalkResult, Finding, Repair], Factors]
"""Where the factor of the value that a repair is about comes from, by a walk."""


class Trials:
    """Tries what may mend a program.

    Args:
      found: the walk of the first group on which something is wrong with it.
      group: the number of that group.
      walked: checks the program with repairs.
      traced: looks for what a factor comes from.
    """

    def __init__(self, found: WalkResult, group: int, walked: Walked, traced: Traced) -> None:
        self._found = found
        self._findings = found.findings
        self._group = group
        self._walked = walked
        self._traced = traced
        self._before = Counter(map(_key, found.findings))
        self._left = _TRIED
        self._outcome = functools.cache(self._tried)

    def findings(self) -> tuple[Finding, ...]:
        """The findings, where of the fixes that can be tried only those are left that mend theirs;
        those for which there was no time are said to be untried."""
        alike: dict[object, list[int]] = {}
        for number, finding in enumerate(self._findings):
            alike.setdefault(finding.alike(), []).append(number)
        shown: dict[int, Finding] = {}
        for numbers in alike.values():
            first, *others = [self._findings[number] for number in numbers]
            mended, picks = self._mended(first, numbers[0] < _IN_PAIRS)
            together = self._together([first, *others], picks) if others and picks else None
            rest = together or [self._mended(other, False)[0] for other in others]
            shown |= dict(zip(numbers, [mended, *rest], strict=True))
        return tuple(shown[number] for number in range(len(self._findings)))

    def _mended(self, finding: Finding, in_pairs: bool) -> tuple[Finding, Sequence[_Pick]]:
        """The finding with what mends it."""
        picks: list[_Pick] = []
        further: list[Change] = []
        if not finding.repairs:
            return finding, picks
        for at, repair in enumerate(finding.repairs):
            if repair.last and (picks or further):
                continue
            count = 0
            for changes in self._changes(finding, at):
                found = [
                    (at, count + number)
                    for number, change in enumerate(changes)
                    if self.mend(finding, change)
                ]
                count += len(changes)
                picks += found[: _SHOWN if repair.traced else 1]
                if repair.traced and not found:
                    further += itertools.islice(self._further(finding, changes), 1)
                if found or further:
                    break
        texts = [text for change in further for text in change[0].texts()]
        if not picks and not texts and in_pairs:
            texts = of_your_own(finding, self._pair(finding))
        return self._shown(finding, picks, texts), picks

    def _together(self, findings: Sequence[Finding], picks: Sequence[_Pick]) -> list[Finding]:
        """The findings but for the first, of which the same is said and `picks` mend it, if these
        mend all of them, done at once; else none."""
        for at, number in picks:
            changes = [
                list(itertools.chain(*self._changes(finding, at)))[number:][:1]
                for finding in findings
            ]
            repairs = {
                replace(one, fixes=()): None
                for some in changes
                for change in some
                for one in change
            }
            if not all(changes) or not self._mend_all(findings, tuple(repairs)):
                return []
        return [self._shown(finding, picks, []) for finding in findings[1:]]

    def _changes(self, finding: Finding, at: int) -> Iterable[Sequence[Change]]:
        """What one of a finding's repairs may be; where one of a list mends it, no further list is
        tried."""
        repair = finding.repairs[at]
        if not repair.traced:
            return [[change] for change in _variants(repair)]
        return self._traced(self._found, finding, repair).changes()

    def _shown(self, finding: Finding, picks: Sequence[_Pick], texts: Sequence[str]) -> Finding:
        """The finding with the fixes that are shown, and where its factor comes from."""
        tried = {fix for repair in finding.repairs for fix in repair.fixes}
        passed: list[str] = []
        line, reasons = finding.line, list[str]()
        for at, repair in enumerate(finding.repairs):
            mine = [number for repaired, number in picks if repaired == at]
            changes = list(itertools.chain(*self._changes(finding, at))) if mine else []
            fixes = [text for number in mine for text in changes[number][0].texts()]
            if not repair.traced:
                passed += of_your_own(finding, fixes)
                continue
            factors = self._traced(self._found, finding, repair)
            reasons.append(factors.reasons())
            passed += fixes
            if mine and repair.result:
                line = factors.line_of(changes[mine[0]]) or line
        # The message shows the line itself.
        passed = [fix.replace(f" at {line}", "") for fix in (*passed, *texts)]
        untried = [fix for fix in finding.fixes if fix in tried and not passed and not self._left]
        because = "; ".join(filter(None, dict.fromkeys([finding.because, *reasons])))
        kept = [fix for fix in finding.fixes if fix not in tried]
        return replace(
            finding,
            line=line,
            because=because or "the factor changes with the number of ranks",
            fixes=tuple(dict.fromkeys([*passed, *kept])),
            untried=(*finding.untried, *untried),
        )

    def _further(self, finding: Finding, changes: Sequence[Change]) -> Iterator[Change]:
        """Changes with what mends what is wrong only after them."""
        for one in changes:
            result, _ = self._outcome(one)
            news = [left for left in result.findings if _key(left) not in self._before]
            if _key(finding) in map(_key, result.findings) or not news:
                continue
            for repair in news[0].repairs:
                if repair.traced:
                    factors = self._traced(result, finding, repair)
                    pairs = (both(one, other) for other in itertools.chain(*factors.changes()))
                    yield from (pair for pair in pairs if self.mend(finding, pair))

    def mend(self, finding: Finding, change: Change) -> bool:
        """Whether the program passes with a change, but for what else is wrong with it."""
        return self._mend_all([finding], change)

    def _mend_all(self, findings: Sequence[Finding], change: Change) -> bool:
        result, elsewhere = self._outcome(change)
        after = Counter(map(_key, result.findings))
        mended = Counter(map(_key, findings))
        if after - (self._before - mended):
            return False
        # On other groups the same may be wrong in another way.
        return elsewhere() <= set(map(_place, result.findings))

    def _tried(self, change: Change) -> tuple[WalkResult, Callable[[], set[object]]]:
        """What is found on the group itself, and where something is left on the others."""
        if not self._left:
            return self._found, set
        self._left -= 1
        try:
            groups = self._walked(change)
            earlier = list(itertools.islice(groups, self._group))
            own = next(groups)
        except LookupError:
            return self._found, set

        @functools.cache
        def elsewhere() -> set[object]:
            try:
                return {_place(one) for found in (*earlier, *groups) for one in found.findings}
            except LookupError:
                return {None}

        return own, elsewhere

    def _pair(self, finding: Finding) -> list[str]:
        """The fixes of two reductions of which one is missing where the other is done."""
        for repair in finding.repairs:
            if not repair.reduce or not repair.fixes:
                continue
            (one,) = _variants(repair)[0]
            for left in self._outcome((one,))[0].findings:
                if left in self._findings:
                    continue
                for two in left.repairs:
                    if two.reduce and two.fixes and self.mend(finding, (one, *_variants(two)[0])):
                        return _pair_text(one, two)
        return []


def _variants(repair: Repair) -> list[Change]:
    """The ways in which a change may be meant, the plainest first."""
    if repair.result:
        return [(repair,)]
    wide = replace(repair, everywhere=True)
    found = [(wide,), (repair,)]
    return [*found, (replace(wide, instead=True),)] if repair.reduce else found


def _pair_text(one: Repair, other: Repair) -> list[str]:
    (first, *_), (second, *_) = one.texts(), other.texts()
    where = f"in a {one.inside.lstrip('_')} of your own: " if one.inside else ""
    return [f"{where}{first}, and {second}"]


def _key(finding: Finding) -> object:
    return finding.code, finding.line


def _place(finding: Finding) -> object:
    return finding.line, finding.result
