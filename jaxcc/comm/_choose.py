"""Which backend carries a call, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from jaxcc.comm._backends import BACKENDS
from jaxcc.comm._call import AxisName, Call, dtype_on_the_way, group_of
from jaxcc.comm._collective import COLLECTIVES
from jaxcc.comm._table import Table, current_table
from jaxcc.layout import BackendError, JaxccError, TableError


@dataclass(frozen=True)
class Choice:
    """The backend of one call, why it was chosen, and the better ones that cannot run here."""

    call: Call
    backend: str
    why: str
    skipped: Sequence[tuple[str, BackendError]] = ()

    def __str__(self) -> str:
        lines = [f"{self.call}: {self.backend} ({self.why})"]
        lines += [f"  not {name}: {reason.findings[0].what}" for name, reason in self.skipped]
        lines.append(f"  between start and done: {BACKENDS[self.backend].between}")
        return "\n".join(lines)


def choose(call: Call, backend: str, table: Table | None) -> Choice:
    """The backend for `call`: a function of what every rank of the group agrees on.

    Raises:
      BackendError: BACKEND_UNKNOWN, or why `backend` cannot carry the call.
      TableError: the table cannot be read.
    """
    if backend not in (known := ("auto", *BACKENDS)):
        names = ", ".join(map(repr, known))
        raise BackendError(
            "BACKEND_UNKNOWN", f"there is no backend {backend!r}", fixes=(f"use one of {names}",)
        )
    if not call.group.on_devices:
        return Choice(call, "xla", "no devices stand behind the axis here")
    if backend != "auto":
        if refusal := BACKENDS[backend].refuses(call):
            raise refusal
        return Choice(call, backend, "named by the caller")
    table = current_table() if table is None else table
    if not isinstance(table, Table):
        raise TableError(
            "TABLE_FORMAT",
            f"table is {table!r}, not a jaxcc.comm.Table",
            fixes=("read a file with jaxcc.comm.Table.load",),
        )
    skipped: list[tuple[str, BackendError]] = []
    for row in table.rows(call.collective, call.dtype_class, call.ranks, call.nbytes):
        refusal = BACKENDS[row.backend].refuses(call)
        if refusal is None:
            return Choice(
                call, row.backend, f"{row.us:g} us in the table of {table.machine}", skipped
            )
        skipped.append((row.backend, refusal))
    return Choice(
        call, "xla", f"nothing that can run here in the table of {table.machine}", skipped
    )


def explain(
    collective: str,
    operand: jax.ShapeDtypeStruct | jax.Array,
    axis_name: AxisName,
    *,
    backend: str = "auto",
    mesh: Mesh | None = None,
    table: Table | None = None,
    **parameters: Any,
) -> Choice:
    """What `jaxcc.comm.<collective>` with these arguments would run on, and why; `print` it.

    It is called where the collective would be, inside `jax.shard_map`, or anywhere with `mesh`.

    Args:
      collective: its name, such as "all_reduce" or "all_gather".
      operand: one array, or its shape and dtype.
      axis_name, backend, mesh, table: as for the collective.
      parameters: the collective's own, such as `op` or `dim`.

    Raises:
      BackendError: BACKEND_ARGUMENT if there is no such collective, it has no such parameter, or
        `operand` is no array.
      And as the collective itself does.
    """
    kind = COLLECTIVES.get(collective)
    if kind is None:
        raise BackendError(
            "BACKEND_ARGUMENT",
            f"jaxcc.comm has no collective {collective!r}",
            fixes=(f"use {', '.join(map(repr, sorted(COLLECTIVES)))}",),
        )
    if not hasattr(operand, "dtype"):
        raise BackendError(
            "BACKEND_ARGUMENT",
            f"one array is explained at a time; the operand is of type {type(operand).__name__}",
            fixes=("pass an array or a jax.ShapeDtypeStruct, such as one leaf of a pytree",),
        )
    group = group_of(collective, axis_name, mesh, outside=True)
    try:
        what = kind.of(operand, group.ranks, **parameters)
    except TypeError as error:
        if isinstance(error, JaxccError):
            raise
        raise BackendError(
            "BACKEND_ARGUMENT",
            f"{collective} does not take {parameters}: {error}",
            fixes=(f"pass the arguments of jaxcc.comm.{collective}",),
        ) from None
    dtype = dtype_on_the_way(what.operand_dtype(operand.dtype), group)
    return choose(Call(what, group, tuple(operand.shape), dtype), backend, table)
