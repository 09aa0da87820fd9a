"""All-to-all: every rank gets a block of every rank's array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxcc.comm._blocks import block, move, resized, zeros
from jaxcc.comm._call import AxisName, Group, checks_varying, varying
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import begins_of, counts_of, dim_of, divided, sized
from jaxcc.comm._table import Table
from jaxcc.comm._uneven import picked
from jaxcc.layout import LayoutError
from jaxcc.runtime import Move

# JAX has types for some of its functions only.
_lax: Any = lax


@collective
@dataclass(frozen=True)
class AllToAll(Collective):
    name: ClassVar[str] = "all_to_all"
    split_dim: int
    concat_dim: int  # of the result, which has as many dimensions
    tiled: bool

    @classmethod
    def of(
        cls, x: Any, ranks: int, *, split_dim: Any = 0, concat_dim: Any = 0, tiled: bool = True
    ) -> Self:
        split = dim_of(cls.name, x, split_dim)
        divided(cls.name, x, split, ranks, tiled=tiled)
        return cls(split, dim_of(cls.name, x, concat_dim), tiled)

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        split, concat = self.split_dim % x.ndim, self.concat_dim % x.ndim
        if not group.axes:
            return x
        return _lax.all_to_all(x, group.axes, split, concat, tiled=self.tiled)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        split, concat = (dim % len(shape) for dim in (self.split_dim, self.concat_dim))
        size = shape[split] // ranks
        parts = resized(shape, split, size)
        if not self.tiled:
            # The block is one element of `split_dim`, which the result has at `concat_dim` instead.
            rest = [extent for dim, extent in enumerate(shape) if dim != split]
            parts = (*rest[:concat], 1, *rest[concat:])
        made = resized(parts, concat, parts[concat] * ranks)
        return [
            one
            for target in range(ranks)
            for source in range(ranks)
            for one in move(
                source,
                target,
                parts,
                block(shape, split, target * size, size),
                block(made, concat, source * parts[concat], parts[concat]),
            )
        ]

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again(
            self.name,
            cotangent,
            split_dim=self.concat_dim,
            concat_dim=self.split_dim,
            tiled=self.tiled,
        )


@collective
@dataclass(frozen=True)
class AllToAllV(Collective):
    name: ClassVar[str] = "all_to_all_v"
    counts: tuple[tuple[int, ...], ...]
    dim: int

    @classmethod
    def of(cls, x: Any, ranks: int, *, counts: Any, dim: Any = 0) -> Self:
        rows = list(counts) if isinstance(counts, Sequence | np.ndarray) else []
        if len(rows) != ranks:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{cls.name}: counts is {counts!r}, not {ranks} rows of {ranks} counts",
                because="counts[s][r] is what rank s has for rank r",
                fixes=("pass the whole table, the same on every rank",),
            )
        table = tuple(counts_of(cls.name, row, ranks) for row in rows)
        place = dim_of(cls.name, x, dim)
        sized(cls.name, x, place, max(map(sum, table)), exact=True)
        return cls(table, place)

    @property
    def received(self) -> tuple[tuple[int, ...], ...]:
        """For each rank, what comes from each."""
        return tuple(zip(*self.counts, strict=True))

    @property
    def size(self) -> int:
        """What the rank that gets the most gets."""
        return max(map(sum, self.received))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        # All blocks are made as large as the largest, and what is between them is left out again.
        n, largest = group.ranks, max(map(max, self.counts))
        sent = np.full((n, n, largest), -1)
        for s, row in enumerate(self.counts):
            for r, begin in enumerate(begins_of(row)):
                sent[s, r, : row[r]] = np.arange(begin, begin + row[r])
        came = np.full((n, self.size), -1)
        for r, row in enumerate(self.received):
            places = [s * largest + k for s, size in enumerate(row) for k in range(size)]
            came[r, : len(places)] = places
        if checks_varying(group.axes):
            x = varying(x, group.axes)
        blocks = picked(x, sent.reshape(n, -1), self.dim, group)
        dim = self.dim % x.ndim
        if group.axes:
            blocks = _lax.all_to_all(blocks, group.axes, dim, dim, tiled=True)
        return picked(blocks, came, self.dim, group)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        made = resized(shape, self.dim, self.size)
        found: list[Move] = []
        for target, row in enumerate(self.received):
            for source, (begin, size) in enumerate(zip(begins_of(row), row, strict=True)):
                at = block(shape, self.dim, begins_of(self.counts[source])[target], size)
                to = block(made, self.dim, begin, size)
                found += move(source, target, resized(shape, self.dim, size), at, to)
            found += zeros(target, made, self.dim, sum(row))
        return found

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again(self.name, cotangent, counts=self.received, dim=self.dim)


def all_to_all(
    x: Any,
    axis_name: AxisName,
    *,
    split_dim: int = 0,
    concat_dim: int = 0,
    tiled: bool = True,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """Block r of every rank's `x` on rank r: `jax.lax.all_to_all` on a backend of choice.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      split_dim: the dimension that is cut into a block for each rank.
      concat_dim: the dimension along which the blocks that come lie, in the order of ranks.
      tiled: both stay, 1/n and n times as large. Without, `split_dim` has one element for each
        rank, the result does not have it, and `concat_dim` is new.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT if the group does not divide `split_dim`, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        AllToAll,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        split_dim=split_dim,
        concat_dim=concat_dim,
        tiled=tiled,
    )


def all_to_all_v(
    x: Any,
    axis_name: AxisName,
    *,
    counts: Sequence[Sequence[int]],
    dim: int = 0,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """As `all_to_all` along one dimension, with blocks of different sizes.

    Args:
      x: an array, or a pytree of arrays: along `dim` the blocks for rank 0, 1, and so on, one after
        another, in as many elements as the rank that sends the most needs.
      axis_name: the mesh axis, or axes, that the group runs along.
      counts: counts[s][r] elements go from rank s to rank r.
      dim: the dimension along which blocks lie.
      backend, mesh, table: as for `all_reduce`.

    Returns:
      Along `dim` the blocks from rank 0, 1, and so on, then zeros up to what the rank that receives
      the most receives.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        AllToAllV,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        counts=counts,
        dim=dim,
    )
