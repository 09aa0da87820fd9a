"""Cuts operations along one dimension: which dimension of each value, and the operations on one
chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax

from jaxcc.program import Op, Operand, operand_type
from jaxcc.schedule.verbs._pointwise import POINTWISE
from jaxcc.schedule.verbs._resized import resized

Types = Mapping[str, jax.ShapeDtypeStruct]

_ALONG = frozenset({"all_reduce", "ppermute"})
_ACROSS = frozenset({"reduce_scatter", "all_gather", "own_slice"})
COUNTED = frozenset({"random_bits", "iota"})
"""The kinds that make an element from its place in the whole array."""


class CannotCut(Exception):
    """An operation that cannot run on a chunk, and why."""

    def __init__(self, op: Op, why: str) -> None:
        super().__init__(f"'{op.name}' ({op.kind}) {why}")
        self.op = op


def chunk_dims(body: Sequence[Op], types: Types, value: str, dim: int) -> dict[str, int]:
    """The dimension along which each value that `body` makes is cut.

    Args:
      body: operations, none of them a group, in an order in which they can run.
      types: of all values.
      value: made by one of them, and cut along `dim`.

    Raises:
      CannotCut: an operation needs more than a chunk, or a value is not cut.
    """
    made = {out for op in body for out in op.outputs}
    dims = {value: dim}
    before = -1
    while before != len(dims):
        before = len(dims)
        for op in body:
            _spread(op, dims, types, made)
    for op in body:
        for index, x in enumerate(op.inputs):
            _check_use(op, index, x, dims, made, types)
    return dims


def _spread(op: Op, dims: dict[str, int], types: Types, made: set[str]) -> None:
    """Adds what the operation says about values that it reads from what it makes, or the other
    way.
    """
    out = op.outputs[0]
    if out not in dims:
        for index, x in enumerate(op.inputs):
            if isinstance(x, str) and x in dims:
                after = _after(op, index, dims[x], types)
                if after is None:
                    raise CannotCut(op, f"needs all of dimension {dims[x]} of '{x}'")
                dims[out] = after
                break
    if out in dims:
        for index, x in enumerate(op.inputs):
            before = dim_of_operand(op, index, dims[out], types)
            if isinstance(x, str) and x in made and before is not None:
                dims.setdefault(x, before)


def _check_use(
    op: Op, index: int, x: Operand, dims: Mapping[str, int], made: set[str], types: Types
) -> None:
    out = op.outputs[0]
    if out not in dims:
        if isinstance(x, str) and x in dims:
            raise CannotCut(op, f"needs all of '{x}'")
        if op.kind not in POINTWISE | {"broadcast_in_dim", "own_slice"} | COUNTED:
            raise CannotCut(op, "does not read what is cut")
        return
    wanted = dim_of_operand(op, index, dims[out], types)
    if isinstance(x, str) and x in made and dims.get(x) != wanted:
        raise CannotCut(op, f"does not read '{x}' along the dimension that it is cut along")


def dim_of_operand(op: Op, index: int, dim: int, types: Types) -> int | None:
    """The dimension along which the operation reads an operand where its result is cut along `dim`;
    None if it reads all of it.

    Raises:
      CannotCut: it cannot make a part of its result.
    """
    given = operand_type(op.inputs[index], types).shape
    if op.kind in POINTWISE or op.kind in _ALONG or op.kind in _ACROSS:
        if op.kind in _ACROSS and op.params.get("dim", dim) == dim:
            raise CannotCut(op, f"cuts or puts together dimension {dim} over its ranks")
        same = len(given) > dim and given[dim] == op.types[0].shape[dim]
        return dim if same else None
    if op.kind == "dot_general":
        return _product_sides(op, types)[dim][index]
    if op.kind == "broadcast_in_dim":
        dims: tuple[int, ...] = op.eqn.params["broadcast_dimensions"]
        same = dim in dims and given[dims.index(dim)] == op.types[0].shape[dim]
        return dims.index(dim) if same else None
    if op.kind == "transpose":
        return op.eqn.params["permutation"][dim]
    if op.kind in COUNTED:
        return None
    raise CannotCut(op, "is not known to run on a part of its result")


def _product_sides(op: Op, types: Types) -> list[tuple[int | None, int | None]]:
    """For each dimension of a product's result the one of each operand that it comes from."""
    contracting, (left, right) = op.eqn.params["dimension_numbers"]
    sides: list[tuple[int | None, int | None]] = list(zip(left, right, strict=True))
    for side, (summed, batch) in enumerate(zip(contracting, (left, right), strict=True)):
        for d in range(len(operand_type(op.inputs[side], types).shape)):
            if d not in summed and d not in batch:
                sides.append((d, None) if side == 0 else (None, d))
    return sides


def _after(op: Op, index: int, dim: int, types: Types) -> int | None:
    """The dimension of the result that an operand's comes out as; None if there is none."""
    if op.kind in _ACROSS:
        return dim_of_operand(op, index, dim, types)
    shape = op.types[0].shape
    return next((d for d in range(len(shape)) if dim_of_operand(op, index, d, types) == dim), None)


def bounds(size: int, chunks: int) -> list[tuple[int, int]]:
    """Start and stop of each of `chunks` pieces of `size`, which differ by one at most."""
    ends = [k * size // chunks for k in range(chunks + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def on_chunk(op: Op, dim: int, start: int, stop: int) -> Op:
    """The operation that makes elements `start` to `stop` along `dim` of its result."""
    made = resized(op, dim, stop - start)
    return replace(made, params={"cut": (dim, start)}) if op.kind in COUNTED else made
