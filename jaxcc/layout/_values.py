"""What the walk knows of a value on each side, and where it got it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from jaxcc._compat import SourceLine
from jaxcc.layout._constants import number_text
from jaxcc.layout._digits import Digits
from jaxcc.layout._dtypes import type_name
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._relation import Relation, same_scale

# Named tuples, since a walk makes several for every equation.


class Origin(Protocol):
    """Where a value got something: the step that made it so, or where it is from.

    Attributes:
      line: the user's line.
      how: how it came about.
      name: what messages call the value.
    """

    @property
    def line(self) -> SourceLine | None: ...
    @property
    def how(self) -> str: ...
    @property
    def name(self) -> str: ...


class Given(NamedTuple):
    """The origin of a value that no step of the program makes."""

    line: SourceLine | None
    how: str
    name: str


def described(origin: Origin) -> str:
    """`made by dot_general at file:line`."""
    line = origin.line
    return origin.how if line is None else f"{origin.how} at {line}"


class Held(NamedTuple):
    """A value at n.

    Attributes:
      base: the matched pair that `relation` speaks of.
      relation: to the whole value of that pair, or None where a rule refused it.
      origin: what made it.
      scaled: what last changed its scale.
      const: the number that it is everywhere, if known.
      placed: what last changed its layout; None means `origin`.
      findings: why there is no relation; reported when the value reaches an output or an effect.
    """

    base: int
    relation: Relation | None
    origin: Origin
    scaled: Origin
    const: Any = None
    placed: Origin | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def laid_out(self) -> str:
        """What last changed its layout, and where."""
        return described(self.placed or self.origin)


class Whole(NamedTuple):
    """A value of the group of one: the matched pair it comes from, and which of its digits each
    dimension walks; `moved` is whether these may be others than those of the pair itself."""

    base: int
    dims: tuple[Digits, ...]
    const: Any = None
    moved: bool = False


def made_by(step: Step, source: Held | None, relation: Relation, *, moved: bool = False) -> Held:
    """What `step` made of `source`, with the lines where layout and scale last changed.

    A value that was only `moved`, or has only another type, keeps its name and its number.
    """
    const = relation.const[0] if relation.const is not None else None
    made: Origin = step
    if relation.const is not None and relation.const[0] == relation.const[1]:
        made = Given(step.line, step.how, f"the constant {number_text(const)}")
    if source is None or source.relation is None:
        return Held(0, relation, made, made, const)
    moved = moved or step.op == "convert_element_type"
    old = source.relation
    scaled = placed = False
    if old is not relation:
        scaled = not same_scale(old.scale, relation.scale)
        placed = (
            old.partial != relation.partial
            or old.local != relation.local
            or old.ranks != relation.ranks
            or old.turned != relation.turned
        )
    return Held(
        source.base,
        relation,
        source.origin if moved else step,
        step if scaled else source.scaled,
        const,
        step if placed else source.placed or source.origin,
    )


def continued(relations: Sequence[Relation], made: Relation) -> int:
    """The operand whose layout the result has, so that it keeps that operand's history; rather
    an array than a number, and one of the result's factor."""
    alike = [
        index
        for index, old in enumerate(relations)
        if old.partial == made.partial and old.ranks == made.ranks
    ]
    if len(alike) < 2:
        return alike[0] if alike else 0 if relations else -1
    return max(
        alike, key=lambda index: (relations[index].const is None, _same(relations[index], made))
    )


def _same(a: Relation, b: Relation) -> tuple[bool, bool]:
    return same_scale(a.scale, b.scale), a.dims == b.dims


def type_text(slot: Slot) -> str:
    """A per-rank type as JAX prints it: `f32[4,8]`."""
    return type_name(slot.shape, slot.dtype)
