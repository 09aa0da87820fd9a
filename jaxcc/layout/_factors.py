"""What mends a value that is another multiple of what a group of one has: changes to the operations
that its factor comes from, each of which does to the program exactly what it says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jaxcc import _compat
from jaxcc._compat import SourceLine
from jaxcc.layout._advice import axes_text
from jaxcc.layout._constants import number_text
from jaxcc.layout._flatten import Slot
from jaxcc.layout._history import Cause, History, start_of
from jaxcc.layout._repair import Powers, Repair
from jaxcc.layout._rules import shape_rule_of

_IN_PAIRS = 6

Change = tuple[Repair, ...]
"""What is done together; the fixes of its first repair speak for it."""


class Factors:
    """What is wrong with the factor of one value, and what mends it.

    Args:
      history: of the program.
      wrong: the repair that says which value it is.
      outputs: the program's results.
      check_vma: the flag of `shard_map`.
      line: the line that the message shows.
    """

    def __init__(
        self,
        history: History,
        wrong: Repair,
        outputs: Sequence[Slot],
        check_vma: bool,
        line: SourceLine | None,
    ) -> None:
        self._history = history
        self._wrong = wrong
        self._slot = start_of(history, wrong, outputs)
        self._steps = list(history.before(self._slot))
        self._vma = check_vma
        self._line = line
        self.causes = history.causes(self._steps)

    def of_a_gradient(self) -> bool:
        """Whether a sum counts something in a backward pass."""
        return any(one.kind == "counted" and one.step.of_gradient for one in self.causes)

    def changes(self) -> Iterator[list[Change]]:
        """What may mend it, the likeliest first; where one of a list does, the rest of it may be
        shown, too, but no other list."""
        yield [change for one in self.causes if one.kind == "constant" for change in self._of(one)]
        # Each with what it is about: two changes of the same are never both meant.
        singles: list[tuple[object, Change]] = [
            (one.step.place, change)
            for one in self.causes
            if one.kind != "constant"
            for change in self._of(one)
        ]
        singles += [("loss", change) for change in self._means_of_losses()]
        yield [change for _, change in singles]
        yield [
            both(one, other)
            for (about, one), (apart, other) in itertools.combinations(singles[:_IN_PAIRS], 2)
            if about != apart
        ]
        yield list(self._plainly())

    def line_of(self, change: Change) -> SourceLine | None:
        """The line of the operation that a change is about, if it is about one."""
        first = change[0]
        return None if first.result else self._history.step(first.at).line

    def reasons(self) -> str:
        """Where the factor comes from."""
        texts = [_reason(one, self._history.sizes) for one in self.causes]
        return ", and ".join(list(dict.fromkeys(filter(None, texts)))[:3])

    def _of(self, cause: Cause) -> Iterator[Change]:
        if cause.step.line is not None and cause.step.line.within:
            return
        if cause.kind in ("counted", "summed"):
            yield from self._of_sum(cause)
            return
        number = number_text(cause.number)
        sizes = _sizes(cause.axes)
        if cause.kind == "constant":
            said = sizes if cause.power == 1 else f"1 / {sizes}"
            fix = f"write {said} for {number}, which is the number of ranks here alone"
            yield (self._at(cause, fix, _powers(cause.axes, cause.power)),)
        elif cause.kind == "ranks":
            yield from self._of_ranks(cause)
        elif not cause.step.of_gradient and not self._in_one_call(cause):
            verb = "multiply" if cause.power == -1 else "divide"
            fix = f"use the whole size: {verb} {number} by {sizes}"
            yield (self._at(cause, fix, _powers(cause.axes, -cause.power)),)

    def _of_sum(self, cause: Cause) -> Iterator[Change]:
        (axis,) = cause.axes
        op, divided = cause.step.op.removeprefix("unreduced_"), _powers(cause.axes, -1)
        counted = cause.kind == "counted"
        if cause.step.of_gradient:
            if counted and not self._vma and op == "psum":
                yield (self._at(cause, _MEGATRON, divided),)
            return
        if op == "reduce_scatter":
            fix = f"divide by jax.lax.axis_size('{axis}') after the psum_scatter"
            yield (self._at(cause, fix, divided),)
            return
        if not counted:
            fix = f"use jax.lax.pmean(..., '{axis}') for the psum"
            yield (self._at(cause, fix, divided),)
            return
        x = self._history.relation(cause.step.operands[cause.operand])
        for other, held in () if x is None else x.partial.items():
            if held == "sum":
                fix = (
                    f"jax.lax.psum(..., '{other}') for the psum over '{axis}': what is summed is "
                    f"Replicated over '{axis}' and Partial(sum) over '{other}'"
                )
                repair = self._at(cause, fix, divided)
                yield (replace(repair, reduce=((other, "sum"),)),)
        fix = f"remove the psum over '{axis}'{{}}, or use jax.lax.pmean(..., '{axis}')"
        repair = self._at(cause, fix, divided)
        if len(_compat.axis_names(cause.step.eqn)) == 1:
            places = self._history.backward_of(cause.step)
            repair = replace(repair, powers=(), without=True, also=places)
        yield (repair,)

    def _of_ranks(self, cause: Cause) -> Iterator[Change]:
        undone = _powers(cause.axes, -cause.power)
        named = axes_text(cause.axes)
        if self._history.is_pmean(cause):
            yield (self._at(cause, f"use jax.lax.psum(..., {named}) for the pmean", undone),)
            return
        sizes = _sizes(cause.axes)
        if len(cause.axes) == 1:
            for axis, n in self._history.sizes.items():
                if n > 1 and axis not in cause.axes:
                    fix = f"jax.lax.axis_size('{axis}') for {sizes}"
                    yield (self._at(cause, fix, (*undone, (axis, cause.power))),)
        divided = (cause.power == 1) == (cause.step.op == "div" and cause.operand == 1)
        word = "division" if divided else "multiplication"
        yield (self._at(cause, f"leave out the {word} by {sizes}", undone),)

    def _means_of_losses(self) -> Iterator[Change]:
        """A loss that is a mean over the ranks: with check_vma=True its gradients, which JAX sums
        over the ranks, have so many times less."""
        if not self._vma:
            return
        causes = [
            one for one in self.causes if one.step.of_gradient and one.kind in ("counted", "size")
        ]
        gradients = self._gradients()
        for axes in dict.fromkeys(one.axes for one in causes):
            fix = f"take jax.lax.pmean(loss, {axes_text(axes)}) before differentiating"
            powers = _powers(axes, -1)
            yield tuple(replace(one, fixes=(fix,), powers=powers) for one in gradients)

    def _gradients(self) -> list[Repair]:
        """A change to each gradient, where it leaves the backward pass."""
        found: list[Repair] = []
        made = self._history.unmoved(self._slot)
        if made is not None and made.of_gradient:
            found.append(replace(self._wrong, everywhere=not self._wrong.result, traced=False))
        for step in self._steps:
            if step.of_gradient or shape_rule_of(step.op) is not None:
                continue
            for index, slot in enumerate(step.operands):
                made = self._history.unmoved(slot)
                if made in self._steps and made.of_gradient:
                    found.append(Repair((), index, at=step.place, everywhere=True))
        return found

    def _plainly(self) -> Iterator[Change]:
        """A division or multiplication of the value itself."""
        x = self._history.relation(self._slot)
        wrong = replace(self._wrong, traced=False)
        for axis, n in self._history.sizes.items():
            if x is None or n == 1:
                continue
            for power, verb in ((-1, "divide"), (1, "multiply")):
                fix = f"{verb} {wrong.name} by jax.lax.axis_size('{axis}')"
                yield (replace(wrong, fixes=(fix,), powers=((axis, power),)),)

    def _at(self, cause: Cause, fix: str, powers: Powers) -> Repair:
        """A change to what a cause reads, which says where that is, if the message does not."""
        line = cause.step.line
        where = f" at {line}" if line is not None and str(line) != str(self._line) else ""
        if "{}" not in fix:
            fix += "{}"
        return Repair((fix.format(where),), cause.operand, powers=powers, at=cause.step.place)

    def _in_one_call(self, cause: Cause) -> bool:
        """Whether the number is not the user's: a library function divides by it."""
        line = cause.step.line
        made = self._history.maker(cause.step.operands[1 - cause.operand])
        return line is not None and made is not None and made.line == line


