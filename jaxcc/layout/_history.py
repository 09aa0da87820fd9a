"""Where a value's factor comes from: the operations before it that make it another multiple of what
a group of one has."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxcc import _compat
from jaxcc.layout._advice import subsets
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._relation import Relation, same_scale
from jaxcc.layout._repair import Place, Repair
from jaxcc.layout._rules import shape_rule_of
from jaxcc.layout._values import Held

Kind = Literal["counted", "summed", "size", "ranks", "constant"]

_SUMS = frozenset({"psum", "reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter"})
# What passes on a factor of its one operand that is no number.
_PASS = frozenset(
    {"broadcast_in_dim", "convert_element_type", "div", "mul", "neg", "reshape", "squeeze"}
    | {"transpose", *_compat.IDENTITIES}
)


@dataclass(frozen=True)
class Cause:
    """An operation that gives a value a factor, or that was meant to take one away.

    Attributes:
      kind: `counted`, a sum of what all ranks hold; `summed`, one of what is pending; `size`, a
        product with, or a division by, a number that is a part of the group of one's; `ranks`, the
        same with a number of ranks; `constant`, with one that is the number of ranks only here.
      step: the operation.
      operand: which of its operands is summed, or is the number.
      axes: the axes that it is about.
      power: the power of their sizes by which `operand` differs from a group of one's; for a sum,
        1.
      number: what the operand is, if it is a number.
    """

    kind: Kind
    step: Step
    operand: int
    axes: tuple[str, ...]
    power: int = 1
    number: Any = None


class History:
    """The operations of a program by what they make, with what a walk knows of the values."""

    def __init__(
        self, steps: Iterable[Step], held: Mapping[Slot, Held], sizes: Mapping[str, int]
    ) -> None:
        self._steps = {step.place: step for step in steps}
        self._made_by = {slot: step for step in self._steps.values() for slot in step.results}
        self._held = held
        self.sizes = sizes

    def step(self, place: Place) -> Step:
        """The operation that stands there."""
        return self._steps[place]

    def maker(self, slot: Slot) -> Step | None:
        """The operation that made a value; None for arguments and constants."""
        return self._made_by.get(slot)

    def backward_of(self, step: Step) -> tuple[Place, ...]:
        """Where the backward pass of a collective stands that is its own gradient."""
        return tuple(
            one.place
            for one in self._steps.values()
            if one.op == step.op and one.line == step.line and one.of_gradient
        )

    def pending_since(self, slot: Slot) -> Step | None:
        """The operation that left a value to be reduced."""
        step = self.maker(slot)
        while step is not None:
            pending = [one for one in step.operands if self._pending(one)]
            if not pending:
                return step
            step = self.maker(pending[0])
        return None

    def _pending(self, slot: Slot) -> bool:
        x = self.relation(slot)
        return x is not None and bool(x.partial)

    def all_before(self, slot: Slot) -> Iterator[Step]:
        """Every operation that a value comes from."""
        waiting, seen = [slot], set[Place]()
        while waiting:
            step = self.maker(waiting.pop())
            if step is not None and step.place not in seen:
                seen.add(step.place)
                waiting += step.operands
                yield step

    def unmoved(self, slot: Slot) -> Step | None:
        """The operation that computed a value, or communicated it, before it was only moved."""
        step = self.maker(slot)
        while step is not None and shape_rule_of(step.op) is not None:
            step = self.maker(step.operands[0])
        return step

    def before(self, slot: Slot) -> Iterator[Step]:
        """The operations that gave `slot` a factor or passed one on to it, the latest first."""
        waiting: list[tuple[Sequence[int], int, Step]] = []
        count = itertools.count()
        seen: set[Place] = set()

        def add(one: Slot) -> None:
            step = self.maker(one)
            if step is not None and step.place not in seen and self._off(one):
                seen.add(step.place)
                heapq.heappush(waiting, ([-at for at in step.place], next(count), step))

        add(slot)
        while waiting:
            step = heapq.heappop(waiting)[2]
            yield step
            for operand in step.operands:
                add(operand)

    def causes(self, steps: Iterable[Step]) -> list[Cause]:
        """What in these operations bears on the factor, the latest first."""
        found: list[Cause] = []
        for step in steps:
            if step.op in _SUMS:
                found += self._of_sum(step)
            elif step.op in ("mul", "div"):
                found += self._of_product(step)
        means = {cause.step.line for cause in found if self.is_pmean(cause)}
        return [
            cause for cause in found if cause.step.op not in _SUMS or cause.step.line not in means
        ]

    def is_pmean(self, cause: Cause) -> bool:
        """Whether it is the division in a pmean."""
        made = self.maker(cause.step.operands[0])
        return (
            cause.kind == "ranks"
            and made is not None
            and made.op == "psum"
            and made.line is not None
            and made.line == cause.step.line
        )

    def relation(self, slot: Slot) -> Relation | None:
        """What is known of a value."""
        held = self._held.get(slot)
        return None if held is None else held.relation

    def _off(self, slot: Slot) -> bool:
        x = self.relation(slot)
        return x is not None and math.isfinite(x.scale) and not same_scale(x.scale, 1.0)

    def _of_sum(self, step: Step) -> Iterator[Cause]:
        for index, slot in enumerate(step.operands):
            x = self.relation(slot)
            if x is None:
                continue
            axes = [axis for axis in _compat.axis_names(step.eqn) if self.sizes.get(axis, 1) > 1]
            for kind, of in (
                ("counted", [axis for axis in axes if x.plain_over(axis)]),
                ("summed", [axis for axis in axes if x.partial.get(axis) == "sum"]),
            ):
                for axis in of:
                    yield Cause(kind, step, index, (axis,))  # pyright: ignore[reportArgumentType]
            for source in self._line_up(slot):
                yield from self._constants(source, axes)

    def _of_product(self, step: Step) -> Iterator[Cause]:
        """What a number gives to a product or takes from it."""
        at, ratio = self._number_at(step), self._ratio(step)
        if at is None or ratio is None:
            return
        if same_scale(ratio, 1.0):
            for source in self._line_up(step.operands[1 - at]):
                if source.op in _SUMS:
                    yield from self._constants(step, _compat.axis_names(source.eqn))
            return
        made = self.unmoved(step.operands[at])
        if made is not None and made.op in ("mul", "div"):
            return  # The cause is there.
        number = self._held[step.operands[at]].const
        for axes in self._subsets():
            ranks = float(math.prod(self.sizes[axis] for axis in axes))
            for power in (1, -1):
                if same_scale(ratio, ranks**power):
                    kind = "ranks" if same_scale(number, ranks**power) else "size"
                    yield Cause(kind, step, at, axes, power, number)

    def _constants(self, step: Step, axes: Sequence[str]) -> Iterator[Cause]:
        """A division by a number that is how many ranks a sum over `axes` has, here alone."""
        at = self._number_at(step)
        if at is None or self._ratio(step) != 1.0:
            return
        number = self._held[step.operands[at]].const
        power = 1 if step.op == "div" and at == 1 else -1
        for some in self._subsets():
            ranks = float(math.prod(self.sizes[axis] for axis in some))
            if set(some) <= set(axes) and same_scale(number, ranks**power):
                yield Cause("constant", step, at, some, power, number)

    def _ratio(self, step: Step) -> float | None:
        """A number in a product over the same one on a group of one."""
        at = self._number_at(step)
        if at is None:
            return None
        made, other = (self.relation(s) for s in (step.results[0], step.operands[1 - at]))
        if made is None or other is None or not _finite(made.scale, other.scale):
            return None
        grown = made.scale / other.scale
        ratio = 1 / grown if step.op == "div" and at == 1 else grown
        return 1.0 if same_scale(ratio, 1.0) else ratio

    def _line_up(self, slot: Slot) -> Iterator[Step]:
        """The operations between `slot` and what it is a multiple of, with that which made it."""
        while (step := self.maker(slot)) is not None:
            yield step
            if step.op not in _PASS:
                return
            at = self._number_at(step)
            if at is None and len(step.operands) > 1:
                return
            slot = step.operands[0 if at is None else 1 - at]

    def _number_at(self, step: Step) -> int | None:
        """Which operand of a product is a real number; the last one if both are."""
        if step.op not in ("mul", "div"):
            return None
        for at in (1, 0):
            held = self._held.get(step.operands[at])
            if held is not None and isinstance(held.const, (int, float)) and held.const:
                return at
        return None

    def _subsets(self) -> list[tuple[str, ...]]:
        return subsets([axis for axis, n in self.sizes.items() if n > 1])[1:]


def start_of(history: History, repair: Repair, outputs: Sequence[Slot]) -> Slot:
    """The value that a repair changes."""
    if repair.result:
        return outputs[repair.at[0]]
    assert repair.operand is not None
    return history.step(repair.at).operands[repair.operand]


def _finite(*scales: float) -> bool:
    return all(math.isfinite(scale) and scale for scale in scales)
