"""A program as it runs: every overlapped operation as its parts, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from jaxcc.layout import LayoutMap
from jaxcc.program import Constant, Op, Operand, Program, operand_type, rename
from jaxcc.schedule.verbs._chunks import bounds, dim_of_operand, on_chunk

Layouts = Mapping[str, LayoutMap | str]


def in_chunks(program: Program, layouts: Layouts) -> tuple[Program, Layouts]:
    """The program with the parts of each overlapped operation once for each chunk, between `chunk`
    operations, which cut what they read, and `join` ones, which put together what others read; and
    the layouts of its values.
    """
    if not any(op.kind == "overlapped" for op in program.ops):
        return program, layouts
    known = dict(layouts)
    ops: list[Op] = []
    for op in program.ops:
        ops += _Chunks(program, op, known, ops).made if op.kind == "overlapped" else [op]
    return replace(program, ops=tuple(ops)), known


class _Chunks:
    """The operations of one overlapped operation."""

    def __init__(
        self, program: Program, op: Op, layouts: dict[str, LayoutMap | str], before: list[Op]
    ) -> None:
        self.made: list[Op] = []
        self._program = program
        self._before = before
        self._types = program.types()
        self._layouts = layouts
        self._dims: Mapping[str, int] = op.params["dims"]
        chunks: int = op.params["chunks"]
        pieces = [self._chunk(op, k, chunks) for k in range(chunks)]
        for out, t in zip(op.outputs, op.types, strict=True):
            inputs = tuple(piece[out] for piece in pieces)
            params = {"dim": self._dims[out]}
            self.made.append(Op(out, "join", inputs, (out,), (t,), params=params, line=op.line))

    def _chunk(self, op: Op, k: int, chunks: int) -> dict[str, str]:
        """Adds chunk `k`; the name of each value's piece."""
        names: dict[str, str] = {}
        for part in op.body:
            self.made.append(self._part(part, k, chunks, names))
        return names

    def _part(self, part: Op, k: int, chunks: int, names: dict[str, str]) -> Op:
        body: list[Op] = []
        reads: dict[str, Operand] = {}
        for leaf in part.flat():
            inputs = tuple(
                self._operand(leaf, index, k, chunks, names) for index in range(len(leaf.inputs))
            )
            reads.update(
                (old, new)
                for old, new in zip(leaf.inputs, inputs, strict=True)
                if isinstance(old, str)
            )
            body.append(self._leaf(leaf, inputs, k, chunks, names))
        if not part.body:
            return body[0]
        types = {out: t for leaf in body for out, t in zip(leaf.outputs, leaf.types, strict=True)}
        (renamed,) = rename([replace(part, body=())], reads)
        outputs = tuple(names[out] for out in part.outputs)
        return replace(
            renamed,
            name=self._fresh(part.name, k),
            outputs=outputs,
            types=tuple(types[out] for out in outputs),
            body=tuple(body),
        )

    def _leaf(
        self, leaf: Op, inputs: tuple[Operand, ...], k: int, chunks: int, names: dict[str, str]
    ) -> Op:
        dim = self._dims.get(leaf.outputs[0])
        if dim is not None:
            leaf = on_chunk(leaf, dim, *bounds(leaf.types[0].shape[dim], chunks)[k])
        for out in leaf.outputs:
            names[out] = self._fresh(out, k)
            if out in self._layouts:
                self._layouts[names[out]] = self._layouts[out]
        outputs = tuple(names[out] for out in leaf.outputs)
        return replace(leaf, name=outputs[0], inputs=inputs, outputs=outputs)

    def _operand(
        self, leaf: Op, index: int, k: int, chunks: int, names: Mapping[str, str]
    ) -> Operand:
        x = leaf.inputs[index]
        if isinstance(x, str) and x in names:
            return names[x]
        out = self._dims.get(leaf.outputs[0])
        dim = None if out is None else dim_of_operand(leaf, index, out, self._types)
        if dim is None:
            return x
        whole = operand_type(x, self._types)
        start, stop = bounds(whole.shape[dim], chunks)[k]
        if isinstance(x, Constant):
            return Constant(x.value[(*(slice(None),) * dim, slice(start, stop))])
        return self._cut(x, whole, dim, start, stop, k)

    def _cut(
        self, x: str, whole: jax.ShapeDtypeStruct, dim: int, start: int, stop: int, k: int
    ) -> str:
        params: dict[str, Any] = {"dim": dim, "start": start, "stop": stop}
        for op in self.made:
            if op.kind == "chunk" and op.inputs == (x,) and op.params == params:
                return op.name
        shape = (*whole.shape[:dim], stop - start, *whole.shape[dim + 1 :])
        name = self._fresh(x, k)
        t = jax.ShapeDtypeStruct(shape, whole.dtype)
        self.made.append(Op(name, "chunk", (x,), (name,), (t,), params=params))
        if x in self._layouts:
            self._layouts[name] = self._layouts[x]
        return name

    def _fresh(self, stem: str, k: int) -> str:
        return self._program.fresh(f"{stem}.{k}", *self._before, *self.made)
