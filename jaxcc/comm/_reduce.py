"""Reduce: one rank gets the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax.sharding import Mesh

from jaxcc.comm._blocks import move, whole, zeros
from jaxcc.comm._call import AxisName, Group
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, collective
from jaxcc.comm._parameters import root_of
from jaxcc.comm._reduction import Reduction, checked_op, reduced
from jaxcc.comm._root import on_root
from jaxcc.comm._table import Table
from jaxcc.runtime import EVERYONE, Move


@collective
@dataclass(frozen=True)
class Reduce(Reduction):
    name: ClassVar[str] = "reduce"
    root: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, op: Any = "sum", root: Any = 0) -> Self:
        return cls(checked_op(cls.name, op), root_of(cls.name, root, ranks))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return on_root(reduced(x, self.op, group), self.root, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        place = whole(shape)
        found = list(move(EVERYONE, self.root, shape, place, place))
        for rank in range(ranks):
            if rank != self.root:
                found += zeros(rank, shape)
        return found

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("broadcast", cotangent, root=self.root)


def reduce(
    x: Any,
    axis_name: AxisName,
    *,
    op: str = "sum",
    root: int = 0,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """`op` over the ranks' `x`, on the root; zeros on the other ranks.

    In a checked program the result is Partial(sum): what the ranks hold adds up to it.

    Args:
      x: an array, or a pytree of arrays, of the same shapes and dtypes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      root: who gets it; the same number on every rank. In a group of one it is rank 0.
      op, backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_REDUCE_OP, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        Reduce, x, axis_name, backend=backend, mesh=mesh, table=table, op=op, root=root
    )
