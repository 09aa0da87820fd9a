"""What a report says beside its table: what the promise excludes, and what was not asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxcc import _compat
from jaxcc.layout._checked import Program
from jaxcc.layout._dtypes import is_key
from jaxcc.layout._layouts import LayoutMap, Partial
from jaxcc.layout._proof import local_axes
from jaxcc.layout._trace import Trace

_tree: Any = jax.tree


def program_notes(program: Program, traced: Trace) -> tuple[str, ...]:
    """Notes about a program, of which `traced` is one trace, however it was checked."""
    return (
        *_single(program.sizes),
        *_inner_flags(program, traced),
        *_inputs(program.layouts),
    )


def narrowed_notes(program: Program, given: Sequence[Any]) -> tuple[str, ...]:
    """Arguments whose leaves were `given` in 64 bits, and have 32 to JAX."""
    narrowed = [
        f"{name} is {np.dtype(x.dtype)}"
        for name, x, own in zip(program.names, given, _tree.leaves(program.avals), strict=True)
        if hasattr(x, "dtype") and not is_key(x) and np.dtype(x.dtype) != own.dtype
    ]
    if not narrowed:
        return ()
    return (f"{', '.join(narrowed)}: 32 bits to JAX, unless JAX_ENABLE_X64=1",)


def pending_notes(
    names: Sequence[str], outs: Sequence[LayoutMap], out_layouts: Any
) -> tuple[str, ...]:
    """What to know of results that are pending though nobody declared them so."""
    if out_layouts is not None:
        return ()
    pending = [
        name
        for name, out in zip(names, outs, strict=True)
        if any(isinstance(one, Partial) for one in out.values())
    ]
    if not pending:
        return ()
    return (
        f"{', '.join(pending)}: every rank's own term, not reduced (a global call stacks them); "
        "out_layouts says what is meant",
    )


def _single(sizes: Mapping[str, int]) -> list[str]:
    """Axes over which there is nothing to be wrong with."""
    return [
        f"{axis} has 1 rank: nothing was checked over it" for axis, n in sizes.items() if n == 1
    ]


def _inner_flags(program: Program, traced: Trace) -> list[str]:
    """The flag of shard_maps inside the function, where it is another one than the function's."""
    other = {
        eqn.params["check_vma"]
        for eqn in _compat.all_eqns(traced.eqns)
        if _compat.op_name(eqn) == "shard_map"
    } - {program.check_vma}
    return [f"a shard_map inside the function runs with check_vma={flag}" for flag in other]


def _inputs(layouts: Sequence[LayoutMap]) -> list[str]:
    """What inputs stand for that a group of one does not hold as they are."""
    local = sorted(local_axes(layouts))
    partial = sorted({a for layout in layouts for a in layout if isinstance(layout[a], Partial)})
    notes: list[str] = []
    if local:
        notes.append(
            f"inputs are Local over {', '.join(local)}: what comes from them is what its "
            "layout says, and no group of one can hold it"
        )
    if partial:
        notes.append(f"Partial inputs over {', '.join(partial)} stand for their reduction")
    return notes
