"""What a collective is: what it does in `jax.lax`, as a list of moves, and its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxcc.comm._call import Group
from jaxcc.runtime import Move

Again = Callable[..., jax.Array]
"""(name, operand, **parameters): another collective of the same group, on the same backend."""


class Collective(ABC):
    """A collective with its parameters, which are the fields of a frozen dataclass.

    Dimensions are counted from the last, so that a dimension that `vmap` adds in front changes
    nothing.
    """

    name: ClassVar[str]
    """What it is called in `jaxcc.comm`."""

    @property
    def op(self) -> str:
        """How the ranks' values are combined: "sum", "max", ..; empty if they are only moved."""
        return ""

    @classmethod
    @abstractmethod
    def of(cls, x: Any, ranks: int, **parameters: Any) -> Self:
        """The collective of an array like `x`, with parameters as users give them.

        Raises:
          LayoutError: LAYOUT_ARGUMENT, LAYOUT_REDUCE_OP.
        """

    @abstractmethod
    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        """The collective in `jax.lax`: its types are those of every backend's result."""

    @abstractmethod
    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move] | None:
        """The collective of arrays of `shape` as moves of elements; None if every rank's result is
        the reduction of all operands."""

    @abstractmethod
    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        """The operand's cotangent, for that of the result; only if it moves or adds."""

    def operand_dtype(self, dtype: Any) -> jnp.dtype:
        """The dtype that an operand is cast to.

        Raises:
          LayoutError: LAYOUT_REDUCE_OP.
        """
        return dtype

    def finish(self, result: jax.Array, group: Group) -> jax.Array:
        """What users get for what a backend gave."""
        return result

    def __str__(self) -> str:
        parameters: Any = self
        values = {field.name: getattr(self, field.name) for field in fields(parameters)}
        op = [values.pop("asked")] if self.op else []
        return f"{self.name}({', '.join([*op, *(f'{k}={v}' for k, v in values.items())])})"


COLLECTIVES: dict[str, type[Collective]] = {}
"""Every collective by name; each file of one adds it."""


def collective[C: type[Collective]](kind: C) -> C:
    """Makes a collective known by its name."""
    COLLECTIVES[kind.name] = kind
    return kind
