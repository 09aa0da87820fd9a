"""The registry of layout rules: one per primitive name, in three kinds.

* A *computing* rule relates the results of an equation that stands in the program at n and at 1.
* A *shape* rule only moves digits; it acts on whichever side its equation stands.
* A *collective* rule acts on the relation at n; on a group of one a collective is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcc.layout._digits import Digits
from jaxcc.layout._relation import Relation
from jaxcc.layout._repair import Repair
from jaxcc.layout._values import Held


class Refused(Exception):
    """Why a rule does not relate the values. The walk adds the user's line and the operands."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        because: str = "",
        fixes: tuple[str, ...] = (),
        repairs: tuple[Repair, ...] = (),
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.because = because
        self.fixes = fixes
        self.repairs = repairs


@dataclass(frozen=True)
class Side:
    """An equation on one side: the parameters, and the shapes that it reads and makes."""

    params: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...] = ()
    out_dtypes: tuple[Any, ...] = ()

    def only(self, indices: Sequence[int]) -> Side:
        """The side as if these were its operands."""
        dtypes = tuple(self.dtypes[i] for i in indices) if self.dtypes else ()
        return replace(self, shapes=tuple(self.shapes[i] for i in indices), dtypes=dtypes)


def _numbered(index: int) -> str:
    return f"operand {index}"


def _unknown(index: int) -> None:
    return None


def _itself(index: int) -> int:
    return index


def _at[T](of: Callable[[int], T], place: Callable[[int], int]) -> Callable[[int], T]:
    return lambda index: of(place(index))


@dataclass(frozen=True)
class Equation:
    """What a rule sees besides its operands' relations.

    Attributes:
      op: the primitive's name.
      sizes: ranks along each axis.
      per_rank: the equation at n.
      whole: the equation at 1 (for a collective, the same as `per_rank`).
      name: how messages call operand i: `'b'`, or `the result of dot_general`.
      layout: how messages show operand i's layout.
      held: what is known of operand i, for messages; None if nothing is.
      number: which operand of the operation in the program operand i is; None if it is none.
    """

    op: str
    sizes: Mapping[str, int]
    per_rank: Side
    whole: Side
    name: Callable[[int], str] = field(default=_numbered, compare=False)
    layout: Callable[[int], str] = field(default=_numbered, compare=False)
    held: Callable[[int], Held | None] = field(default=_unknown, compare=False)
    number: Callable[[int], int | None] = field(default=_itself, compare=False)

    def renumbered(self, place: Callable[[int], int]) -> Equation:
        """The equation for a rule that calls operand `place(i)` operand i."""
        return replace(
            self,
            name=_at(self.name, place),
            layout=_at(self.layout, place),
            held=_at(self.held, place),
            number=_at(self.number, place),
        )

    def only(self, *indices: int) -> Equation:
        """The equation as if these were its operands."""
        view = self.renumbered(indices.__getitem__)
        return replace(view, per_rank=self.per_rank.only(indices), whole=self.whole.only(indices))


ComputingRule = Callable[..., Relation | Sequence[Relation]]
"""(equation, a relation for each operand) -> one for each result; raises Refused or CutError."""

ShapeRule = Callable[[Mapping[str, Any], Sequence[Digits], Sequence[int]], Sequence[Digits]]
"""(params, dims of the operand, shape of the result) -> dims of the result."""

CollectiveRule = Callable[[Equation, Relation], Relation]


@dataclass(frozen=True)
class Collective:
    """A collective's rule at n, and what it does to the digits on a group of one; `turns` is
    whether the rule sees values that ranks have passed on to one another."""

    relate: CollectiveRule
    alone: ShapeRule
    turns: bool


_computing: dict[str, ComputingRule] = {}
_by_rank: set[str] = set()
_shape: dict[str, ShapeRule] = {}
_collective: dict[str, Collective] = {}


