"""All-reduce."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxcc._compat import varying_axes
from jaxcc.comm._backends import BACKENDS
from jaxcc.comm._call import AxisName, as_array, describe, varying
from jaxcc.comm._choose import choose
from jaxcc.comm._table import Table


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
      op: "sum", "mean", "max", "min" or "prod". Only "sum" and "mean" have a gradient on every
        backend.
      backend: "xla", "host" (the CPU devices of one process), "mpi" (one process for each rank), or
        "auto": what the tuning table says is fastest and can run here.
      mesh: the devices, for `host` where the group is not all CPU devices of the process.
      table: the tuning table for "auto"; by default the one that JAXCC_TABLE names, else the one
        that jaxcc ships.

    Returns:
      The reduction, of the shape and dtype of `x`; a sum or product of bool counts in int32, and a
      mean of integers is a float. Half types add up in float32 on `host` and `mpi`.

    Raises:
      LayoutError: LAYOUT_REDUCE_OP, LAYOUT_AXIS.
      BackendError: BACKEND_UNKNOWN, or why the named backend cannot run here.
      TableError: the table cannot be read.
    """

    def reduce(leaf: Any) -> jax.Array:
        array = as_array("all_reduce", leaf)
        call = describe("all_reduce", array, axis_name, op, mesh)
        choice = choose(call, backend, table)
        array = array.astype(call.dtype)
        if array.size == 0 and call.on_devices:
            # XLA before 0.12 crashes on an empty all-reduce beside another one.
            others = varying_axes(array) - set(call.axes)
            result = varying(jnp.zeros(array.shape, call.dtype), sorted(others))
        else:
            result = BACKENDS[choice.backend].all_reduce(array, call)
        return result / call.ranks if op == "mean" else result

    return jax.tree.map(reduce, x)
