"""fuse: collectives, sends and work around them become one kernel; work alone one named group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import EllipsisType
from typing import Any

from jaxcc.layout import ScheduleError
from jaxcc.program import COLLECTIVES, MOVES, SEND, Op, Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule._strands import axes_of
from jaxcc.schedule.verbs._find import find
from jaxcc.schedule.verbs._fusable import check_group, is_feeder
from jaxcc.schedule.verbs._groups import dissolved, grouped, parts, read_outside
from jaxcc.schedule.verbs._pointwise import POINTWISE


def fuse[S: Scheduled](schedule: S, *names: str | EllipsisType, name: str) -> S:
    """Makes one operation, `name`, of several.

    With collectives or sends it is one kernel, which reads and writes the arrays of all ranks in
    place: what depends on each other is computed in one loop, and all else in loops of its own, on
    arrays of any shapes and dtypes. Pointwise work alone is a group that XLA fuses by itself, and
    may become part of a larger one.

    A reduce-scatter or all-gather cuts the arrays of its loop along one dimension. Around a whole
    all-reduce the work is on whole arrays that all ranks have alike, of any size. A send
    (`ppermute`) goes over other axes than the collectives: what it sends is stored with the ranks
    that receive it, gathered if it is gathered before or after; where nobody sends, it is zero.

    A kernel's numbers are those of the unfused program: arithmetic is rounded as XLA rounds it,
    other functions are within 4 units in the last place; NaN, infinities and signed zeros are
    XLA's. So a maximum or minimum over ranks leaves NaN out, as `lax.pmax` does, and one along rows
    or of a whole tensor keeps it. Sums of half types over ranks are rounded once. Subnormal
    float32, float64 and bfloat16 numbers count as 0 where a kernel computes, and stay where it only
    selects; XLA does the same, but flushes or keeps a few more of them in some programs.

    Args:
      names: operations; `...` between two stands for all that lies on the way from those before it
        to those after it.
      name: what the result is called.

    Rewrite:
      t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u)
      -->
      name { t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u) }

    Raises:
      ScheduleError: the operations hold collectives over two axes, sends to different ranks, one
        that reads or is read where a kernel cannot, arrays of two shapes or cut in two ways that
        depend on each other, or an operation that is not pointwise; or one outside lies between
        them.
    """
    resolved = _resolve(schedule.program, names)
    return schedule.then(Step("fuse", {"names": resolved, "name": name}))


def _resolve(program: Program, names: Sequence[str | EllipsisType]) -> tuple[str, ...]:
    """The names with each `...` replaced by what lies between."""
    if not names or names[0] is ... or names[-1] is ...:
        raise ScheduleError(
            "SCHEDULE_ARGUMENT",
            "fuse: `...` stands between two names, so it is neither first nor last",
        )
    chosen = {n for n in names if isinstance(n, str)}
    for one in chosen:
        find(program, one, "fuse")
    for index, entry in enumerate(names):
        if entry is not ...:
            continue
        before = [out for n in names[:index] if isinstance(n, str) for out in _outputs(program, n)]
        after = [
            out for n in names[index + 1 :] if isinstance(n, str) for out in _outputs(program, n)
        ]
        chosen |= program.reached_from(before) & program.reaching(after)
    return tuple(op.name for op in program.ops if op.name in chosen)


def _outputs(program: Program, name: str) -> tuple[str, ...]:
    return find(program, name, "fuse").outputs


@rewrite("fuse")
def _apply(program: Program, *, names: Sequence[str], name: str) -> Program:
    group = [find(program, n, "fuse") for n in names]
    program = dissolved(program, group)
    body = _with_feeders(program, {part.name for op in group for part in parts(op)})
    taken = {*program.inputs, *(op.name for op in program.ops if op not in body)}
    if name in taken or not name:
        why = "is taken" if name else "is empty"
        raise ScheduleError("SCHEDULE_ARGUMENT", f"fuse: the name '{name}' {why}")
    check_group(program, body, read_outside(program, body))
    return grouped(program, body, name)


def _with_feeders(program: Program, chosen: set[str]) -> list[Op]:
    """The group and what only it reads, in the program's order."""
    group = [op for op in program.ops if op.name in chosen]
    is_kernel = any(op.kind in COLLECTIVES or op.kind == SEND for op in group)
    axes = axes_of(group) if is_kernel else None
    while more := {op.name for op in program.ops if _feeds(program, op, chosen, axes)}:
        chosen = chosen | more
    return [op for op in program.ops if op.name in chosen]


def _feeds(program: Program, op: Op, chosen: Collection[str], axes: Any) -> bool:
    """Whether the group, a kernel if `axes` are not None, can compute `op` by itself and nothing
    else needs it. Numbers are computed once, outside.
    """
    if op.name in chosen or set(op.outputs) & set(program.outputs):
        return False
    readers = [user for out in op.outputs for user in program.users(out)]
    if any(user.name not in chosen for user in readers):
        return False
    if op.kind == "own_slice":
        return op.params["axes"] == axes
    if op.kind in POINTWISE and axes is not None and op.types[0].shape != ():
        return not any(user.kind in MOVES or user.kind in COLLECTIVES for user in readers)
    return is_feeder(op) and (axes is not None or op.kind == "broadcast_in_dim")
