"""What a strand reads from outside, and what it computes per element of whole arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcc import _compat
from jaxcc.codegen import Role
from jaxcc.layout import CodegenError, LayoutMap, Replicated
from jaxcc.program import COLLECTIVES, MOVES, SEND, Constant, Op, Operand, apply_op
from jaxcc.schedule._strands import Strand, block_of, shapes_of

# Of a key that `counts_bits`.
_WORDS = (0, 1)


@dataclass(frozen=True)
class KernelInput:
    """One buffer that the kernel reads: a value (or captured array), and in which role; of a
    random key one of its words.
    """

    value: Operand
    role: Role
    type: jax.ShapeDtypeStruct
    word: int | None = None


class Reads:
    """What a strand reads from outside: one kernel input per value and role, scalars first."""

    def __init__(
        self,
        types: Mapping[str, jax.ShapeDtypeStruct],
        strand: Strand,
        layouts: Mapping[str, LayoutMap | str],
        axes: tuple[str, ...],
        ranks: int,
        per_tensor: Collection[str] = (),
    ) -> None:
        self.axes = axes
        self.per_tensor = per_tensor
        self.strand = strand
        self.layouts = layouts
        self.types = types
        self.ranks = ranks
        self.sliced = bool(strand.moves)
        if self.sliced:
            self.block, self.dim = block_of(strand, types)
            self.whole = self._widened(self.block)
        else:
            (self.whole,) = shapes_of(strand, types)
            self.block, self.dim = self.whole, 0
        found: dict[Hashable, KernelInput] = {}
        for part in strand.body:
            for x in part.inputs:
                if x not in strand.made and (not _is_literal(x) or "cut" in part.params):
                    found.update(self._inputs(x, part))
        ordered = sorted(found, key=lambda key: found[key].role != Role.SCALAR)
        self.inputs = tuple(found[key] for key in ordered)
        self._index = {key: i for i, key in enumerate(ordered)}

    def elementwise(self, *given: Any) -> list[Any]:
        """The strand's work on whole arrays; moving data is the kernel's own business."""
        values: dict[str, Any] = {}
        for part in self.strand.body:
            arguments = [self._read(x, part, values, given) for x in part.inputs]
            if part.kind in COLLECTIVES or part.kind in (*MOVES, SEND):
                results = arguments
            elif part.kind == "broadcast_in_dim" and self.sliced:
                results = [self._broadcast(part, arguments[0])]
            elif part.kind == "random_bits":
                places = self._places(part, given)
                width = part.eqn.params["bit_width"]
                results = [_compat.counted_bits(arguments[0], places, width)]
            elif "cut" in part.params:
                raise CodegenError(
                    "CODEGEN_OPERAND",
                    f"'{part.name}' counts along the dimension that is cut into chunks",
                    line=part.line,
                )
            else:
                arguments = self._as_long(arguments) if self.sliced else arguments
                results = apply_op(part, arguments, check_vma=False)
            values.update(zip(part.outputs, results, strict=True))
        return [values[out] for out in self.strand.outputs]

    def _places(self, part: Op, given: Sequence[Any]) -> tuple[Any, Any]:
        """Where in the whole array each number is that `part` makes."""
        shape: tuple[int, ...] = part.eqn.params["shape"]
        if "cut" not in part.params:
            return _compat.counters(shape)
        if math.prod(shape) >= 2**32:
            raise CodegenError(
                "CODEGEN_OPERAND",
                f"'{part.name}' numbers {math.prod(shape)} elements, more than 32 bits do",
                line=part.line,
            )
        mine = part.types[0].shape
        place = jnp.broadcast_to(given[self._index[_first(part)]], mine)
        for d in range(len(shape)):
            step = np.uint32(math.prod(shape[d + 1 :]))
            place = place + lax.broadcasted_iota(np.uint32, mine, d) * step
        return jnp.zeros(mine, np.uint32), place

    def _as_long(self, arguments: list[Any]) -> list[Any]:
        """Operands of one length: of a block with one row it cannot be told whether it stands for
        all rows or is the same in each.
        """
        shapes = [np.shape(x) for x in arguments]
        length = max((s[self.dim] for s in shapes if len(s) == len(self.block)), default=1)
        return [
            x
            if len(shape) != len(self.block) or shape[self.dim] in (0, length)
            else lax.broadcast_in_dim(
                x,
                (*shape[: self.dim], length, *shape[self.dim + 1 :]),
                range(len(shape)),
            )
            for x, shape in zip(arguments, shapes, strict=True)
        ]

    def _broadcast(self, part: Op, x: Any) -> Any:
        shape = list(part.types[0].shape)
        dims: tuple[int, ...] = part.eqn.params["broadcast_dimensions"]
        if len(shape) != len(self.block):
            # On its way to the result's shape; what is sliced is here as all ranks have it.
            for at, d in enumerate(dims):
                shape[d] = max(shape[d], x.shape[at])
        elif self.dim in dims:
            shape[self.dim] = x.shape[dims.index(self.dim)]
        elif shape[self.dim] > 1 or tuple(shape) == self.block:
            shape[self.dim] *= self.ranks
        return lax.broadcast_in_dim(x, shape, dims)

    def _read(self, x: Operand, part: Op, values: Mapping[str, Any], given: Sequence[Any]) -> Any:
        if isinstance(x, str) and x in values:
            return values[x]
        if isinstance(x, Constant) and _is_literal(x):
            known = x.value
            return known if part.kind != "random_bits" else np.asarray(jax.random.key_data(known))
        if part.kind == "random_bits":
            return [given[self._index[_key(x, part, word)]] for word in _WORDS]
        return given[self._index[_key(x, part)]]

    def _inputs(self, x: Operand, part: Op) -> dict[Hashable, KernelInput]:
        if part.kind != "random_bits":
            return {_key(x, part): self._input(x, part)}
        t = jax.ShapeDtypeStruct((), np.uint32)
        found: dict[Hashable, KernelInput] = {}
        if not _is_literal(x):
            found = {_key(x, part, w): KernelInput(x, Role.SCALAR, t, w) for w in _WORDS}
        if "cut" in part.params:
            # An operand, so that all chunks have one kernel.
            first = _first(part)
            found[first] = KernelInput(Constant(np.uint32(first[1])), Role.SCALAR, t)
        return found

    def _input(self, x: Operand, part: Op) -> KernelInput:
        if isinstance(x, Constant):
            given = jax.ShapeDtypeStruct(x.value.shape, x.value.dtype)
            return KernelInput(x, Role.WHOLE, given)
        given, layout = self.types[x], self.layouts.get(x)
        if part.kind in ("reduce_scatter", "all_reduce"):
            return KernelInput(x, Role.REDUCE, given)
        if part.kind == "own_slice":
            return KernelInput(x, Role.WHOLE, given)
        if given.shape == ():
            own = x in self.per_tensor
            return KernelInput(x, Role.WHOLE if own else Role.SCALAR, given)
        if not self.axes:
            return KernelInput(x, Role.WHOLE, given)
        replicated = isinstance(layout, LayoutMap) and all(
            layout[axis] == Replicated for axis in self.axes
        )
        # What is gathered is the rank's block, even if all blocks are alike.
        if replicated and part.kind != "all_gather":
            return KernelInput(x, Role.WHOLE, given)
        if self.sliced and given.shape == self.block:
            whole = jax.ShapeDtypeStruct(self.whole, given.dtype)
            return KernelInput(x, Role.SLICE, whole)
        raise CodegenError(
            "CODEGEN_OPERAND",
            f"'{part.name}' broadcasts '{x}', which is {layout}; "
            "a kernel broadcasts Replicated operands only",
            line=part.line,
        )

    def _widened(self, block: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(s * self.ranks if d == self.dim else s for d, s in enumerate(block))


def _is_literal(x: Operand) -> bool:
    return isinstance(x, Constant) and not getattr(x.value, "shape", ())


def _first(part: Op) -> tuple[str, int]:
    """The place in the whole array of a chunk's first element."""
    dim, start = part.params["cut"]
    return "first", start * math.prod(part.eqn.params["shape"][dim + 1 :])


def _key(x: Operand, part: Op, word: int | None = None) -> Hashable:
    """One value may be reduced, sliced and read as it is: each is an input of its own."""
    moves = part.kind in MOVES or part.kind in COLLECTIVES
    how = (part.kind, part.params.get("dim")) if moves else None
    return (x if isinstance(x, str) else id(x.value), how, word)
