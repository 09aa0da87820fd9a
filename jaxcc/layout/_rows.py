"""A loop that carries nothing from turn to turn, as its body for all rows at once.

`lax.map` over rows that are sliced takes fewer turns on n ranks than on one; for all rows at once
it is the same program on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxcc import _compat
from jaxcc.layout._emulate import evaluated
from jaxcc.layout._flatten import Step
from jaxcc.layout._rules import collective_of

_jax: Any = jax


def all_rows(step: Step) -> Any | None:
    """A jaxpr of a scan's constants and rows that makes all its rows; None if turns depend on one
    another, or on other ranks."""
    constants, carried, walked = _compat.scan_counts(step.eqn)
    body = _compat.open_jaxpr(step.params["jaxpr"])
    if carried or any(map(_of_ranks, _compat.all_eqns(body.eqns))):
        return None

    def row(*given: Any) -> Sequence[Any]:
        return evaluated(step.params["jaxpr"], given)

    axes = [None] * constants + [0] * walked
    avals = [_jax.ShapeDtypeStruct(slot.shape, slot.dtype) for slot in step.operands]
    with _compat.outside_all_traces():
        return _jax.make_jaxpr(_jax.vmap(row, in_axes=axes, axis_size=step.params["length"]))(
            *avals
        )


def _of_ranks(eqn: Any) -> bool:
    op = _compat.op_name(eqn)
    return op == "axis_index" or collective_of(op) is not None
