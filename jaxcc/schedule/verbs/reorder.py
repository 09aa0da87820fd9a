"""reorder: an all-gather moves past pointwise work, which then runs on slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxcc.layout import ScheduleError
from jaxcc.program import Op, Operand, Program, rename
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._broadcast import broadcast_after, moves_broadcast
from jaxcc.schedule.verbs._find import find, find_kind
from jaxcc.schedule.verbs._pointwise import POINTWISE


def reorder[S: Scheduled](schedule: S, gather: str, *, after: str) -> S:
    """Moves the all-gather `gather` past all that lies between it and `after`.

    The operations on the way run on slices. Replicated operands of theirs are sliced where they
    have the gathered dimension, and left whole where they are broadcast over it. Each value that is
    read elsewhere gets an all-gather; that of `after` keeps the name `gather`, that of another
    value `v` is called `v.gather`.

    A broadcast moves in the same way; what it passes then runs on the root's value, and need not be
    pointwise.

    Args:
      gather: an all-gather, or a broadcast.
      after: a pointwise operation that depends on it.

    Rewrite:
      g = all_gather(s) ; out = f(g, r)
      -->
      r.slice = own_slice(r) ; out = f(s, r.slice) ; g = all_gather(out)

    Raises:
      ScheduleError: `after` does not depend on the gather, or an operation on the way is not
        pointwise.
    """
    if moves_broadcast(schedule.program, gather):
        return schedule.then(Step("reorder", {"gather": gather, "after": after}))
    op = find_kind(schedule.program, gather, "reorder", "all_gather")
    _check(schedule.program, op, find(schedule.program, after, "reorder"))
    return schedule.then(Step("reorder", {"gather": gather, "after": after}))


def _check(program: Program, gather: Op, after: Op) -> list[Op]:
    """The operations between the gather and `after`, which must all be pointwise on the gathered
    shape.
    """
    between = program.reached_from(gather.outputs) & program.reaching(after.outputs)
    if after.name not in between:
        raise ScheduleError(
            "SCHEDULE_NOT_DEPENDENT",
            f"reorder: '{after.name}' does not depend on '{gather.name}'",
            line=after.line,
        )
    region = [op for op in program.ops if op.name in between]
    for op in region:
        if op.kind not in POINTWISE or op.types[0].shape != gather.types[0].shape:
            raise ScheduleError(
                "SCHEDULE_NOT_POINTWISE",
                f"reorder: '{op.name}' ({op.kind}) lies between '{gather.name}' and '{after.name}' "
                "but does not treat every element by itself",
                line=op.line,
                because="on a slice it would see a part of what it needs",
                fixes=(f"reorder '{gather.name}' only up to what comes before '{op.name}'",),
            )
    return region


@rewrite("reorder")
def _apply(program: Program, *, gather: str, after: str) -> Program:
    if moves_broadcast(program, gather):
        return broadcast_after(program, gather, after)
    moved = find_kind(program, gather, "reorder", "all_gather")
    region = _check(program, moved, find(program, after, "reorder"))
    inside = {op.name for op in region}
    slicer = _Slicer(program, moved, inside)
    sliced_ops = [slicer.on_slices(op) for op in region]
    outside = [op for op in program.ops if op.name not in inside and op is not moved]
    read_outside = {x for op in outside for x in op.value_inputs()}
    read_outside.update(x for x in program.outputs if isinstance(x, str))
    gathers: list[Op] = []
    gathered: dict[str, Operand] = {}
    for value in (*moved.outputs, *(out for op in region for out in op.outputs)):
        if value not in read_outside:
            continue
        given = moved.inputs[0] if value in moved.outputs else value
        name = gather if value == after else program.fresh(f"{given}.gather", moved, *gathers)
        gathers.append(
            replace(
                moved,
                name=name,
                inputs=(given,),
                outputs=(name,),
                types=_whole_type(program, value),
            )
        )
        gathered[value] = name
    ops = [*rename(outside, gathered), *slicer.made, *sliced_ops, *gathers]
    outputs = tuple(gathered.get(x, x) if isinstance(x, str) else x for x in program.outputs)
    return program.with_ops(_near(ops, program), outputs=outputs)


def _whole_type(program: Program, value: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (program.types()[value],)


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


class _Slicer:
    """Rewrites operations to run on this rank's block of the gathered dimension."""

    def __init__(self, program: Program, gather: Op, inside: set[str]) -> None:
        self.program = program
        self.inside = inside
        self.types = program.types()
        self.source = gather
        self.dim: int = gather.params["dim"]
        self.ranks = program.sizes[gather.params["axes"][0]]
        self.made: list[Op] = []
        self.known: dict[Any, Operand] = {gather.outputs[0]: gather.inputs[0]}

    def on_slices(self, op: Op) -> Op:
        """The operation with its operands and results sliced."""
        inputs = tuple(self._operand(x) for x in op.inputs)
        return replace(op, inputs=inputs, types=tuple(self._sliced(t) for t in op.types))

    def _sliced(self, whole: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shape = list(whole.shape)
        shape[self.dim] //= self.ranks
        return jax.ShapeDtypeStruct(shape, whole.dtype)

    def _operand(self, x: Operand) -> Operand:
        if isinstance(x, str):
            producer = self.program.producer(x)
            if producer is not None and producer.name in self.inside:
                return x
        shape = self._type(x).shape
        # A dimension of size 1 is broadcast; only a whole one has blocks.
        if len(shape) <= self.dim or shape[self.dim] != self.source.types[0].shape[self.dim]:
            return x
        key = x if isinstance(x, str) else id(x.value)
        if key not in self.known:
            self.known[key] = self._slice(x)
        return self.known[key]

    def _type(self, x: Operand) -> jax.ShapeDtypeStruct:
        if isinstance(x, str):
            return self.types[x]
        return jax.ShapeDtypeStruct(np.shape(x.value), np.result_type(x.value))

    def _slice(self, x: Operand) -> Operand:
        producer = self.program.producer(x) if isinstance(x, str) else None
        same = {"axes": self.source.params["axes"], "dim": self.dim}
        if producer is not None and producer.kind == "all_gather" and producer.params == same:
            return producer.inputs[0]
        if producer is not None and producer.kind == "broadcast_in_dim":
            return self._broadcast(producer)
        if producer is not None and producer.kind in POINTWISE:
            # Slicing what it reads instead lets `as_slice` keep that sliced.
            return self._make(replace(self.on_slices(producer), name=f"{producer.name}.slice"))
        stem = x if isinstance(x, str) else "const"
        block = self._sliced(self._type(x))
        return self._make(Op(f"{stem}.slice", "own_slice", (x,), (), (block,), params=same))

    def _broadcast(self, op: Op) -> Operand:
        """A broadcast makes the block by itself, from a block of its operand if that has the
        dimension.
        """
        narrow = self._sliced(op.types[0])
        eqn = op.eqn.replace(params={**op.eqn.params, "shape": tuple(narrow.shape)})
        (given,) = op.inputs
        dims: tuple[int, ...] = op.eqn.params["broadcast_dimensions"]
        if self.dim in dims:
            given = self._block_of(given, dims.index(self.dim))
        return self._make(
            replace(op, name=f"{op.name}.slice", inputs=(given,), types=(narrow,), eqn=eqn)
        )

    def _block_of(self, given: Operand, dim: int) -> Operand:
        whole = self._type(given)
        shape = list(whole.shape)
        if shape[dim] != self.source.types[0].shape[self.dim]:
            return given
        shape[dim] //= self.ranks
        block = jax.ShapeDtypeStruct(shape, whole.dtype)
        params = {"axes": self.source.params["axes"], "dim": dim}
        stem = given if isinstance(given, str) else "const"
        return self._make(Op(f"{stem}.slice", "own_slice", (given,), (), (block,), params=params))

    def _make(self, op: Op) -> Operand:
        name = self.program.fresh(op.name, *self.made)
        self.made.append(replace(op, name=name, outputs=(name,)))
        return name
