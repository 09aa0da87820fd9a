"""reorder: an all-gather moves past the work on what it gathers, which then runs on slices."""

from __future__ import annotations

from dataclasses import replace

from jaxcc.program import Op, Operand, Program, rename
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._broadcast import broadcast_after, moves_broadcast
from jaxcc.schedule.verbs._find import between_names, find, find_kind
from jaxcc.schedule.verbs._groups import dissolved, grouped, parts
from jaxcc.schedule.verbs._sliced_dims import sliced_dims
from jaxcc.schedule.verbs._slicer import Slicer


def reorder[S: Scheduled](schedule: S, gather: str, *, after: str) -> S:
    """Moves the all-gather `gather` past all that lies between it and `after`.

    The operations on the way run on slices: pointwise ones, reductions, changes of shape that keep
    a rank's block together, and sends over another mesh axis. Replicated operands of theirs are
    sliced where they have the gathered dimension, and left whole where they are broadcast over it.
    A reduction along the gathered dimension is followed by an all-reduce, `name.all_reduce`, whose
    result is Replicated; what reads only such results runs whole, as before. A group of work stays
    one. Each sliced value that
    is read elsewhere gets an all-gather; that of `after` keeps the name `gather`, that of another
    value `v` is called `v.gather`.

    A broadcast moves in the same way; what it passes then runs on the root's value, and need not be
    pointwise.

    Args:
      gather: an all-gather, or a broadcast.
      after: an operation that depends on it.

    Rewrite:
      g = all_gather(s) ; norm = reduce_sum(g * g) ; out = f(g, r, norm)
      -->
      norm = reduce_sum(s * s) ; norm.all_reduce = all_reduce(norm)
      r.slice = own_slice(r) ; out = f(s, r.slice, norm.all_reduce) ; g = all_gather(out)

    Raises:
      ScheduleError: `after` does not depend on the gather; or an operation on the way needs more
        than a slice, reads slices of two dimensions, or sends over the gather's own axis.
    """
    if moves_broadcast(schedule.program, gather):
        return schedule.then(Step("reorder", {"gather": gather, "after": after}))
    op = find_kind(schedule.program, gather, "reorder", "all_gather")
    region_of(schedule.program, op, find(schedule.program, after, "reorder"))
    return schedule.then(Step("reorder", {"gather": gather, "after": after}))


def region_of(program: Program, gather: Op, after: Op) -> tuple[list[Op], dict[str, int | None]]:
    """The operations between the gather and `after`, and the dimension along which each value of
    theirs will be sliced, if any.
    """
    between = between_names(program, gather, after)
    region = [part for op in program.ops if op.name in between for part in parts(op)]
    return region, sliced_dims(program, gather, region, after.name)


@rewrite("reorder")
def _apply(program: Program, *, gather: str, after: str) -> Program:
    if moves_broadcast(program, gather):
        return broadcast_after(program, gather, after)
    moved = find_kind(program, gather, "reorder", "all_gather")
    last = find(program, after, "reorder")
    region, dims = region_of(program, moved, last)
    inside = {op.name for op in region}
    groups = {op.name: op for op in program.ops if inside.intersection(p.name for p in op.body)}
    program = dissolved(program, groups.values())
    slicer = Slicer(program, moved, dims)
    sliced_ops = [one for op in region for one in slicer.rewritten(op)]
    outside = [op for op in program.ops if op.name not in inside and op is not moved]
    read_outside = {x for op in outside for x in op.value_inputs()}
    read_outside.update(x for x in program.outputs if isinstance(x, str))
    types = program.types()
    gathers: list[Op] = []
    gathered: dict[str, Operand] = dict(slicer.whole)
    for value, dim in dims.items():
        if value not in read_outside or dim is None:
            continue
        given = moved.inputs[0] if value in moved.outputs else value
        name = (
            gather
            if value == last.outputs[0]
            else program.fresh(f"{given}.gather", moved, *gathers)
        )
        made = replace(moved, name=name, outputs=(name,), types=(types[value],))
        gathers.append(replace(made, inputs=(given,), params={**moved.params, "dim": dim}))
        gathered[value] = name
    ops = [*rename(outside, gathered), *slicer.made, *sliced_ops, *gathers]
    outputs = tuple(gathered.get(x, x) if isinstance(x, str) else x for x in program.outputs)
    program = program.with_ops(_near(ops, program), outputs=outputs)
    for name, group in groups.items():
        names = {part.name for part in group.body}
        program = grouped(program, [op for op in program.ops if op.name in names], name)
    return program


def _near(ops: list[Op], program: Program) -> list[Op]:
    """The operations: those of `program` where they were, new ones before their first reader."""
    place = {op.name: float(index) for index, op in enumerate(program.ops)}
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for x in op.value_inputs():
            readers.setdefault(x, []).append(op)

    def key(op: Op) -> float:
        if op.name in place and op.kind != "all_gather":
            return place[op.name]
        later = [key(reader) for out in op.outputs for reader in readers.get(out, ())]
        return min(later, default=float(len(place))) - 0.5

    return sorted(ops, key=key)
