"""Repairs that are tried, as a walk meets the operations and results that they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc._compat import axis_names
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._relation import Relation
from jaxcc.layout._repair import Place, Repair


class Repairs:
    """What repairs do to the values in `pairs`."""

    def __init__(self, repairs: Sequence[Repair], pairs: Pairs, sizes: Mapping[str, int]) -> None:
        self._repairs = repairs
        self._pairs = pairs
        self._sizes = sizes

    def change(self, step: Step) -> bool:
        """Whether one is about the step."""
        return bool(self._of(step))

    def read(self, step: Step) -> None:
        """Changes what the step reads, for all that follows, if a repair of it says so."""
        for repair in self._of(step):
            assert repair.operand is not None
            slot = step.operands[repair.operand]
            if _spreads(repair, slot):
                self._apply(slot, repair)

    def mended(self, step: Step, index: int, relation: Relation) -> Relation:
        """The relation of operand `index`, changed here alone if a repair of this step says so."""
        for repair in self._of(step):
            if index == repair.operand and not _spreads(repair, step.operands[index]):
                relation = repair.applied(relation, self._sizes)
        return relation

    def result(self, index: int, relation: Relation) -> Relation:
        """The relation of result `index` of the program."""
        for repair in self._repairs:
            if repair.changes((index,), result=True):
                relation = repair.applied(relation, self._sizes)
        return relation

    def left_out(self, step: Step, x: Relation) -> bool:
        """Whether a collective is left out: a repair says so, or one reduced its operand before."""
        if any(repair.without for repair in self._of(step)):
            return True
        if step.op != "psum" or not any(repair.instead for repair in self._repairs):
            return False
        done = {axis for one in self._repairs if one.instead for axis, _ in one.reduce}
        axes = axis_names(step.eqn)
        return set(axes) <= done and all(x.plain_over(axis) for axis in axes)

    def _of(self, step: Step) -> list[Repair]:
        return [one for one in self._repairs if one.changes(step.place)]

    def _apply(self, slot: Slot, repair: Repair) -> None:
        """Changes a value and what was only moved from it."""
        base, held = self._pairs.at_n(slot).base, self._pairs.held
        for other, one in list(held.items()):
            if one.base == base and one.relation is not None:
                relation = repair.applied(one.relation, self._sizes)
                held[other] = one._replace(relation=relation, const=None)


def _spreads(repair: Repair, slot: Slot) -> bool:
    """Whether a repair changes what later operations read, too; nothing else reads a literal."""
    return repair.everywhere and slot.value is None


def moved(
    repairs: Sequence[Repair], made_for: Sequence[Step], steps: Sequence[Step]
) -> tuple[Repair, ...]:
    """The repairs of a program for its trace on another group: at the same operations of the same
    lines.

    Raises:
      LookupError: an operation is not there.
    """
    if all(repair.result for repair in repairs):
        return tuple(repairs)
    keys = _keys(made_for)
    there = {key: at for at, key in enumerate(_keys(steps))}

    def place(at: Place) -> Place:
        return (there[keys[at[0]]], *at[1:])

    return tuple(
        one
        if one.result
        else replace(one, at=place(one.at), also=tuple(place(at) for at in one.also))
        for one in repairs
    )


def _keys(steps: Sequence[Step]) -> list[object]:
    """What an operation is known by on every group: its name, its line, and how many of these are
    before it."""
    seen: dict[object, int] = {}
    keys: list[object] = []
    for step in steps:
        kind = (step.op, step.line)
        seen[kind] = seen.get(kind, 0) + 1
        keys.append((kind, seen[kind]))
    return keys
