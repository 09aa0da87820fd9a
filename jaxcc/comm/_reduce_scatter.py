"""Reduce-scatter: each rank gets its block of the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax import lax
from jax.sharding import Mesh

from jaxcc.comm._blocks import own_block, scattered
from jaxcc.comm._call import AxisName, Group
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, collective
from jaxcc.comm._parameters import counts_of, dim_of, divided, sized
from jaxcc.comm._reduction import Reduction, checked_op, reduced
from jaxcc.comm._table import Table
from jaxcc.comm._uneven import own_part
from jaxcc.runtime import EVERYONE, Move

# JAX has types for some of its functions only.
_lax: Any = lax


@collective
@dataclass(frozen=True)
class ReduceScatter(Reduction):
    name: ClassVar[str] = "reduce_scatter"
    dim: int
    tiled: bool

    @classmethod
    def of(cls, x: Any, ranks: int, *, dim: Any = 0, op: Any = "sum", tiled: bool = True) -> Self:
        place = dim_of(cls.name, x, dim)
        divided(cls.name, x, place, ranks, tiled=tiled)
        return cls(checked_op(cls.name, op), place, tiled)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        if self.op == "sum":
            dim = self.dim % x.ndim
            return _lax.psum_scatter(x, group.axes, scatter_dimension=dim, tiled=self.tiled)
        return own_block(reduced(x, self.op, group), self.dim, self.tiled, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        return scattered(shape, (shape[self.dim] // ranks,) * ranks, self.dim, EVERYONE)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("all_gather", cotangent, dim=self.dim, tiled=self.tiled)


@collective
@dataclass(frozen=True)
class ReduceScatterV(Reduction):
    name: ClassVar[str] = "reduce_scatter_v"
    counts: tuple[int, ...]
    dim: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, counts: Any, dim: Any = 0, op: Any = "sum") -> Self:
        parts, place = counts_of(cls.name, counts, ranks), dim_of(cls.name, x, dim)
        sized(cls.name, x, place, sum(parts), exact=True)
        return cls(checked_op(cls.name, op), parts, place)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return own_part(reduced(x, self.op, group), self.counts, self.dim, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        return scattered(shape, self.counts, self.dim, EVERYONE)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("all_gather_v", cotangent, counts=self.counts, dim=self.dim)


def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    dim: int = 0,
    op: str = "sum",
    tiled: bool = True,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The rank's block of `op` over the ranks' `x`: `jax.lax.psum_scatter` on a backend of choice.

    Args:
      x: an array, or a pytree of arrays, of the same shapes and dtypes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      dim: the dimension that is cut into a block for each rank.
      op, backend, mesh, table: as for `all_reduce`.
      tiled: keep the dimension, 1/n of its size. Without, it has one element for each rank, and the
        result does not have it.

    Raises:
      LayoutError: LAYOUT_ARGUMENT if the group does not divide `dim`, LAYOUT_REDUCE_OP,
        LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        ReduceScatter,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        dim=dim,
        op=op,
        tiled=tiled,
    )


def reduce_scatter_v(
    x: Any,
    axis_name: AxisName,
    *,
    counts: Sequence[int],
    dim: int = 0,
    op: str = "sum",
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The rank's part of `op` over the ranks' `x`, where parts differ in size.

    Args:
      x: an array, or a pytree of arrays, with sum(counts) elements along `dim`.
      axis_name: the mesh axis, or axes, that the group runs along.
      counts: elements of `dim` for each rank.
      dim: the dimension that is cut.
      op, backend, mesh, table: as for `all_reduce`.

    Returns:
      max(counts) elements along `dim`: the rank's counts[rank], then zeros.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_REDUCE_OP, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        ReduceScatterV,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        counts=counts,
        dim=dim,
        op=op,
    )
