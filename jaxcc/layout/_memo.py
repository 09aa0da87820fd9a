"""What rules said of equations that were seen before: the layers of a model repeat themselves.

Relations are kept once each, so that a relation is known by its identity.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._params import APART
from jaxcc.layout._relation import Relation
from jaxcc.layout._values import Held, Whole

Made = tuple[tuple[Relation, int], ...]
"""For each result its relation and the operand whose layout it has (-1: none)."""


class Memo:
    """Results by equation and relations of its operands, for one walk."""

    def __init__(self) -> None:
        self._relations: dict[Hashable, Relation] = {}
        self._made: dict[Hashable, Made] = {}
        self._moved: dict[Hashable, Relation] = {}

    def kept(self, relation: Relation) -> Relation:
        """The one relation that is equal to `relation`."""
        key: Hashable = (
            relation.dims,
            tuple(relation.ranks.items()),
            tuple(relation.partial.items()),
            relation.local,
            repr(relation.scale),
            relation.unmeasured,
            repr(relation.const),
            tuple(relation.turned.items()),
            relation.tie,
            # 0 and False are equal, and what is false elsewhere is no term of a sum.
            None if relation.tie is None else repr(relation.tie.outside),
        )
        return self._relations.setdefault(key, relation)

    def known(self, key: Hashable | None) -> Made | None:
        """What an equation makes, if it is known."""
        return None if key is None else self._made.get(key)

    def learn(self, key: Hashable | None, made: Made) -> None:
        """Remembers what an equation makes."""
        if key is not None:
            self._made[key] = made

    def known_move(self, key: Hashable | None) -> Relation | None:
        """What a shape operation or a collective makes, if it is known."""
        return None if key is None else self._moved.get(key)

    def learn_move(self, key: Hashable | None, made: Relation) -> None:
        """Remembers what a shape operation or a collective makes."""
        if key is not None:
            self._moved[key] = made


def key_of(
    step: Step, other: Step, helds: Sequence[Held], wholes: Sequence[Whole]
) -> Hashable | None:
    """What decides the result of a computing equation; None if it depends on which values it reads.

    Integers are apart: masks refer to the array of integers itself.
    """
    read: list[Hashable] = []
    for slot, other_slot, held, whole in zip(
        step.operands, other.operands, helds, wholes, strict=True
    ):
        if held.const is not None and whole.const is not None:
            read.append((slot.shape, slot.dtype, repr(held.const), repr(whole.const)))
            continue
        integer = getattr(slot.dtype, "kind", "i") == "i"
        if integer or held.base != whole.base or slot.dtype != other_slot.dtype:
            return None
        view = whole.dims if whole.moved else None
        read.append((id(held.relation), slot.dtype, view, other_slot.shape))
    made = tuple((slot.shape, slot.dtype) for slot in step.results)
    alone = tuple((slot.shape, slot.dtype) for slot in other.results)
    return _hashable((step.op, tuple(read), made, alone, _params(step), _params(other)))


def move_key(step: Step, held: Held, slot: Slot, out: Slot) -> Hashable | None:
    """What decides the result of a shape operation or a collective."""
    return _hashable((step.op, id(held.relation), slot.shape, out.shape, out.dtype, _params(step)))


def _params(step: Step) -> tuple[Any, ...]:
    """The parameters that matter; 0.0 and -0.0 are equal, and no one number."""
    return tuple(
        [
            repr(value) if isinstance(value, float) else value
            for name, value in step.params.items()
            if name not in APART
        ]
    )


def _hashable(key: Hashable) -> Hashable | None:
    try:
        hash(key)
    except TypeError:
        return None
    return key
