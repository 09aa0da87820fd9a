"""Whether a rewritten program still computes what it was made from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from jaxcc.program._ir import COLLECTIVES, MOVES, ROOTED, Constant, Op, Operand, Program

_IDENTITIES = COLLECTIVES | MOVES | ROOTED


def computes_the_same(a: Program, b: Program) -> bool:
    """Whether all results of `b` are results of `a`, two programs of a group of one, rewritten from
    one trace.

    On one rank collectives and slices move nothing, so what is left are the same operations on the
    same values, however often each is computed and in whatever order.
    """
    numbers: dict[Hashable, int] = {}
    return _results(b, numbers).items() <= _results(a, numbers).items()


def _results(program: Program, numbers: dict[Hashable, int]) -> dict[int, int]:
    """A number for each leaf of the result; equal expressions have equal numbers."""
    values: dict[str, int] = {
        name: numbers.setdefault(("input", index), len(numbers))
        for index, name in enumerate(program.inputs)
    }
    for op in program.ops:
        for part in op.flat():
            given = tuple(_number(x, values, numbers) for x in part.inputs)
            for index, out in enumerate(part.outputs):
                key = (_operation(part), given, index)
                same = part.kind in _IDENTITIES and part.params
                values[out] = given[0] if same else numbers.setdefault(key, len(numbers))
    return {
        leaf: _number(x, values, numbers)
        for leaf, x in zip(program.results, program.outputs, strict=True)
    }


def _number(x: Operand, values: Mapping[str, int], numbers: dict[Hashable, int]) -> int:
    if isinstance(x, Constant):
        return numbers.setdefault(("constant", id(x.value)), len(numbers))
    return values[x]


def _operation(op: Op) -> Hashable:
    """What the operation does; rewrites keep the equation, but for the shapes that it makes."""
    params: Mapping[str, Any] = op.eqn.params if op.eqn is not None else {}
    if op.kind == "broadcast_in_dim":
        return (op.kind, tuple(params["shape"]), tuple(params["broadcast_dimensions"]))
    if op.kind == "reshape" and params.get("dimensions") is None:
        return (op.kind, tuple(params["new_sizes"]))
    return (op.kind, id(op.eqn))
