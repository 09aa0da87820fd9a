"""Which operations one fused operation may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcc import _compat
from jaxcc.layout import ScheduleError
from jaxcc.program import COLLECTIVES, Op, Program, type_text
from jaxcc.schedule.verbs._groups import collectives_of
from jaxcc.schedule.verbs._pointwise import POINTWISE
from jaxcc.schedule.verbs._sliced_dims import REDUCTIONS
from jaxcc.schedule.verbs.reorder import region_of

# What a kernel does as it reads an operand, or instead of reading one.
_FEEDERS = frozenset({"own_slice", "broadcast_in_dim", "iota"})

SEND = "ppermute"

# The reductions that kernels make totals by, and what puts the ranks' together.
_TOTALS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}


def is_feeder(op: Op) -> bool:
    """Whether a kernel makes the operation's result element by element, as it reads it."""
    if op.kind == "random_bits":
        key = op.eqn.invars[0].aval
        return key.shape == () != op.types[0].shape and _compat.counts_bits(key.dtype)
    return op.kind in _FEEDERS


def check_group(program: Program, body: Sequence[Op], outputs: Sequence[str]) -> None:
    """Holds `body`, operations of `program` of which `outputs` are read elsewhere, against what a
    fused operation may be: pointwise work with collectives, with sends, or alone.

    Raises:
      ScheduleError: it may not.
    """
    totals = _totals(program, body)
    rows = [op for op in body if op.kind in REDUCTIONS and op not in totals]
    for op in body:
        known = op.kind in POINTWISE | COLLECTIVES | {SEND, *REDUCTIONS}
        if not known and not is_feeder(op):
            raise _not_pointwise(op)
    collectives = [op for op in collectives_of(body) if op not in totals]
    for op in rows:
        _check_rows(op, collectives)
    sends = [op for op in body if op.kind == SEND]
    if collectives and sends:
        raise _differ(collectives[0], sends[0], "a kernel with collectives does not send")
    if collectives:
        _check_kernel(program, body, collectives, outputs)
    elif sends:
        _check_sends(body, sends)
    elif not any(op.kind in POINTWISE for op in body):
        raise ScheduleError(
            "SCHEDULE_NO_COLLECTIVE", "fuse: there is no collective and no work to fuse"
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
        if inner.kind not in _TOTALS or _TOTALS[inner.kind] != op.params["op"] or not alone:
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


def _check_rows(op: Op, collectives: Sequence[Op]) -> None:
    """A kernel reduces rows that each rank has whole."""
    axes: tuple[int, ...] = op.eqn.params["axes"]
    sliced = {other.params["dim"] for other in collectives if "dim" in other.params}
    if op.types[0].shape == () or sliced & set(axes):
        raise ScheduleError(
            "SCHEDULE_NOT_POINTWISE",
            f"fuse: '{op.name}' ({op.kind}) reduces the dimension that the group slices",
            line=op.line,
            because="a kernel reduces rows, and totals that are then all-reduced and read outside",
            fixes=(
                f"put its all-reduce into the group, too, and leave out what reads '{op.name}'",
                f"leave '{op.name}' out of the group",
            ),
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


def _differ(a: Op, b: Op, how: str) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_TWO_GROUPS", f"fuse: '{a.name}' and '{b.name}': {how}", line=b.line
    )


def _check_sends(body: Sequence[Op], sends: Sequence[Op]) -> None:
    where = [(_compat.axis_names(op.eqn), tuple(op.eqn.params["perm"])) for op in sends]
    for op, other in zip(sends, where, strict=True):
        if other != where[0]:
            raise _differ(sends[0], op, "they do not send to the same ranks of one axis")
        for reader in body:
            if op.name in reader.inputs:
                raise ScheduleError(
                    "SCHEDULE_WRONG_OPERATION",
                    f"fuse: '{op.name}' is received and then read inside the group",
                    line=op.line,
                    fixes=(f"leave '{reader.name}' out of the group",),
                )


def _check_kernel(
    program: Program, body: Sequence[Op], collectives: Sequence[Op], outputs: Sequence[str]
) -> None:
    types = program.types()
    first = collectives[0]
    for op in collectives:
        _check_collective(op)
        if op.params["axes"] != first.params["axes"] or op.params["dim"] != first.params["dim"]:
            raise _differ(first, op, "they do not slice one dimension over one axis")
    block = _block(first, types)
    for op in collectives:
        if _block(op, types) != block:
            shapes = f"blocks of {block} and of {_block(op, types)}"
            raise _differ(first, op, f"they slice arrays of two shapes, into {shapes}")
    for op in body:
        if op.kind == "own_slice" and op.params["axes"] != first.params["axes"]:
            raise _differ(first, op, "they do not slice over one axis")
    _check_order(program, body, collectives)
    gathered = {out for op in body if op.kind in ("all_gather", "all_reduce") for out in op.outputs}
    for out in outputs:
        if out not in gathered and types[out].shape != block:
            raise ScheduleError(
                "SCHEDULE_TWO_GROUPS",
                f"fuse: '{out}' {type_text(types[out])} is read outside the group, whose kernel "
                f"makes blocks of {block}, and whole arrays only by gathering them",
                fixes=(f"leave '{out}' out of the group",),
            )


def _block(op: Op, types: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a rank's block of a reduce-scatter or an all-gather."""
    if op.kind == "reduce_scatter" or not isinstance(op.inputs[0], str):
        return op.types[0].shape
    return types[op.inputs[0]].shape


def _check_collective(op: Op) -> None:
    if op.kind == "all_reduce":
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"fuse: '{op.name}' is a whole all-reduce",
            line=op.line,
            fixes=(f"split('{op.name}') first",),
        )
    if not op.params:
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"fuse: '{op.name}' does not cut or put together one dimension over one axis",
            line=op.line,
            fixes=("use tiled=True and one axis",),
        )


def _check_order(program: Program, body: Sequence[Op], collectives: Sequence[Op]) -> None:
    """A kernel first reduces what it is given and in the end gathers what others read."""
    made = {out: op for op in body for out in op.outputs}
    for op in collectives:
        inner = made.get(op.inputs[0]) if isinstance(op.inputs[0], str) else None
        if op.kind == "reduce_scatter" and inner is not None:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' reduces '{inner.name}', which is computed inside the group",
                line=op.line,
                fixes=(f"leave '{inner.name}' out of the group",),
            )
        behind = program.reached_from(op.outputs)
        readers = [reader for reader in body if reader.name in behind]
        if op.kind == "all_gather" and readers:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' is gathered and then read inside the group",
                line=op.line,
                fixes=(_before_reading(program, op, readers),),
            )


def _before_reading(program: Program, gather: Op, readers: Sequence[Op]) -> str:
    """What to do about a gather that `readers` in its group depend on."""
    work = [op for op in readers if op.kind != "all_gather"]
    try:
        region_of(program, gather, work[-1])
    except (ScheduleError, IndexError):
        return f"leave '{readers[0].name}' and what reads it out of the group"
    return (
        f"reorder('{gather.name}', after='{work[-1].name}') first, so that '{work[0].name}' runs "
        "on slices"
    )
