"""fuse: collectives and the work on their slices become one kernel; work alone, or with a send, one
named group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

from jaxcc.layout import ScheduleError
from jaxcc.program import MOVES, Op, Operand, Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._find import find
from jaxcc.schedule.verbs._fusable import check_group, collectives_of
from jaxcc.schedule.verbs._pointwise import POINTWISE


def fuse[S: Scheduled](schedule: S, *names: str | EllipsisType, name: str) -> S:
    """Makes one operation, `name`, of several.

    With reduce-scatters and all-gathers it is one kernel; they run over one axis and slice one
    dimension of arrays of one shape. Pointwise work alone is a group that XLA fuses by itself.
    Pointwise work and the sends (`ppermute`) of its results are a group that runs as its parts on
    every backend for now. A group of pointwise work may become part of a larger one.

    Args:
      names: operations; `...` between two stands for all that lies on the way from those before it
        to those after it.
      name: what the result is called.

    Rewrite:
      t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u)
      -->
      name { t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u) }

    Raises:
      ScheduleError: the operations hold collectives of two groups, dimensions or shapes, a send and
        another collective, one that reads or is read where a kernel cannot, or an operation that is
        not pointwise; or one outside lies between them.
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
    program = _dissolved(program, group)
    chosen = {part.name for op in group for part in _parts(op)}
    body = _with_feeders(program, chosen)
    taken = {*program.inputs, *(op.name for op in program.ops if op not in body)}
    if name in taken:
        raise ScheduleError("SCHEDULE_ARGUMENT", f"fuse: the name '{name}' is taken")
    made = {out for op in body for out in op.outputs}
    rest = [op for op in program.ops if op not in body]
    read = {x for op in rest for x in op.value_inputs()} | set(program.outputs)
    types = program.types()
    outputs = tuple(out for op in body for out in op.outputs if out in read)
    check_group(program, body, outputs)
    inputs: list[Operand] = []
    for op in body:
        inputs += [x for x in op.value_inputs() if x not in made and x not in inputs]
    fused = Op(
        name=name,
        kind="fused",
        inputs=tuple(inputs),
        outputs=outputs,
        types=tuple(types[out] for out in outputs),
        params={"axes": collectives_of(body)[0].params["axes"]} if collectives_of(body) else {},
        body=tuple(body),
        line=body[0].line,
    )
    last = max(program.ops.index(op) for op in body)
    head = [op for op in program.ops[: last + 1] if op not in body]
    return program.with_ops([*head, fused, *program.ops[last + 1 :]])


def _parts(op: Op) -> tuple[Op, ...]:
    """The body of a group that is no kernel; else the operation itself."""
    return (op,) if op.has_collective else op.flat()


def _dissolved(program: Program, group: Sequence[Op]) -> Program:
    """The program with the parts of those of `group` that are groups of work."""
    ops = [part for op in program.ops for part in (_parts(op) if op in group else (op,))]
    return replace(program, ops=tuple(ops))


def _with_feeders(program: Program, chosen: set[str]) -> list[Op]:
    """The group and what only it reads, in the program's order."""
    collectives = collectives_of([op for op in program.ops if op.name in chosen])
    axes = collectives[0].params.get("axes") if collectives else None
    while more := {op.name for op in program.ops if _feeds(program, op, chosen, axes)}:
        chosen = chosen | more
    return [op for op in program.ops if op.name in chosen]


def _feeds(program: Program, op: Op, chosen: Collection[str], axes: Any) -> bool:
    """Whether the group, a kernel if it has `axes`, can compute `op` by itself and nothing else
    needs it. Numbers are computed once, outside.
    """
    if op.name in chosen or set(op.outputs) & set(program.outputs):
        return False
    readers = [user for out in op.outputs for user in program.users(out)]
    if any(user.name not in chosen for user in readers):
        return False
    if op.kind == "own_slice":
        return op.params["axes"] == axes
    if op.kind in POINTWISE and axes is not None and op.types[0].shape != ():
        return not any(user.kind in MOVES for user in readers)
    return op.kind == "broadcast_in_dim"