def layout_rule(*names: str, by_rank: bool = False) -> Callable[[ComputingRule], ComputingRule]:
    """Registers a computing rule for each primitive in `names`.

    With `by_rank` the rule sees operands that depend on the rank's number (`Relation.by_rank`) as
    they are; without, they are settled first, or refused.
    """

    def register(rule: ComputingRule) -> ComputingRule:
        _computing.update(dict.fromkeys(names, rule))
        (_by_rank.update if by_rank else _by_rank.difference_update)(names)
        return rule

    return register


def register_layout_rule(*names: str) -> Callable[[ComputingRule], ComputingRule]:
    """Decorates a rule that says what layouts the primitives called `names` give.

    The rule is called as `rule(eqn, *relations)` for an equation that stands in the program on n
    ranks and on one:

    * `eqn` has `op`, `sizes` (ranks along each axis), and `per_rank` and `whole`, the equation on
      each side, with `params`, `shapes` and `out_shapes`.
    * Each relation says how an operand on n ranks relates to the same one on one rank: `dims` (the
      part of the whole that each dimension walks), `ranks`, `partial`, `local`, `scale`.

    It returns a relation for the result, or a sequence with one for each result; `.shape` of each
    is the result's per-rank shape. Raise LayoutError for operands that the primitive does not take.
    `jaxcc.testing.rulecheck` tests a rule. Types and parameters (but shapes, shardings and jaxprs)
    are the same on both sides before a rule is asked.

    For example, a primitive that negates every element keeps all that is known of its operand, and
    one that is not linear must not see a pending reduction or a factor:

        @jaxcc.register_layout_rule("my_negate")
        def negate(eqn, x):
            return x.scaled(x.scale)

        @jaxcc.register_layout_rule("my_gelu")
        def gelu(eqn, x):
            if x.partial or not math.isclose(x.scale, 1.0):
                raise jaxcc.LayoutError("LAYOUT_PARTIAL_NONLINEAR", "my_gelu needs the whole value")
            return x.scaled(1.0)

    Raises (in `check`):
      LayoutError: LAYOUT_RULE if the rule returns something else.
    """
    return layout_rule(*names)


def shape_rule(*names: str) -> Callable[[ShapeRule], ShapeRule]:
    """Registers a rule for primitives that only rearrange."""

    def register(rule: ShapeRule) -> ShapeRule:
        _shape.update(dict.fromkeys(names, rule))
        return rule

    return register


def _identity(
    params: Mapping[str, Any], dims: Sequence[Digits], out_shape: Sequence[int]
) -> Sequence[Digits]:
    return dims


def collective_rule(
    *names: str, alone: ShapeRule = _identity, by_rank: bool = False, turns: bool = False
) -> Callable[[CollectiveRule], CollectiveRule]:
    """Registers a rule for collectives; `alone` is what they do on a group of one.

    `by_rank` is that of `layout_rule`. With `turns` the rule sees values that ranks have passed on
    to one another (`Relation.turned`) as they are; without, such values are taken with the ranks in
    the order of what they hold, if the collective is over other axes, and else refused.
    """

    def register(rule: CollectiveRule) -> CollectiveRule:
        _collective.update(dict.fromkeys(names, Collective(rule, alone, turns)))
        (_by_rank.update if by_rank else _by_rank.difference_update)(names)
        return rule

    return register


def computing_rule_of(op: str) -> ComputingRule | None:
    """The computing rule of a primitive, if it has one."""
    return _computing.get(op)


def sees_ranks(op: str) -> bool:
    """Whether the rule of a primitive sees operands that depend on the rank's number."""
    return op in _by_rank


def shape_rule_of(op: str) -> ShapeRule | None:
    """The shape rule of a primitive, if it has one."""
    return _shape.get(op)


def collective_of(op: str) -> Collective | None:
    """The collective rule of a primitive, if it has one."""
    return _collective.get(op)


def ruled_ops() -> Mapping[str, str]:
    """Every primitive with a rule, and the rule's kind."""
    kinds = {"computing": _computing, "shape": _shape, "collective": _collective}
    return {op: kind for kind, table in kinds.items() for op in table}
