"""Broadcast: every rank gets one rank's array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax.sharding import Mesh

from jaxcc.comm._blocks import is_replicated, move, whole
from jaxcc.comm._call import AxisName, Group
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import root_of
from jaxcc.comm._root import from_root, on_root
from jaxcc.comm._table import Table
from jaxcc.runtime import Move


@collective
@dataclass(frozen=True)
class Broadcast(Collective):
    name: ClassVar[str] = "broadcast"
    root: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, root: Any = 0) -> Self:
        return cls(root_of(cls.name, root, ranks))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return from_root(x, self.root, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        place = whole(shape)
        return [one for r in range(ranks) for one in move(self.root, r, shape, place, place)]

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        if is_replicated(cotangent, group):
            return on_root(cotangent, self.root, group)
        return again("reduce", cotangent, root=self.root)


def broadcast(
    x: Any,
    axis_name: AxisName,
    *,
    root: int = 0,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """`x` of the root, on every rank, bit for bit.

    In a checked program it makes a Local value, such as a key that the ranks drew for themselves,
    Replicated.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      root: whose; the same number on every rank. In a group of one it is rank 0.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(Broadcast, x, axis_name, backend=backend, mesh=mesh, table=table, root=root)