CHECK_VMA = "run and check with check_vma=True, where JAX sums each gradient once"

_MEGATRON = (
    "give the psum{} the identity as its gradient, as in Megatron's pairs of collectives (`jaxcc "
    "explain psum`)"
)


def _reason(cause: Cause, sizes: Mapping[str, int]) -> str:
    """How a cause gives a value its factor."""
    ranks = math.prod(sizes[axis] for axis in cause.axes)
    where = "" if cause.step.line is None else f" ({cause.step.line})"
    if cause.kind == "counted":
        op = f"the gradient of {cause.step.op}" if cause.step.of_gradient else cause.step.op
        return f"{op} adds up what the {ranks} ranks of {axes_text(cause.axes)} hold alike{where}"
    divided = cause.step.op == "div" and cause.operand == 1
    does = f"{'divided' if divided else 'multiplied'} by {number_text(cause.number)}"
    if cause.kind == "ranks":
        return f"it is {does}, a number of ranks{where}"
    if cause.kind == "size":
        alone = number_text(float(cause.number) / float(ranks) ** cause.power)
        backward = "in the backward pass " if cause.step.of_gradient else ""
        sizes_ = f"a size of one rank, where a group of one has {alone}"
        return f"{backward}it is {does}, {sizes_}{where}"
    return ""


def both(one: Change, other: Change) -> Change:
    """Two changes that are made together."""
    (first, *_), (second, *_) = one[0].fixes, other[0].fixes
    return (replace(one[0], fixes=(f"{first}, and {second}",)), *one[1:], *other)


def _powers(axes: Sequence[str], power: int) -> Powers:
    return tuple((axis, power) for axis in axes)


def _sizes(axes: Sequence[str]) -> str:
    return f"jax.lax.axis_size({axes_text(axes)})"
