"""Blocks that ranks have passed on to one another.

After a rotation rank r holds the block of another rank. With the ranks counted in the order of what
they hold, such values are sliced as any others, so whatever computes without the rank's number, or
the order of the ranks, may be applied to values that were passed on alike; a reduction over all
ranks does not see the order at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc.layout._relation import Relation, Turn
from jaxcc.layout._rules import Equation, Refused
from jaxcc.layout._settle import settled
from jaxcc.layout._unruled import names_axis

TESTED_ONLY = (
    'for a ring or a pipeline: check(..., structure="rank-dependent"), which runs the program '
    "instead of proving it"
)
_NO_TURNS: Mapping[str, Turn] = {}


def straightened(
    eqn: Equation, operands: Sequence[Relation]
) -> tuple[Mapping[str, Turn], Sequence[Relation]]:
    """How the operands were passed on, and what they are with the ranks counted in that order.

    Raises:
      Refused: LAYOUT_RANK_DEPENDENT if they were not all passed on alike, or the operation depends
        on the ranks' order.
    """
    if not any(x.turned for x in operands):
        return _NO_TURNS, operands
    turned: dict[str, Turn] = {}
    for index, x in enumerate(operands):
        for axis, turn in x.turned.items():
            turned.setdefault(axis, turn)
            if names_axis(tuple(eqn.per_rank.params.values()), (axis,)):
                raise passed_on(eqn, index, axis, f"{eqn.op} puts ranks in their order")
    for index, x in enumerate(operands):
        for axis, turn in turned.items():
            if axis in x.ranks and x.turned.get(axis) != turn:
                raise passed_on(eqn, index, axis, "the operands are blocks of different ranks")
    # What depends on the rank's number does not follow what ranks hold.
    plain = [settled(eqn, index, x) for index, x in enumerate(operands)]
    return turned, [replace(x, turned=_NO_TURNS, tie=None) if x.turned else x for x in plain]


def turned_back(turned: Mapping[str, Turn], made: Relation) -> Relation:
    """The result, with the ranks counted by their numbers."""
    kept = {axis: turn for axis, turn in turned.items() if axis in made.ranks}
    return replace(made, turned=kept) if kept else made


def passed(x: Relation, axis: str, pairs: Sequence[tuple[int, int]]) -> Relation:
    """A value that every rank has sent to another one, as `(from, to)` in `pairs`."""
    before = x.turned.get(axis, tuple(range(len(pairs))))
    source = {receiver: sender for sender, receiver in pairs}
    turn = tuple(before[source[rank]] for rank in range(len(pairs)))
    turned = {other: one for other, one in x.turned.items() if other != axis}
    if turn != tuple(range(len(pairs))):
        turned[axis] = turn
    return replace(x, turned=turned, tie=None)


def require_straight(x: Relation, name: str, why: str = "") -> None:
    """Refuses a value of which ranks hold the blocks of other ranks; `why` is for a place where no
    layout is asked.

    Raises:
      Refused: LAYOUT_RANK_DEPENDENT.
    """
    for axis, turn in x.turned.items():
        back = "pass it back, or reduce it over the axis"
        local = f"declare it Local over '{axis}', where nobody needs to know whose block it is"
        raise Refused(
            "LAYOUT_RANK_DEPENDENT",
            f"{name} was passed on along '{axis}': rank 0 holds the block of rank {turn[0]}",
            because=why or "a layout says that rank r holds block r",
            fixes=(back, TESTED_ONLY) if why else (back, local, TESTED_ONLY),
        )


def passed_on(eqn: Equation, index: int, axis: str, why: str) -> Refused:
    """The error for an operand of which each rank holds another rank's block."""
    return Refused(
        "LAYOUT_RANK_DEPENDENT",
        f"{eqn.op} takes {eqn.name(index)}, which is {eqn.layout(index)}",
        because=f"{why}, and over '{axis}' a rank then holds a block that its number does not name",
        fixes=("all_gather the blocks before they are passed on, or use all_to_all", TESTED_ONLY),
    )
