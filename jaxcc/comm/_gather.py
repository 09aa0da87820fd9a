"""Gather: one rank gets the ranks' arrays, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax.sharding import Mesh

from jaxcc.comm._all_gather import AllGather, AllGatherV, gathered
from jaxcc.comm._blocks import resized, with_new, zeros
from jaxcc.comm._call import AxisName, Group
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import counts_of, dim_of, root_of, sized
from jaxcc.comm._root import on_root
from jaxcc.comm._table import Table
from jaxcc.runtime import Move


@collective
@dataclass(frozen=True)
class Gather(Collective):
    name: ClassVar[str] = "gather"
    root: int
    dim: int  # of the result
    tiled: bool

    @classmethod
    def of(cls, x: Any, ranks: int, *, root: Any = 0, dim: Any = 0, tiled: bool = True) -> Self:
        place = dim_of(cls.name, x, dim, new=not tiled)
        return cls(root_of(cls.name, root, ranks), place, tiled)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        every = AllGather(self.dim, self.tiled, "varying").in_lax(x, group)
        return on_root(every, self.root, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        if not self.tiled:
            shape = with_new(shape, self.dim)
        counts = (shape[self.dim],) * ranks
        return GatherV(counts, self.root, self.dim).moves(shape, ranks)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("scatter", cotangent, root=self.root, dim=self.dim, tiled=self.tiled)


@collective
@dataclass(frozen=True)
class GatherV(Collective):
    name: ClassVar[str] = "gather_v"
    counts: tuple[int, ...]
    root: int
    dim: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, counts: Any, root: Any = 0, dim: Any = 0) -> Self:
        parts, place = counts_of(cls.name, counts, ranks), dim_of(cls.name, x, dim)
        sized(cls.name, x, place, max(parts), exact=True)
        return cls(parts, root_of(cls.name, root, ranks), place)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        every = AllGatherV(self.counts, self.dim, "varying").in_lax(x, group)
        return on_root(every, self.root, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        made = resized(shape, self.dim, sum(self.counts))
        found: list[Move] = []
        for rank in range(ranks):
            found += gathered(shape, made, self.counts, self.dim, rank, self.root)
            if rank != self.root:
                found += zeros(rank, made)
        return found

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again("scatter_v", cotangent, counts=self.counts, root=self.root, dim=self.dim)


def gather(
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
    """The ranks' `x` one after another, on the root; zeros of that shape on the other ranks.

    In a checked program the result is Partial(sum): what the ranks hold adds up to it.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      root: who gets them; the same number on every rank. In a group of one it is rank 0.
      dim, tiled: as for `all_gather`.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        Gather,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        root=root,
        dim=dim,
        tiled=tiled,
    )


def gather_v(
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
    """As `all_gather_v`, on the root; zeros of that shape on the other ranks.

    Args:
      x: an array, or a pytree of arrays, with max(counts) elements along `dim`.
      axis_name: the mesh axis, or axes, that the group runs along.
      counts: elements that each rank gives.
      root, dim: as for `gather`.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      As `gather`.
    """
    return carry_each(
        GatherV,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        counts=counts,
        root=root,
        dim=dim,
    )
