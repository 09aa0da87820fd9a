"""A change to a program that may mend what is wrong with it: what it does to a relation, and what
it communicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._traffic import size_text

Place = tuple[int, ...]
"""Where an operation stands: its place among the steps of the program; in a loop or a branch that
of the loop, which of its bodies, and the place there. Of a result: its number."""

Powers = tuple[tuple[str, int], ...]
"""A factor as the sizes of axes, each with its power: it is another number in every group."""


@dataclass(frozen=True)
class Repair:
    """A change to what one operation reads, or to one result.

    Attributes:
      fixes: what the user can write, each of which comes to this.
      operand: which operand of the operation; None if it is none, so that it cannot be tried.
      reduce: the all-reduces to do first, by axis.
      powers: what to multiply by then.
      at: the operation's place in the program, or that of the result.
      also: the places of other operations of which the same is to be said.
      result: whether it is a result that is changed.
      everywhere: whether later operations that read the same value read the changed one too.
      instead: whether later sums of what every rank then holds are left out.
      without: whether the operations themselves, which are collectives, are left out.
      last: whether it is tried only if no other one mends the program.
      traced: whether the factor of the value is wrong, so that what mends it is looked for where
        the factor comes from.
      name: what messages call the value.
      inside: the library function that the operation is a part of.
      bytes: what one rank gives to one all-reduce.
    """

    fixes: tuple[str, ...]
    operand: int | None = 0
    reduce: tuple[tuple[str, ReduceOp], ...] = ()
    powers: Powers = ()
    at: Place = ()
    also: tuple[Place, ...] = ()
    result: bool = False
    everywhere: bool = False
    instead: bool = False
    without: bool = False
    last: bool = False
    traced: bool = False
    name: str = "it"
    inside: str = ""
    bytes: int = 0

    def changes(self, at: Place, *, result: bool = False) -> bool:
        """Whether it is about the operation, or the result, of this place."""
        return self.result == result and (at == self.at or at in self.also)

    def with_places_of(self, other: Repair) -> Repair:
        """This one, made where `other` is, too."""
        places = dict.fromkeys((*self.also, other.at, *other.also))
        return replace(self, also=tuple(at for at in places if at != self.at))

    def applied(self, x: Relation, sizes: Mapping[str, int]) -> Relation:
        """The relation after the change."""
        scale = x.scale
        partial = dict(x.partial)
        for axis, op in self.reduce:
            if partial.pop(axis, None) is None and op == "sum":
                scale *= sizes[axis]
        for axis, power in self.powers:
            scale *= float(sizes[axis]) ** power
        return replace(x, partial=partial).scaled(scale)

    def texts(self) -> list[str]:
        """The fixes, with what they communicate more than the program does."""
        if not self.reduce or not self.bytes:
            return list(self.fixes)
        if self.instead:
            return [f"{fix}, instead of the sum after it" for fix in self.fixes]
        kind = "all-reduce" if len(self.reduce) == 1 else f"all-reduce over {len(self.reduce)} axes"
        return [f"{fix} (one {kind} of {size_text(self.bytes)})" for fix in self.fixes]
