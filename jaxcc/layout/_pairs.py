"""The values of both sides during a walk: which belong together, and how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._constants import captured, number_of, number_text
from jaxcc.layout._digits import CutError, count, whole_dims
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._relation import (
    NO_SCALE,
    Relation,
    constant,
    empty,
    same_scale,
    seen_through,
)
from jaxcc.layout._rules import Refused
from jaxcc.layout._values import Given, Held, Origin, Whole, described

_SLICED = (
    "let the path not depend on the group's size: a slice of what is a whole block on n ranks does "
    "nothing there, but cuts on one"
)
_PERMUTED = (
    "take the ranks of the permutation from the group, not from a Python constant: "
    "[(i, (i + 1) % n) for i in range(n)] with n = jax.lax.axis_size(axis)"
)


def _literal(shape: Sequence[int], pair: tuple[Any, Any]) -> Relation:
    """Numbers that the user wrote: two that are nearly the same are no rounding of one."""
    x = constant(shape, pair)
    nearly = x.scale != 1.0 and math.isfinite(x.scale) and same_scale(x.scale, 1.0)
    return replace(x, scale=NO_SCALE) if nearly else x


class Pairs:
    """What is known of every slot at n (`held`) and on the group of one (`whole`)."""

    def __init__(self) -> None:
        self.held: dict[Slot, Held] = {}
        self.whole: dict[Slot, Whole] = {}
        self._bases = 0
        # What only the group of one computes, by the base of each such value.
        self._alone: dict[int, Origin] = {}

    def new_base(self) -> int:
        """A number for a new matched pair, or for a value without a partner."""
        self._bases += 1
        return self._bases

    def pair(self, slot: Slot, whole: Slot, held: Held) -> None:
        """Makes both slots one matched pair, related as `held` says."""
        base = self.new_base()
        _, relation, origin, scaled, _, placed, findings = held
        const = relation.const if relation is not None else None
        number = const[0] if const else None
        self.held[slot] = Held(base, relation, origin, scaled, number, placed, findings)
        self.whole[whole] = Whole(base, whole_dims(whole.shape), const[1] if const else None)

    def pair_captured(self, slot: Slot, other: Slot | None) -> None:
        """The same for arrays that the function captured, by their values."""
        origin = Given(None, "an array that the function captured", "a captured array")
        relation = None if other is None else captured(slot.value, other.value)
        if other is not None and relation is not None:
            if relation.const is not None:
                origin = origin._replace(name=f"the constant {number_text(relation.const[0])}")
            self.pair(slot, other, Held(0, relation, origin, origin))
            return
        finding = Finding(
            "LAYOUT_STRUCTURE",
            "the function captured an array that differs with the number of ranks",
            because="a group of one would compute with other numbers",
            fixes=("pass it as an argument with a layout",),
        )
        self.held[slot] = Held(self.new_base(), None, origin, origin, findings=(finding,))

    def alone(self, slot: Slot, step: Step | None = None) -> Whole:
        """A value of the group of one, made by `step` there, that nothing at n is related to,
        unless it is a number.
        """
        base = self.new_base()
        if step is not None:
            self._alone[base] = step
        return Whole(base, whole_dims(slot.shape), number_of(slot.value))

    def origin_alone(self, whole: Whole) -> Origin | None:
        """What made a value that only the group of one computes."""
        return self._alone.get(whole.base)

    def at_n(self, slot: Slot) -> Held:
        """What is known of a value at n; literals are met here for the first time."""
        held = self.held.get(slot)
        if held is None:
            number = number_of(slot.value)
            origin = Given(None, "a constant", f"the constant {number_text(number)}")
            relation = constant(slot.shape, (number, number))
            held = Held(self.new_base(), relation, origin, origin, number)
            self.held[slot] = held
        return held

    def at_1(self, slot: Slot) -> Whole:
        """What is known of a value of the group of one."""
        whole = self.whole.get(slot)
        if whole is None:
            whole = self.whole[slot] = self.alone(slot)
        return whole

    def related(self, held: Held, whole: Whole) -> Relation:
        """The relation of `held` to `whole`.

        Raises:
          Refused: they are neither one pair nor both numbers.
        """
        assert held.relation is not None
        if 0 in held.relation.shape:
            if all(count(dim) for dim in whole.dims):
                raise Refused(
                    "LAYOUT_STRUCTURE",
                    f"{held.origin.name} has no elements on n ranks, but some on one",
                )
            return empty(held.relation.shape)
        if held.const is not None and whole.const is not None:
            return _literal(held.relation.shape, (held.const, whole.const))
        if held.base != whole.base:
            made = self.origin_alone(whole)
            has = f"what a group of one has there is {described(made)}: " if made else ""
            raise Refused(
                "LAYOUT_STRUCTURE",
                f"{held.origin.name} is not the value that a group of one has in this place",
                because=f"{has}the program takes another path on one rank than on n",
                fixes=(_PERMUTED if made and made.how.endswith("ppermute") else _SLICED,),
            )
        if not whole.moved:
            return held.relation
        try:
            return seen_through(held.relation, whole.dims)
        except CutError:
            raise Refused(
                "LAYOUT_RESHAPE",
                f"{held.origin.name} is rearranged on n ranks in another way than on one",
                because="its blocks are no blocks of the rearranged whole",
            ) from None

    def correspond(self, a: Step, b: Step, *, so_far: bool = False) -> bool:
        """Whether two computing steps are one operation on the same values.

        With `so_far`, operands that are not reached yet do not count.
        """
        if a.op != b.op or len(a.operands) != len(b.operands):
            return False
        for slot, whole_slot in zip(a.operands, b.operands, strict=True):
            held, whole = self._reached_at_n(slot), self._reached_at_1(whole_slot)
            if held is None or whole is None:
                if so_far:
                    continue
                return False
            numbers = held.const is not None and whole.const is not None
            if not numbers and held.base != whole.base:
                return False
        return True

    def _reached_at_n(self, slot: Slot) -> Held | None:
        return self.held.get(slot) if slot.value is None else self.at_n(slot)

    def _reached_at_1(self, slot: Slot) -> Whole | None:
        return self.whole.get(slot) if slot.value is None else self.at_1(slot)
