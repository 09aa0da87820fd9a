"""Operations rewritten to run on this rank's block of a gathered dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from jaxcc.program import Op, Operand, Program, operand_type, rename
from jaxcc.schedule.verbs._pointwise import POINTWISE
from jaxcc.schedule.verbs._resized import resized
from jaxcc.schedule.verbs._sliced_dims import REDUCTIONS


class Slicer:
    """Rewrites what lies behind an all-gather to run on what it gathers.

    Attributes:
      made: new operations that take slices of whole values.
      whole: for each value that a reduction of slices leaves, the all-reduced one.
    """

    def __init__(self, program: Program, gather: Op, dims: Mapping[str, int | None]) -> None:
        self.made: list[Op] = []
        self.whole: dict[str, Operand] = {}
        self._program = program
        self._dims = dims
        self._types = program.types()
        self._gathered = {gather.outputs[0]: gather.inputs[0]}
        self._axes: tuple[str] = gather.params["axes"]
        self._ranks = program.sizes[self._axes[0]]
        self._blocks: dict[tuple[Any, int], Operand] = {}

    def rewritten(self, op: Op) -> list[Op]:
        """The operation on slices, with the all-reduce that it then needs; one that reads no slice
        stays as it is.
        """
        sliced = next((x for x in op.value_inputs() if self._dims.get(x) is not None), None)
        if sliced is None:
            return rename([op], self.whole)
        dim = self._dims[op.outputs[0]]
        if op.kind in POINTWISE:
            assert dim is not None
            return [self._pointwise(op, dim)]
        given = (self._gathered.get(sliced, sliced),)
        if dim is None:
            return self._reduced(replace(op, inputs=given))
        return [self._narrow(replace(op, inputs=given), dim)]

    def _pointwise(self, op: Op, dim: int) -> Op:
        full = op.types[0].shape[dim]
        return self._narrow(
            replace(op, inputs=tuple(self._block(x, dim, full) for x in op.inputs)), dim
        )

    def _narrow(self, op: Op, dim: int) -> Op:
        """The operation on this rank's block along `dim`."""
        return resized(op, dim, op.types[0].shape[dim] // self._ranks)

    def _reduced(self, op: Op) -> list[Op]:
        name = self._program.fresh(f"{op.name}.all_reduce", *self.made)
        params = {"axes": self._axes, "op": REDUCTIONS[op.kind]}
        self.whole[op.outputs[0]] = name
        finished = replace(
            op, name=name, kind="all_reduce", inputs=op.outputs, outputs=(name,), params=params
        )
        return [op, finished]

    def _block(self, x: Operand, dim: int, full: int) -> Operand:
        """This rank's block of `x` along `dim`, of size `full`; all of `x` where it has no such
        dimension, or one that is broadcast.
        """
        if isinstance(x, str) and self._dims.get(x) is not None:
            return self._gathered.get(x, x)
        shape = operand_type(x, self._types).shape
        if len(shape) <= dim or shape[dim] != full:
            return self._all_of(x)
        key = (x if isinstance(x, str) else id(x.value), dim)
        if key not in self._blocks:
            self._blocks[key] = self._slice(x, dim)
        return self._blocks[key]

    def _slice(self, x: Operand, dim: int) -> Operand:
        producer = self._program.producer(x) if isinstance(x, str) else None
        params = {"axes": self._axes, "dim": dim}
        if producer is not None and producer.kind == "all_gather" and producer.params == params:
            return producer.inputs[0]
        if producer is not None and producer.kind == "broadcast_in_dim":
            return self._make(self._broadcast(producer, dim), producer.name)
        if producer is not None and producer.kind in POINTWISE:
            # Slicing what it reads instead lets `as_slice` keep that sliced.
            return self._make(self._pointwise(producer, dim), producer.name)
        stem = x if isinstance(x, str) else "const"
        block = self._cut(operand_type(x, self._types), dim)
        return self._make(
            Op(stem, "own_slice", (self._all_of(x),), (), (block,), params=params), stem
        )

    def _broadcast(self, op: Op, dim: int) -> Op:
        """A broadcast makes the block by itself, from a block of its operand if that has the
        dimension.
        """
        (given,) = op.inputs
        dims: tuple[int, ...] = op.eqn.params["broadcast_dimensions"]
        if dim in dims:
            given = self._block(given, dims.index(dim), op.types[0].shape[dim])
        return self._narrow(replace(op, inputs=(self._all_of(given),)), dim)

    def _all_of(self, x: Operand) -> Operand:
        return self.whole.get(x, x) if isinstance(x, str) else x

    def _make(self, op: Op, stem: str) -> Operand:
        name = self._program.fresh(f"{stem}.slice", *self.made)
        self.made.append(replace(op, name=name, outputs=(name,)))
        return name

    def _cut(self, whole: jax.ShapeDtypeStruct, dim: int) -> jax.ShapeDtypeStruct:
        shape = list(whole.shape)
        shape[dim] //= self._ranks
        return jax.ShapeDtypeStruct(tuple(shape), whole.dtype)
