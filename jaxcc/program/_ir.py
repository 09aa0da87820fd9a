"""The program that schedules rewrite: named operations over named values, immutable.

Names, not objects, refer to values, so that one list of steps applies to the same function traced
at any group size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from jaxcc import _compat
from jaxcc.layout import LayoutMap

COLLECTIVES = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
"""The kinds of operation that communicate and that schedules understand."""

MOVES = frozenset({"reduce_scatter", "own_slice", "all_gather"})
"""The kinds that go from whole arrays to blocks, or back."""

ROOTED = frozenset({"reduce", "broadcast"})
"""The kinds that go from all ranks to one, the root, or back; `params` tell them from primitives of
JAX with these names."""


SEND = "ppermute"
"""The kind that hands each rank's value to another rank."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A literal or captured array as an operand."""

    value: Any

    def __str__(self) -> str:
        shape = getattr(self.value, "shape", ())
        if shape:
            return f"const[{','.join(map(str, shape))}]"
        return f"{self.value}"


Operand = str | Constant


def operand_type(x: Operand, types: Mapping[str, jax.ShapeDtypeStruct]) -> jax.ShapeDtypeStruct:
    """Per-rank shape and dtype of an operand; `types` has those of values."""
    if isinstance(x, str):
        return types[x]
    return jax.ShapeDtypeStruct(np.shape(x.value), np.result_type(x.value))


