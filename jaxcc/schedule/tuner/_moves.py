"""The steps that can be taken from a program: what each verb would accept, and what that gives.

A move is offered only if its verb's rewrite carries it out; whether the result is still right is
checked later, for the programs that are worth it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxcc.layout import ScheduleError
from jaxcc.program import CycleError, Op, Program
from jaxcc.schedule._step import REWRITES, Step
from jaxcc.schedule.verbs._pointwise import POINTWISE

# Points past the pointwise ones that a reorder is tried at.
_TRIES = 16

# Of an overlap.
_CHUNKS = 4


class Move(NamedTuple):
    """One step or more, and the program that they lead to."""

    steps: tuple[Step, ...]
    program: Program


def moves(program: Program, slices: Sequence[str]) -> Iterator[Move]:
    """All moves: splits, to a root only where there is no other; reorders to every furthest point;
    `as_slice` of all of `slices` that can be; fusions of all that can be fused with a
    reduce-scatter, or with an all-reduce of what ranks do not divide; and overlaps of a kernel with
    the product that it reduces.
    """
    yield from _splits(program)
    yield from _reorders(program)
    yield from _as_slices(program, slices)
    yield from _fusions(program)
    yield from _overlaps(program)


def take(program: Program, step: Step) -> Program | None:
    """The program after the step; None if the verb refuses it."""
    try:
        return REWRITES[step.verb](program, **step.arguments)
    except (ScheduleError, CycleError):
        return None


def _move(program: Program, step: Step) -> Iterator[Move]:
    after = take(program, step)
    if after is not None:
        yield Move((step,), after)


def _splits(program: Program) -> Iterator[Move]:
    for op in program.ops:
        if op.kind != "all_reduce" or len(op.params["axes"]) != 1:
            continue
        dims = _scattered_dims(program, op)
        for dim in dims:
            yield from _move(program, Step("split", {"name": op.name, "dim": dim}))
        # A root moves as much as a reduce-scatter and does all the work: it is for what cannot be
        # scattered. Of single numbers there is no work to save.
        if op.types[0].shape and not dims:
            arguments = {"name": op.name, "policy": "reduce-broadcast", "root": 0}
            yield from _move(program, Step("split", arguments))


def _scattered_dims(program: Program, op: Op) -> list[int]:
    """The dimensions that a reduce-scatter may cut what an all-reduce over one axis makes along."""
    ranks = program.sizes[op.params["axes"][0]]
    dims = [dim for dim, size in enumerate(op.types[0].shape) if size and size % ranks == 0]
    steps = [Step("split", {"name": op.name, "dim": dim}) for dim in dims]
    return [dim for dim, step in zip(dims, steps, strict=True) if take(program, step) is not None]


def _reorders(program: Program) -> Iterator[Move]:
    for gather in program.ops:
        if gather.kind not in ("all_gather", "broadcast") or not gather.params:
            continue
        for after in _furthest(program, gather):
            step = Step("reorder", {"gather": gather.name, "after": after})
            yield from _move(program, step)


def _furthest(program: Program, gather: Op) -> Iterator[str]:
    """The pointwise operations that no further one follows, then what else a reorder goes past."""
    reached = program.reached_from(gather.outputs)
    whole = gather.types[0].shape
    near, values = list[Op](), set(gather.outputs)
    dependent = {out for op in program.ops if op.name in reached for out in op.outputs}
    for op in program.ops:
        given = dependent.intersection(op.value_inputs()) | values.intersection(op.inputs)
        if given and given <= values and op.kind in POINTWISE and op.types[0].shape == whole:
            near.append(op)
            values.update(op.outputs)
    read = {x for op in near for x in op.value_inputs()}
    ends = [op.name for op in near if not read.intersection(op.outputs)]
    yield from ends
    known = {op.name for op in near}
    passed: set[str] = set()
    far = [op for op in program.ops if op.name in reached - known]
    for op in reversed(far[-_TRIES:]):
        step = Step("reorder", {"gather": gather.name, "after": op.name})
        if op.name not in passed and take(program, step) is not None:
            passed |= program.reaching(op.outputs)
            yield op.name


def _as_slices(program: Program, slices: Sequence[str]) -> Iterator[Move]:
    """One move for all names: state that enters sliced should leave sliced."""
    steps, after = list[Step](), program
    for name in slices:
        step = Step("as_slice", {"name": name})
        done = take(after, step)
        if done is not None:
            steps.append(step)
            after = done
    if steps:
        yield Move(tuple(steps), after)


def _fusions(program: Program) -> Iterator[Move]:
    for root in program.ops:
        whole = root.kind == "all_reduce" and len(root.params["axes"]) == 1
        if whole and (not root.types[0].shape or _scattered_dims(program, root)):
            continue
        if not whole and (root.kind != "reduce_scatter" or not root.params):
            continue
        # The wider one holds reductions, where the verb takes them.
        groups = dict.fromkeys((_group(program, root, POINTWISE), _group(program, root)))
        for names in groups:
            if len(names) > 1:
                step = Step("fuse", {"names": names, "name": program.fresh("fused")})
                yield from _move(program, step)


def _overlaps(program: Program) -> Iterator[Move]:
    for kernel in program.ops:
        if kernel.kind != "fused" or not kernel.has_kernel:
            continue
        for x in kernel.value_inputs():
            product = program.producer(x)
            if product is None or product.kind != "dot_general":
                continue
            names = (product.name, kernel.name)
            arguments = {"names": names, "chunks": _CHUNKS, "name": program.fresh("overlapped")}
            # A group of one could be cut along a dimension that ranks cut.
            made = (
                _move(program, Step("overlap", {**arguments, "dim": dim}))
                for dim in range(len(product.types[0].shape))
            )
            yield from next(filter(None, map(list, made)), [])


def _group(program: Program, root: Op, kinds: frozenset[str] | None = None) -> tuple[str, ...]:
    """The reduce-scatter or all-reduce, work on what it makes, gathers of that, and other ones that
    the work reads.
    """
    like = {key: root.params[key] for key in ("axes", "dim") if key in root.params}
    scatters = {root.name}
    while True:
        inside = _downstream(program, scatters, like, root, kinds)
        read = {x for op in program.ops if op.name in inside for x in op.value_inputs()}
        more = {
            op.name
            for op in program.ops
            if op.kind == root.kind and op.params.items() >= like.items()
            if read.intersection(op.outputs)
        }
        if more <= scatters:
            return tuple(op.name for op in program.ops if op.name in inside)
        scatters |= more


def _downstream(
    program: Program,
    scatters: set[str],
    like: dict[str, object],
    scatter: Op,
    kinds: frozenset[str] | None,
) -> set[str]:
    inside, values = set(scatters), set[str]()
    for op in program.ops:
        if op.name in scatters:
            values.update(op.outputs)
        elif values.intersection(op.inputs):
            if op.kind == "all_gather" and dict(op.params) == like:
                inside.add(op.name)
            elif not op.body and (
                op.kind in kinds and op.types[0].shape == scatter.types[0].shape
                if kinds is not None
                else op.kind not in ("reduce_scatter", "all_gather", "dot_general")
            ):
                inside.add(op.name)
                values.update(op.outputs)
    # What follows an operation outside cannot be inside with what precedes it.
    by_name = {op.name: op for op in program.ops}
    while True:
        outs = [out for name in inside for out in by_name[name].outputs]
        outside = program.reached_from(outs) - inside
        back = program.reached_from(out for name in outside for out in by_name[name].outputs)
        if not inside & back:
            return inside
        inside -= back
