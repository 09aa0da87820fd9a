"""All-gather: every rank gets the ranks' arrays, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxcc.comm._blocks import block, is_replicated, move, own_block, resized, with_new
from jaxcc.comm._call import AxisName, Group, checks_varying
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import begins_of, counts_of, dim_of, sized
from jaxcc.comm._table import Table
from jaxcc.comm._uneven import own_part
from jaxcc.layout import LayoutError
from jaxcc.runtime import Move

# JAX has types for some of its functions only.
_lax: Any = lax

_TYPES = ("varying", "invarying")


@collective
@dataclass(frozen=True)
class AllGather(Collective):
    name: ClassVar[str] = "all_gather"
    dim: int  # of the result
    tiled: bool
    to: str

    @classmethod
    def of(
        cls, x: Any, ranks: int, *, dim: Any = 0, tiled: bool = True, to: Any = "varying"
    ) -> Self:
        return cls(dim_of(cls.name, x, dim, new=not tiled), tiled, checked_type(cls.name, to))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        dim = self.dim % (x.ndim + (not self.tiled))
        to = self.to if checks_varying(group.axes) else "varying"
        return _lax.all_gather(x, group.axes, axis=dim, tiled=self.tiled, to=to)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        if not self.tiled:
            shape = with_new(shape, self.dim)
        return AllGatherV((shape[self.dim],) * ranks, self.dim, self.to).moves(shape, ranks)

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        if is_replicated(cotangent, group):
            return own_block(cotangent, self.dim, self.tiled, group)
        return again("reduce_scatter", cotangent, dim=self.dim, tiled=self.tiled)


@collective
@dataclass(frozen=True)
class AllGatherV(Collective):
    name: ClassVar[str] = "all_gather_v"
    counts: tuple[int, ...]
    dim: int
    to: str

    @classmethod
    def of(cls, x: Any, ranks: int, *, counts: Any, dim: Any = 0, to: Any = "varying") -> Self:
        parts, place = counts_of(cls.name, counts, ranks), dim_of(cls.name, x, dim)
        sized(cls.name, x, place, max(parts), exact=True)
        return cls(parts, place, checked_type(cls.name, to))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        to = self.to if checks_varying(group.axes) else "varying"
        every = _lax.all_gather(x, group.axes, to=to)
        parts = [
            _lax.slice_in_dim(every[r], 0, size, axis=self.dim)
            for r, size in enumerate(self.counts)
        ]
        return jnp.concatenate(parts, axis=self.dim)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        made = resized(shape, self.dim, sum(self.counts))
        return [
            one
            for target in range(ranks)
            for source in range(ranks)
            for one in gathered(shape, made, self.counts, self.dim, source, target)
        ]

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        if is_replicated(cotangent, group):
            return own_part(cotangent, self.counts, self.dim, group)
        return again("reduce_scatter_v", cotangent, counts=self.counts, dim=self.dim)


def gathered(
    shape: Sequence[int],
    made: Sequence[int],
    counts: Sequence[int],
    dim: int,
    source: int,
    target: int,
) -> Iterator[Move]:
    """What `source` has of a gather along `dim`, for the result of `target`."""
    size = counts[source]
    at = block(shape, dim, 0, size)
    to = block(made, dim, begins_of(counts)[source], size)
    return move(source, target, resized(shape, dim, size), at, to)


def checked_type(name: str, to: Any) -> str:
    """`to`, the type that JAX gives to a gathered value.

    Raises:
      LayoutError: LAYOUT_ARGUMENT.
    """
    if to not in _TYPES:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name} has no type {to!r} for its result",
            fixes=(f"use one of {', '.join(map(repr, _TYPES))}",),
        )
    return to


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    dim: int = 0,
    tiled: bool = True,
    to: str = "varying",
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The ranks' `x` one after another, on every rank: `jax.lax.all_gather` on a backend of choice.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      dim: the dimension along which they lie.
      tiled: it is a dimension of `x`, and becomes n times as large. Without, it is a new dimension
        of the result, with one element for each rank.
      to: how JAX types the result under check_vma=True: "varying" (its cotangents are summed over
        ranks: the gradient is a reduce-scatter) or "invarying" (it may leave under `P()`).
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        AllGather,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        dim=dim,
        tiled=tiled,
        to=to,
    )


def all_gather_v(
    x: Any,
    axis_name: AxisName,
    *,
    counts: Sequence[int],
    dim: int = 0,
    to: str = "varying",
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """The first counts[rank] elements along `dim` of each rank's `x`, one after another, on every
    rank.

    Args:
      x: an array, or a pytree of arrays, with max(counts) elements along `dim`.
      axis_name: the mesh axis, or axes, that the group runs along.
      counts: elements that each rank gives.
      dim, to: as for `all_gather`.
      backend, mesh, table: as for `all_reduce`.

    Returns:
      sum(counts) elements along `dim`.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(
        AllGatherV,
        x,
        axis_name,
        backend=backend,
        mesh=mesh,
        table=table,
        counts=counts,
        dim=dim,
        to=to,
    )
