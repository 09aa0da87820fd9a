"""From a user's call to a backend."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxcc._compat import result_type, varying_axes
from jaxcc.comm._backends import BACKENDS
from jaxcc.comm._call import (
    AxisName,
    Call,
    Group,
    as_array,
    dtype_on_the_way,
    group_of,
    varying,
)
from jaxcc.comm._choose import choose
from jaxcc.comm._collective import Collective
from jaxcc.comm._table import Table
from jaxcc.layout import is_key


def carry_each(
    kind: type[Collective],
    x: Any,
    axis_name: AxisName,
    *,
    backend: str,
    mesh: Mesh | None,
    table: Table | None,
    **parameters: Any,
) -> Any:
    """A collective of every array of a pytree.

    Args:
      kind: which collective.
      x: the pytree.
      axis_name: the axes of the group.
      backend: its name, or "auto".
      mesh: the devices, if the caller gave them.
      table: the tuning table for "auto"; None for the current one.
      parameters: as `kind.of` takes them.

    Raises:
      LayoutError: LAYOUT_AXIS, LAYOUT_ARGUMENT, LAYOUT_REDUCE_OP.
      BackendError: BACKEND_UNKNOWN, or why the named backend cannot run here.
      TableError: the table cannot be read.
    """
    group = group_of(kind.name, axis_name, mesh)

    def one(leaf: Any) -> jax.Array:
        array = as_array(kind.name, leaf)
        what = kind.of(array, group.ranks, **parameters)
        return carry(what, array, group, backend, table)

    return jax.tree.map(one, x)


def carry(
    what: Collective, x: jax.Array, group: Group, backend: str, table: Table | None
) -> jax.Array:
    """One collective of one array; arguments and errors as `carry_each`."""
    x = x.astype(what.operand_dtype(x.dtype))
    return what.finish(_carried(what, x, group, backend, table), group)


def _carried(
    what: Collective, x: jax.Array, group: Group, backend: str, table: Table | None
) -> jax.Array:
    """`carry`, without what comes before and after it."""
    dtype = dtype_on_the_way(x.dtype, group)
    if is_key(x):
        # A key's words lie in a last dimension, where those of `what` do not count it.
        words = jax.vmap(
            lambda word: _carried(what, word, group, backend, table), in_axes=-1, out_axes=-1
        )(jax.random.key_data(x))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    call = Call(what, group, tuple(x.shape), dtype)
    choice = choose(call, backend, table)
    if x.size == 0 and group.on_devices:
        # XLA refuses some collectives of nothing, and its older versions crash on others.
        made = result_type(lambda x: what.in_lax(x, group), x)
        return varying(jnp.zeros(made.shape, made.dtype), sorted(varying_axes(made)))
    return BACKENDS[choice.backend].run(x.astype(dtype), call).astype(x.dtype)
