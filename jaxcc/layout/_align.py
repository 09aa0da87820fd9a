"""Pairs the computing steps of a program at n with those at 1.

A step may stand on one side only. Where the next two do not correspond, a short look ahead finds
the next ones that do; an operand pair is accepted only if both come from a matched pair, so a wrong
alignment can refuse a program but never accept one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jaxcc.layout._apply import Applier
from jaxcc.layout._flatten import Step
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._rules import collective_of, shape_rule_of

_LOOK_AHEAD = 8


def align(n: Sequence[Step], one: Sequence[Step], applier: Applier) -> None:
    """Matches the computing steps of both sides in order."""
    i = j = 0
    while i < len(n) or j < len(one):
        while i < len(n) and applier.moved_at_n(n[i]):
            i += 1
        while j < len(one) and applier.moved_at_1(one[j]):
            j += 1
        to_i, to_j = _next_match(n, i, one, j, applier.pairs)
        for step in n[i:to_i]:
            if not applier.moved_at_n(step):
                applier.unmatched_at_n(step)
        for step in one[j:to_j]:
            if not applier.moved_at_1(step):
                applier.unmatched_at_1(step)
        i, j = to_i, to_j
        if i < len(n) and j < len(one):
            applier.matched(n[i], one[j])
            i, j = i + 1, j + 1


def _next_match(
    n: Sequence[Step], i: int, one: Sequence[Step], j: int, pairs: Pairs
) -> tuple[int, int]:
    """The next two computing steps that correspond, a short way ahead; else the ends of both lists
    or a step on."""
    if i == len(n) or j == len(one):
        return len(n), len(one)
    if pairs.correspond(n[i], one[j]):
        return i, j
    same = n[i].op == one[j].op and len(n[i].operands) == len(one[j].operands)
    ahead, ahead_1 = _ahead(n, i), _ahead(one, j)
    choices = [(a, b) for a in range(len(ahead)) for b in range(len(ahead_1)) if a or b]
    for a, b in sorted(choices, key=lambda choice: (sum(choice), choice)):
        step, other = n[ahead[a]], one[ahead_1[b]]
        # Where the next steps are alike anyway, only a certain match is better.
        if pairs.correspond(step, other, so_far=not same):
            return ahead[a], ahead_1[b]
    if same:
        return i, j
    return (ahead[1] if len(ahead) > 1 else len(n)), (ahead_1[1] if len(ahead_1) > 1 else len(one))


def _ahead(steps: Sequence[Step], start: int) -> list[int]:
    """`start` and the next few computing steps."""
    later = (k for k in range(start + 1, len(steps)) if not _moves(steps[k]))
    return [start, *itertools.islice(later, _LOOK_AHEAD)]


def _moves(step: Step) -> bool:
    return shape_rule_of(step.op) is not None or collective_of(step.op) is not None