@dataclass(frozen=True, eq=False)
class Op:
    """One operation.

    Attributes:
      name: unique in its program; also the name of its value if it has one.
      kind: `all_reduce`, `reduce_scatter`, `all_gather`, `own_slice`, `reduce`, `broadcast`,
        `fused`, `overlapped`, or the name of a JAX primitive.
      inputs: operands in order.
      outputs: the values that it defines.
      types: per-rank shape and dtype of each output.
      params: `axes`, `op`, `dim` and `root` of operations with one of our own kinds; of an
        overlapped one `chunks`, and `dims`: the dimension that each value inside is cut along.
      eqn: the JAX equation that it comes from.
      body: the operations of a `fused` one; of an `overlapped` one also fused ones.
      line: the user's line.
    """

    name: str
    kind: str
    inputs: tuple[Operand, ...]
    outputs: tuple[str, ...]
    types: tuple[jax.ShapeDtypeStruct, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    eqn: Any = None
    body: tuple[Op, ...] = ()
    line: _compat.SourceLine | None = None

    @property
    def has_inner_jaxprs(self) -> bool:
        """Whether it is a loop, a branch, or another operation that holds a program."""
        return self.eqn is not None and any(True for _ in _compat.inner_jaxprs(self.eqn))

    @property
    def has_kernel(self) -> bool:
        """Whether a `fused` operation holds a collective or a send, so that it is a kernel of its
        own; or an overlapped one holds such a kernel.
        """
        if self.kind != "fused":
            return any(part.has_kernel for part in self.body)
        return any(part.kind in COLLECTIVES or part.kind == SEND for part in self.body)

    def value_inputs(self) -> Iterator[str]:
        """The operands that are values, not constants."""
        return (x for x in self.inputs if isinstance(x, str))

    def flat(self) -> tuple[Op, ...]:
        """Itself, or the operations of its body, those of groups in it included."""
        return tuple(leaf for part in self.body for leaf in part.flat()) or (self,)


@dataclass(frozen=True, eq=False)
class Program:
    """A per-rank function as a list of operations, for one set of group sizes.

    Attributes:
      name: the function's name.
      mesh: the mesh that it was traced over; the bodies of loops run over no other.
      inputs: a name per leaf of the arguments.
      in_types: per-rank shape and dtype of each.
      in_layouts: layout of each.
      ops: in an order in which they can run.
      outputs: a value or constant per leaf of the result.
      out_layouts: layout of each.
      out_tree: structure of the result; None where a leaf is not returned.
      results: for each output, which leaf of the function's result it is.
    """

    name: str
    mesh: AbstractMesh
    inputs: tuple[str, ...]
    in_types: tuple[jax.ShapeDtypeStruct, ...]
    in_layouts: tuple[LayoutMap, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Operand, ...]
    out_layouts: tuple[LayoutMap, ...]
    out_tree: Any
    results: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each mesh axis."""
        return dict(self.mesh.shape)

    def types(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Per-rank shape and dtype of every value, those inside fused operations included."""
        out = dict(zip(self.inputs, self.in_types, strict=True))
        for op in self.ops:
            for part in op.flat():
                out.update(zip(part.outputs, part.types, strict=True))
            out.update(zip(op.outputs, op.types, strict=True))
        return out

    def out_types(self) -> list[jax.ShapeDtypeStruct]:
        """Per-rank shape and dtype of each leaf of the result."""
        types = self.types()
        return [operand_type(x, types) for x in self.outputs]

    def fresh(self, stem: str, *taken: Op) -> str:
        """A name like `stem` that nothing in the program has, nor any of the operations `taken`."""
        names = {*self.inputs, *self.types(), *(op.name for op in (*self.ops, *taken))}
        names.update(out for op in taken for out in op.outputs)
        name, count = stem, 0
        while name in names:
            count += 1
            name = f"{stem}_{count}"
        return name

    def users(self, value: str) -> list[Op]:
        """The operations that read a value."""
        return [op for op in self.ops if value in op.inputs]

    def producer(self, value: str) -> Op | None:
        """The operation that defines a value; None for an input."""
        return next((op for op in self.ops if value in op.outputs), None)

    def reached_from(self, values: Iterable[str]) -> set[str]:
        """Names of the operations that depend on any of the values."""
        known, reached = set(values), set[str]()
        for op in self.ops:
            if known.intersection(op.inputs):
                reached.add(op.name)
                known.update(op.outputs)
        return reached

    def reaching(self, values: Iterable[str]) -> set[str]:
        """Names of the operations that any of the values depends on."""
        producers = {out: op for op in self.ops for out in op.outputs}
        waiting, reaching = list(values), set[str]()
        while waiting:
            op = producers.get(waiting.pop())
            if op is not None and op.name not in reaching:
                reaching.add(op.name)
                waiting.extend(op.value_inputs())
        return reaching

    def with_instead(self, op: Op, made: Sequence[Op]) -> Program:
        """The program with `made` in the place of `op`; the last one's value takes its value's."""
        (old,), (new,) = op.outputs, made[-1].outputs
        index = self.ops.index(op)
        after = rename(self.ops[index + 1 :], {old: new})
        outputs = tuple(new if x == old else x for x in self.outputs)
        return self.with_ops([*self.ops[:index], *made, *after], outputs=outputs)

    def with_ops(self, ops: Iterable[Op], **changes: Any) -> Program:
        """The program with these operations, sorted so that they can run, less those that nobody
        reads.
        """
        program = replace(self, ops=tuple(ops), **changes)
        defined = [out for op in program.ops for out in op.outputs]
        assert len(defined) == len(set(defined)), f"two values have one name: {sorted(defined)}"
        live = program.reaching(x for x in program.outputs if isinstance(x, str))
        return replace(program, ops=_in_order(program, live))


def _in_order(program: Program, live: set[str]) -> tuple[Op, ...]:
    """The live operations, each after those it reads, otherwise in the order that they had."""
    waiting = [op for op in program.ops if op.name in live]
    known, done = set(program.inputs), list[Op]()
    while waiting:
        ready = next((op for op in waiting if known.issuperset(op.value_inputs())), None)
        if ready is None:
            raise CycleError([op.name for op in waiting])
        waiting.remove(ready)
        known.update(ready.outputs)
        done.append(ready)
    return tuple(done)


class CycleError(Exception):
    """Operations that wait for one another; a verb turns it into a `ScheduleError`."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        super().__init__(", ".join(names))


def rename(ops: Iterable[Op], mapping: Mapping[str, Operand]) -> list[Op]:
    """The operations with operands replaced, in their bodies too; the names of results stay."""
    return [
        replace(
            op,
            inputs=tuple(mapping.get(x, x) if isinstance(x, str) else x for x in op.inputs),
            body=tuple(rename(op.body, mapping)),
        )
        for op in ops
    ]
