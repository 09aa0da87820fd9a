"""What all pointwise rules share: one index for all operands, and what is right only where an
integer lies in a rank's interval."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._digits import uniform
from jaxcc.layout._ranked import ALL, NONE, IntSet, Ranked, varies_over
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout._settle import RANK_FIXES, RANK_WHY, settle, settled
from jaxcc.layout._tie import FIRST, Tie, one_integer, repeated
from jaxcc.layout.rules._combine import together
from jaxcc.layout.rules._fold import folded

PointwiseRule = Callable[[Equation, Sequence[Relation], Relation], Relation]
"""(equation, operands of the result's shape, their common digits) -> the result."""

RankedRule = Callable[[Equation, Sequence[Relation]], Relation | None]
"""(equation, operands of the result's shape, with ties) -> the result, or None if the operation is
nothing special for numbers that depend on the rank."""

# 0 where the operand is 0, whatever the others are (a divisor is not 0).
_KEEP_ZERO = ("neg", "mul", "div", "convert_element_type", "reduce_precision", "real")
_ADDITIVE = ("add", "sub", "add_any")


def spread(eqn: Equation, operands: Sequence[Relation]) -> list[Relation]:
    """The operands at the result's shape: a dimension of size 1, or a scalar, is repeated."""
    (out,), (whole,) = eqn.per_rank.out_shapes, eqn.whole.out_shapes
    wide: list[Relation] = []
    for operand, shape, whole_shape in zip(
        operands, eqn.per_rank.shapes, eqn.whole.shapes, strict=True
    ):
        if shape == out and whole_shape == whole:
            wide.append(operand)
            continue
        dims = operand.dims if shape else ((),) * len(out)
        sizes = shape or (1,) * len(out)
        dims = tuple(
            uniform(n) if size == 1 and n != 1 else digits
            for digits, size, n in zip(dims, sizes, out, strict=True)
        )
        wide.append(replace(operand, dims=dims, tie=repeated(operand.tie, whole_shape, whole)))
    return wide


def pointwise(
    *names: str, by_rank: RankedRule | None = None
) -> Callable[[PointwiseRule], PointwiseRule]:
    """Registers a rule for the pointwise primitives `names`.

    Numbers are folded, and `by_rank` sees the operands first; without it, or where it returns
    None, the rule sees them without ties.
    """

    def register(rule: PointwiseRule) -> PointwiseRule:
        def relate(eqn: Equation, *operands: Relation) -> Relation:
            known = folded(eqn, operands)
            if known is not None:
                return known
            wide = spread(eqn, operands)
            if by_rank is not None:
                made = by_rank(eqn, wide)
                if made is not None:
                    return made
            if any(x.by_rank for x in wide):
                return where_right(eqn, wide, rule)
            wide = [x if x.tie is None else replace(x, tie=None) for x in wide]
            return rule(eqn, wide, together(eqn, wide))

        layout_rule(*names, by_rank=True)(relate)
        return rule

    return register


def where_right(eqn: Equation, operands: Sequence[Relation], rule: PointwiseRule) -> Relation:
    """The rule's relation, which holds where those of all operands do."""
    owned: dict[int, Tie] = {}
    plain: list[Relation] = []
    for index, x in enumerate(operands):
        pending = settle(x, eqn.sizes) if eqn.op in _ADDITIVE else None
        if pending is not None:
            plain.append(pending)
        elif x.by_rank and x.tie is not None and _only_within(x.tie.owned) and FIRST not in x.ranks:
            owned[index] = x.tie.owned
            plain.append(replace(x, tie=None))
        else:
            plain.append(settled(eqn, index, x))
    try:
        made = rule(eqn, plain, together(eqn, plain))
    except Refused:
        # What is wrong is that a rank's part is treated as the whole.
        for index in owned:
            settled(eqn, index, operands[index])
        raise
    return _tied(eqn, made, owned, operands) if owned else made


def _only_within(tie: Tie) -> bool:
    return tie.within is not None and tie.mask is None and tie.offset_free


def _tied(
    eqn: Equation, made: Relation, owned: Mapping[int, Tie], operands: Sequence[Relation]
) -> Relation:
    """`made`, where each of `owned` says that its operand is right."""
    ties = list(owned.values())
    integer = one_integer(ties)
    if integer is None:
        raise other_integers(eqn)
    sets = [tie.within for tie in ties if tie.within is not None]
    within = tuple(functools.reduce(lambda a, b: a & b, one) for one in zip(*sets, strict=True))
    if set(varies_over(within, eqn.sizes)) & set(made.partial):
        raise Refused(
            "LAYOUT_RANK_INDEX",
            f"{eqn.op} adds what a rank owns to what is still to be reduced over the ranks",
            because="elsewhere each rank has another number",
            fixes=RANK_FIXES,
        )
    outside, inside = _outside(eqn, owned, operands)
    finite = all(tie.finite for tie in ties)
    return replace(
        made,
        const=None,
        tie=Tie(*integer, within=within, outside=outside, inside=inside, finite=finite),
    )


def _outside(
    eqn: Equation, owned: Mapping[int, Tie], operands: Sequence[Relation]
) -> tuple[Any, IntSet]:
    """What the result is where it is not right, if known, and where it is something else at 1."""
    if eqn.op in _KEEP_ZERO and len(owned) == 1:
        ((index, tie),) = owned.items()
        zero = not isinstance(tie.outside, bool) and tie.outside == 0
        if zero and not (eqn.op == "div" and index == 1):
            return 0, tie.inside
        if eqn.op == "convert_element_type" and tie.outside is False:
            return 0, tie.inside
        if eqn.op == "neg" and tie.outside in (math.inf, -math.inf):
            return -tie.outside, tie.inside
    if eqn.op != "select_n" or len(operands) != 3:
        return None, ALL
    if any(tie.within != next(iter(owned.values())).within for tie in owned.values()):
        # Where one is right and another is not, nobody knows what is chosen.
        return None, ALL
    if 0 in owned:
        number = neutral_number(operands[1]) if owned[0].outside is False else None
        return number, ALL if number is None else owned[0].inside
    cases = [
        (owned[at].outside, owned[at].inside)
        if at in owned
        else (neutral_number(operands[at]), NONE)
        for at in (1, 2)
    ]
    (first, one), (second, other) = cases
    return (first, one | other) if first is not None and first == second else (None, ALL)


def neutral_number(x: Relation) -> Any:
    """The number of which every sum, or every maximum or minimum, takes no notice, if `x` is
    one."""
    if x.const is None or isinstance(x.const[0], Ranked) or x.const[0] != x.const[1]:
        return None
    number = x.const[0]
    return number if isinstance(number, bool) or number in (0, math.inf, -math.inf) else None


def other_integers(eqn: Equation) -> Refused:
    """The error for values that depend on two arrays of integers, or on two elements of one."""
    return Refused(
        "LAYOUT_RANK_INDEX",
        f"{eqn.op} takes values of which ranks own parts by different integers",
        because=RANK_WHY,
        fixes=("compare one array of integers with the rank's bounds, and use that mask for all",),
    )
