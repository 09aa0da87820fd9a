"""What rules said of equations that were seen before: the layers of a model repeat themselves.

Relations are kept once each and for the whole walk, so that a relation is known by its identity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

from jaxcc.layout._digits import Digits
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
        self._known: dict[Hashable, Any] = {}
        self._read: list[Relation | None] = []

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

    def known(self, key: Hashable | None) -> Any:
        """What was learnt for a key, or None."""
        try:
            return self._known.get(key)
        except TypeError:  # a parameter without a hash
            return None

    def learn(self, key: Hashable | None, made: Any, helds: Sequence[Held] = ()) -> None:
        """Remembers what comes of `helds`, which the key names by the identity of relations."""
        if key is None:
            return
        with contextlib.suppress(TypeError):
            self._known[key] = made
            self._read += [held.relation for held in helds]


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
        dtype = slot.dtype
        if held.const is not None and whole.const is not None:
            read += (slot.shape, dtype, repr(held.const), repr(whole.const))
            continue
        integer = getattr(dtype, "kind", "i") == "i"
        if integer or held.base != whole.base or dtype != other_slot.dtype:
            return None
        read += (id(held.relation), dtype, whole.dims if whole.moved else None, other_slot.shape)
    made = [slot.shape for slot in step.results] + [slot.dtype for slot in step.results]
    alone = [slot.shape for slot in other.results] + [slot.dtype for slot in other.results]
    return (step.op, tuple(read), tuple(made), tuple(alone), _params(step), _params(other))


def move_key(step: Step, held: Held, slot: Slot, out: Slot) -> Hashable:
    """What decides the result of a shape operation or a collective."""
    return (step.op, id(held.relation), slot.shape, out.shape, out.dtype, _params(step))


def alone_key(step: Step, dims: tuple[Digits, ...], out: Slot) -> Hashable:
    """What decides which digits the result of one of these walks on a group of one."""
    return (step.op, dims, out.shape, _params(step))


def _params(step: Step) -> tuple[Any, ...]:
    """The parameters that matter; 0.0 and -0.0 are equal, and no one number."""
    if not step.params:
        return ()
    return tuple(
        [
            repr(value) if isinstance(value, float) else value
            for name, value in step.params.items()
            if name not in APART
        ]
    )
