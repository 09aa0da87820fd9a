"""All-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
from jax.sharding import Mesh

from jaxcc.comm._call import AxisName, Group, checks_varying
from jaxcc.comm._carry import carry_each
from jaxcc.comm._collective import Again, collective
from jaxcc.comm._reduction import Reduction, checked_op, reduced
from jaxcc.comm._table import Table


@collective
@dataclass(frozen=True)
class AllReduce(Reduction):
    name: ClassVar[str] = "all_reduce"

    @classmethod
    def of(cls, x: Any, ranks: int, *, op: Any = "sum") -> Self:
        return cls(checked_op(cls.name, op))

    def in_lax(self, x: jax.Array, group: Group) -> jax.Array:
        return reduced(x, self.op, group)

    def moves(self, shape: Sequence[int], ranks: int) -> None:
        return None

    def back(self, cotangent: jax.Array, group: Group, again: Again) -> jax.Array:
        # With check_vma=True a replicated value's cotangent is itself replicated and complete.
        if checks_varying(group.axes):
            return cotangent
        return again(self.name, cotangent)


def all_reduce(
    x: Any,
    axis_name: AxisName,
    *,
    op: str = "sum",
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """`op` over the ranks' `x`, the same on every rank: `jax.lax.psum` on a backend of choice.

    It is called inside `jax.shard_map`, with either value of check_vma. Where no devices stand
    behind the axis (under `vmap`, in `jaxcc.check`) it is the `jax.lax` collective, whatever
    `backend` says.

    Args:
      x: an array, or a pytree of arrays, of the same shapes and dtypes on every rank.
      axis_name: the mesh axis, or axes, that the group runs along.
      op: "sum", "mean", "max", "min", "prod", or of integers and booleans "and", "or" and "xor".
        Only "sum" and "mean" have a gradient on every backend.
      backend: "xla", "host" (CPU devices of one process, or of several on one machine), "mpi" (one
        process for each rank), or "auto": what the tuning table says is fastest and can run here.
      mesh: the devices, for `host` where the group is not all CPU devices of the process.
      table: the tuning table for "auto"; by default the one that JAXCC_TABLE names, else the one
        that jaxcc ships.

    Returns:
      The reduction, of the shape and dtype of `x`; a sum or product of bool counts in int32, and a
      mean of integers is a float, of their sum, which wraps around as they do. Half types add up in
      float32 on `host` and `mpi`. "max" and "min" leave NaN out on `xla` and `host`, so that NaN on
      all of several ranks gives an infinity, and of two zeros they take the first rank's; on `mpi`
      it depends on the MPI library.

    Raises:
      LayoutError: LAYOUT_REDUCE_OP, LAYOUT_AXIS.
      BackendError: BACKEND_UNKNOWN, or why the named backend cannot run here.
      TableError: the table cannot be read.
    """
    return carry_each(AllReduce, x, axis_name, backend=backend, mesh=mesh, table=table, op=op)
