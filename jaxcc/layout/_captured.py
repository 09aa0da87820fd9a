"""Arrays that a function captures instead of taking them as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxcc import _compat
from jaxcc._compat import SourceLine
from jaxcc.layout._errors import LayoutError


def refuse_sharded(eqns: Sequence[Any], consts: Mapping[Any, Any]) -> None:
    """Refuses captured arrays of which a device holds a part.

    Inside the function such an array would be the whole one on every rank: JAX gathers it, at every
    call and without a word.

    Args:
      eqns: the equations of the function.
      consts: the arrays that they capture, by variable.

    Raises:
      LayoutError: LAYOUT_CAPTURED, at the line that first reads one.
    """
    sharded = {var for var, value in consts.items() if _is_sharded(value)}
    for eqn in eqns:
        for atom in eqn.invars if sharded else ():
            if not isinstance(atom, _compat.Literal) and atom in sharded:
                raise captured_error(consts[atom], _compat.source_line(eqn))
        for jaxpr in _compat.inner_jaxprs(eqn):
            inner = _compat.open_jaxpr(jaxpr)
            values = _compat.jaxpr_consts(jaxpr)
            refuse_sharded(inner.eqns, dict(zip(inner.constvars, values, strict=True)))


def captured_error(array: Any, line: SourceLine | None) -> LayoutError:
    """The error for a captured array of several devices, or for one of which JAX says only that."""
    what = "an array"
    if isinstance(array, jax.Array):
        spec = getattr(array.sharding, "spec", array.sharding)
        what = f"an array of shape {tuple(array.shape)} that is sharded as {spec}"
    return LayoutError(
        "LAYOUT_CAPTURED",
        f"the function captures {what} over several devices",
        line=line,
        because="inside, it would be the whole array on every rank, whatever part of it each holds",
        fixes=(
            "pass it as an argument, with a layout",
            "capture a NumPy array, if every rank is to hold all of it",
        ),
    )


def _is_sharded(value: Any) -> bool:
    concrete = isinstance(value, jax.Array) and not _compat.is_tracer(value)
    return concrete and not value.sharding.is_fully_replicated
