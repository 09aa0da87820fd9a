"""Sends between pairs of ranks."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxcc.comm._blocks import move, whole, zeros
from jaxcc.comm._call import AxisName, Group, group_of
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, Collective, collective
from jaxcc.comm._parameters import integer_of, root_of
from jaxcc.comm._table import Table
from jaxcc.layout import LayoutError
from jaxcc.runtime import Move

# JAX has types for some of its functions only.
_lax: Any = lax

Pairs = Sequence[tuple[int, int]]


@collective
@dataclass(frozen=True)
class Permute(Collective):
    name: ClassVar[str] = "ppermute"
    perm: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, x: Any, ranks: int, *, perm: Any) -> Self:
        return cls(_checked(cls.name, perm, ranks))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        if not group.axes:
            return x if self.perm else jnp.zeros_like(x)
        axes, perm = _in_mesh_order(group.axes, self.perm)
        return _lax.ppermute(x, axes, perm)

    def moves(self, shape: Sequence[int], ranks: int) -> Sequence[Move]:
        place = whole(shape)
        senders = {target: source for source, target in self.perm}
        found: list[Move] = []
        for target in range(ranks):
            if target in senders:
                found += move(senders[target], target, shape, place, place)
            else:
                found += zeros(target, shape)
        return found

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        return again(self.name, cotangent, perm=[(to, source) for source, to in self.perm])


def _in_mesh_order(axes: tuple[str, ...], perm: Pairs) -> tuple[tuple[str, ...], Pairs]:
    """The same sends with the axes as the mesh has them, which is how XLA numbers ranks."""
    named = jax.sharding.get_abstract_mesh().axis_names
    if not set(axes) <= set(named):
        return axes, perm
    ordered = tuple(sorted(axes, key=named.index))
    sizes = [lax.axis_size(axis) for axis in axes]
    numbers = np.arange(np.prod(sizes)).reshape(sizes)
    # Entry r is the rank by `axes` of the one that is r by `ordered`.
    ranks = numbers.transpose([axes.index(axis) for axis in ordered]).ravel().tolist()
    return ordered, [(ranks.index(source), ranks.index(to)) for source, to in perm]


def _checked(name: str, perm: Any, ranks: int) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((operator.index(source), operator.index(to)) for source, to in perm)
    except (TypeError, ValueError):
        pairs = None
    if pairs is None or any(not 0 <= rank < ranks for pair in pairs for rank in pair):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name}: perm is {reprlib.repr(perm)}, not pairs of ranks of a group of {ranks}",
            fixes=(f"pass pairs (source, target) of numbers from 0 to {ranks - 1}",),
        )
    for what, side in (("sends", 0), ("receives", 1)):
        held = [pair[side] for pair in pairs]
        twice = next((rank for rank in held if held.count(rank) > 1), None)
        if twice is not None:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{name}: rank {twice} {what} twice in {reprlib.repr(list(pairs))}",
                because="a rank sends to one rank and receives from one",
                fixes=("use several calls", "use jaxcc.comm.broadcast for one rank's value"),
            )
    return pairs


def ppermute(
    x: Any,
    axis_name: AxisName,
    perm: Pairs,
    *,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """Sends `x` from rank to rank: `jax.lax.ppermute` on a backend of choice.

    Args:
      x: an array, or a pytree of arrays, of any dtype and of the same shapes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      perm: pairs (source, target) of ranks; a rank sends once at most and receives once at most.
      backend, mesh, table: as for `all_reduce`.

    Returns:
      What the rank receives; zeros where nobody sends to it.

    Raises:
      LayoutError: LAYOUT_ARGUMENT, LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    return carry_each(Permute, x, axis_name, backend=backend, mesh=mesh, table=table, perm=perm)


def shift(
    x: Any,
    axis_name: AxisName,
    by: int = 1,
    *,
    wrap: bool = True,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """`ppermute` from every rank r to rank r + `by`: a step around a ring, or, without `wrap`,
    along a line, at whose beginning ranks receive zeros.

    Args:
      x, axis_name, backend, mesh, table: as for `ppermute`.
      by: how many ranks further; negative for the other way.
      wrap: whether the last ranks send to the first.

    Raises:
      As `ppermute`.
    """
    ranks = group_of("shift", axis_name, mesh).ranks
    steps = integer_of(by)
    if steps is None:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"shift: by is {by!r}, not a number of ranks",
            because="who sends to whom is known while the program is traced",
            fixes=("pass an integer, the same on every rank",),
        )
    targets = [(rank, rank + steps) for rank in range(ranks)]
    perm = [(rank, to % ranks) for rank, to in targets if wrap or 0 <= to < ranks]
    return ppermute(x, axis_name, perm, backend=backend, mesh=mesh, table=table)


def send_recv(
    x: Any,
    axis_name: AxisName,
    *,
    source: int,
    target: int,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """One message: `x` of rank `source` on rank `target`, and zeros on all others.

    Args:
      x, axis_name, backend, mesh, table: as for `ppermute`.
      source, target: ranks of the group, the same numbers on every rank.

    Raises:
      As `ppermute`.
    """
    ranks = group_of("send_recv", axis_name, mesh).ranks
    sends, receives = (root_of("send_recv", rank, ranks) for rank in (source, target))
    return ppermute(x, axis_name, [(sends, receives)], backend=backend, mesh=mesh, table=table)
