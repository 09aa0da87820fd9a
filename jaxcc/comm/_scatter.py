"""Scatter: each rank gets its block of one rank's array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax.sharding import Mesh

from jaxcc.comm._blocks import own_block, scattered
from jaxcc.comm._call import AxisName, Group
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import counts_of, dim_of, divided, root_of, sized
from jaxcc.comm._root import from_root
from jaxcc.comm._table import Table
from jaxcc.comm._uneven import own_part
from jaxcc.runtime import Move


@collective
@dataclass(frozen=True)
class Scatter(Collective):
    name: ClassVar[str] = "scatter"
    root: int
    dim: int
    tiled: bool

    @classmethod
    def of(cls, x: Any, ranks: int, *, root: Any = 0, dim: Any = 0, tiled: bool = True) -> Self:
        place = dim_of(cls.name, x, dim)
        divided(cls.name, x, place, ranks, tiled=tiled)
        return cls(root_of(cls.name, root, ranks), place, tiled)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return own_block(from_root(x, self.root, group), self.dim, self.tiled, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        return scattered(shape, (shape[self.dim] // ranks,) * ranks, self.dim, self.root)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("gather", cotangent, root=self.root, dim=self.dim, tiled=self.tiled)


@collective
@dataclass(frozen=True)
class ScatterV(Collective):
    name: ClassVar[str] = "scatter_v"
    counts: tuple[int, ...]
    root: int
    dim: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, counts: Any, root: Any = 0, dim: Any = 0) -> Self:
        parts, place = counts_of(cls.name, counts, ranks), dim_of(cls.name, x, dim)
        sized(cls.name, x, place, sum(parts), exact=True)
        return cls(parts, root_of(cls.name, root, ranks), place)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return own_part(from_root(x, self.root, group), self.counts, self.dim, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        return scattered(shape, self.counts, self.dim, self.root)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("gather_v", cotangent, counts=self.counts, root=self.root, dim=self.dim)


def scatter(
    x: Any,
    axis_name: AxisName,
    *,
    root: int = 0,
    dim: int = 0,
    tiled: bool = True,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The rank's block of the root's `x`; what other ranks pass only has the shape.

    In a checked program the result of a Replicated or Local `x` is Sliced.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      root: whose; the same number on every rank. In a group of one it is rank 0.
      dim: the dimension that is cut into a block for each rank.
      tiled: keep the dimension, 1/n of its size. Without, it has one element for each rank, and the
        result does not have it.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT if the group does not divide `dim`, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        Scatter,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        root=root,
        dim=dim,
        tiled=tiled,
    )


def scatter_v(
    x: Any,
    axis_name: AxisName,
    *,
    counts: Sequence[int],
    root: int = 0,
    dim: int = 0,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The rank's part of the root's `x`, where parts differ in size.

    Args:
      x: an array, or a pytree of arrays, with sum(counts) elements along `dim`.
      axis_name: the mesh axis, or axes, that the group runs along.
      counts: elements of `dim` for each rank.
      root, dim: as for `scatter`.
      backend, mesh, table: as for `all_reduce`.

    Returns:
      max(counts) elements along `dim`: the rank's counts[rank], then zeros.

    Raises:
      As `scatter`.
    """
    return carry_each(
        ScatterV,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        counts=counts,
        root=root,
        dim=dim,
    )
