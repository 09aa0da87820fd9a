"""Repairs that are tried, as a walk meets the operations and results that they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcc._compat import axis_names
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._pairs import Pairs
from jaxcc.layout._relation import Relation
from jaxcc.layout._repair import Repair


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
            if repair.everywhere:
                assert repair.operand is not None
                self._apply(step.operands[repair.operand], repair)

    def mended(self, step: Step, index: int, relation: Relation) -> Relation:
        """The relation of operand `index`, changed here alone if a repair of this step says so."""
        for repair in self._of(step):
            if not repair.everywhere and index == repair.operand:
                relation = repair.applied(relation, self._sizes)
        return relation

    def result(self, index: int, relation: Relation) -> Relation:
        """The relation of result `index` of the program."""
        for repair in self._repairs:
            if repair.changes(index, result=True):
                relation = repair.applied(relation, self._sizes)
        return relation

    def left_out(self, step: Step, x: Relation) -> bool:
        """Whether a sum is left out because its operand was reduced before, by a repair."""
        if step.op != "psum" or not any(repair.instead for repair in self._repairs):
            return False
        done = {axis for one in self._repairs if one.instead for axis, _ in one.reduce}
        axes = axis_names(step.eqn)
        return set(axes) <= done and all(x.plain_over(axis) for axis in axes)

    def _of(self, step: Step) -> list[Repair]:
        return [one for one in self._repairs if one.changes(step.index)]

    def _apply(self, slot: Slot, repair: Repair) -> None:
        """Changes a value and what was only moved from it."""
        base, held = self._pairs.at_n(slot).base, self._pairs.held
        for other, one in list(held.items()):
            if one.base == base and one.relation is not None:
                relation = repair.applied(one.relation, self._sizes)
                held[other] = one._replace(relation=relation, const=None)
