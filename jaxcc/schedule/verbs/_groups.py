"""Fused operations: made of others, and taken apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.program import COLLECTIVES, SEND, Op, Operand, Program
from jaxcc.schedule._strands import axes_of


def collectives_of(body: Sequence[Op]) -> list[Op]:
    """The operations of a group that put together what ranks have."""
    return [op for op in body if op.kind in COLLECTIVES]


def parts(op: Op) -> tuple[Op, ...]:
    """The body of a group that is neither a kernel nor in chunks; else the operation itself."""
    return (op,) if op.has_kernel or op.kind == "overlapped" else op.flat()


def dissolved(program: Program, group: Collection[Op]) -> Program:
    """The program with the parts of those of `group` that are groups of work."""
    ops = [part for op in program.ops for part in (parts(op) if op in group else (op,))]
    return replace(program, ops=tuple(ops))


def read_outside(program: Program, body: Sequence[Op]) -> tuple[str, ...]:
    """The values of `body` that others read or that are results."""
    read = {x for op in program.ops if op not in body for x in op.value_inputs()}
    read.update(x for x in program.outputs if isinstance(x, str))
    return tuple(out for op in body for out in op.outputs if out in read)


def grouped(
    program: Program,
    body: Sequence[Op],
    name: str,
    *,
    kind: str = "fused",
    params: Mapping[str, Any] | None = None,
) -> Program:
    """The program with `body`, operations of it in its order, as one called `name`.

    Args:
      kind: of the one.
      params: its parameters; for None, of a kernel, the axes that it divides its tensors along.

    Raises:
      CycleError: what lies outside depends on the body and the body on it.
    """
    made = {out for op in body for out in op.outputs}
    inputs: list[Operand] = []
    for op in body:
        inputs += [x for x in op.value_inputs() if x not in made and x not in inputs]
    types, outputs = program.types(), read_outside(program, body)
    if params is None:
        is_kernel = any(op.kind in COLLECTIVES or op.kind == SEND for op in body)
        params = {"axes": axes_of(body)} if is_kernel else {}
    fused = Op(
        name=name,
        kind=kind,
        inputs=tuple(inputs),
        outputs=outputs,
        types=tuple(types[out] for out in outputs),
        params=params,
        body=tuple(body),
        line=body[0].line,
    )
    last = max(program.ops.index(op) for op in body)
    head = [op for op in program.ops[: last + 1] if op not in body]
    return program.with_ops([*head, fused, *program.ops[last + 1 :]])
