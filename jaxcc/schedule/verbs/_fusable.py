"""Which operations one fused operation may hold."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc import _compat
from jaxcc.layout import ScheduleError
from jaxcc.program import COLLECTIVES, SEND, Op, Program
from jaxcc.schedule._strands import FEEDERS, axes_of, strands
from jaxcc.schedule.verbs._check_sends import check_sends
from jaxcc.schedule.verbs._check_strand import check_collectives, check_strand, reduces_all
from jaxcc.schedule.verbs._groups import collectives_of
from jaxcc.schedule.verbs._pointwise import POINTWISE
from jaxcc.schedule.verbs._sliced_dims import REDUCTIONS

# The reductions that kernels make totals by, and what puts the ranks' together.
_TOTALS = {
    "reduce_sum": ("sum",),
    "reduce_max": ("max", "maximum"),
    "reduce_min": ("min", "minimum"),
}


def is_feeder(op: Op) -> bool:
    """Whether a kernel makes the operation's result element by element, as it reads it."""
    if op.kind == "random_bits":
        key = op.eqn.invars[0].aval
        return key.shape == () != op.types[0].shape and _compat.counts_bits(key.dtype)
    return op.kind in FEEDERS


def check_group(program: Program, body: Sequence[Op], outputs: Sequence[str]) -> None:
    """Holds `body`, operations of `program` of which `outputs` are read elsewhere, against what a
    fused operation may be: pointwise work with collectives, with sends, with both, or alone.

    Raises:
      ScheduleError: it may not.
    """
    totals = _totals(program, body)
    for op in body:
        known = op.kind in POINTWISE | COLLECTIVES | {SEND, *REDUCTIONS}
        if not known and not is_feeder(op):
            raise _not_pointwise(op)
    collectives = [op for op in collectives_of(body) if op not in totals]
    sends = [op for op in body if op.kind == SEND]
    if collectives or sends:
        check_collectives(collectives)
        axes = axes_of(collectives)
        check_sends(body, sends, axes)
        for strand in strands(body, outputs, program.types()):
            check_strand(program, strand, totals, axes)
        return
    for op in body:
        if op.kind in REDUCTIONS and op not in totals and op.types[0].shape == ():
            raise reduces_all(op)
    if totals or not any(op.kind in POINTWISE for op in body):
        what = f"of which '{totals[-1].name}' would be a total" if totals else "to fuse"
        raise ScheduleError(
            "SCHEDULE_NO_COLLECTIVE", f"fuse: there is no collective and no work {what}"
        )


def _not_pointwise(op: Op) -> ScheduleError:
    what = "does not treat every element by itself"
    if op.kind == "fused":
        what = "is a kernel already"
    elif op.has_inner_jaxprs:
        what = "is a loop, a branch or another operation that holds a program"
    return ScheduleError(
        "SCHEDULE_NOT_POINTWISE",
        f"fuse: '{op.name}' ({op.kind}) {what}",
        line=op.line,
        fixes=(f"leave '{op.name}' out of the group",),
    )


def _totals(program: Program, body: Sequence[Op]) -> list[Op]:
    """Reductions of all of a slice, and the all-reduces that nothing else comes between and that
    only the outside reads.
    """
    made = {out: op for op in body for out in op.outputs}
    found: list[Op] = []
    for op in body:
        if op.kind != "all_reduce" or op.types[0].shape != ():
            continue
        inner = made.get(op.inputs[0]) if isinstance(op.inputs[0], str) else None
        if inner is None:
            continue
        alone = inner.outputs[0] not in program.outputs and program.users(inner.outputs[0]) == [op]
        if op.params["op"] not in _TOTALS.get(inner.kind, ()) or not alone:
            continue
        readers = [reader for reader in body if op.outputs[0] in reader.inputs]
        if readers:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' is a total, and '{readers[0].name}' reads it inside the group",
                line=op.line,
                because="a kernel has its totals when all elements were seen",
                fixes=(f"leave '{readers[0].name}' and what depends on it out of the group",),
            )
        found += [inner, op]
    return found
