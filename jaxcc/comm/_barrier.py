"""Barrier."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxcc.comm._all_reduce import AllReduce
from jaxcc.comm._call import AxisName, group_of
from jaxcc.comm._carry import carry
from jaxcc.comm._table import Table

# JAX has types for some of its functions only.
_lax: Any = lax


def barrier(
    x: Any,
    axis_name: AxisName,
    *,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
) -> Any:
    """`x` as it is, once every rank of the group has its `x`.

    A program has no order but that of its data: what shall come before the barrier is what `x` is
    computed from, what shall come after reads the result.

    Args:
      x: an array, or a pytree of arrays.
      axis_name: the mesh axis, or axes, that the group runs along.
      backend, mesh, table: as for `all_reduce`.

    Raises:
      LayoutError: LAYOUT_AXIS.
      BackendError, TableError: as `all_reduce`.
    """
    group = group_of("barrier", axis_name, mesh)
    if not group.on_devices:
        return x
    sign, x = _lax.optimization_barrier((jnp.zeros((), jnp.uint32), x))
    seen = carry(AllReduce("max"), sign, group, backend, table)
    return _lax.optimization_barrier((seen, x))[1]
