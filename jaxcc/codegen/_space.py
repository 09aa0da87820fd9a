"""The iteration space of a kernel: the dims of the result, merged as far as its operands allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxcc.codegen._index import IndexMap

# How often a value changes: once in a tile, in a row (a run along the last dim), with each element.
TILE, ROW, ELEMENT = range(3)


@dataclass(frozen=True)
class Space:
    """`groups` of neighbouring dims that act as one; a flat space has one group, of any length.

    `shape` is the whole result's, None if any.
    """

    shape: tuple[int, ...] | None
    groups: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all groups but the first, which only bounds the whole."""
        shape = self.shape or ()
        return tuple(math.prod(shape[d] for d in group) for group in self.groups[1:])

    def strides(self, index: IndexMap) -> tuple[int, ...]:
        """For each group, the distance of neighbours along it in an operand's own buffer."""
        if self.shape is None:
            return (int(self.level(index) == ELEMENT),)
        strides = _strides(index, self.shape)
        return tuple(strides[group[-1]] for group in self.groups)

    def is_identity(self, index: IndexMap) -> bool:
        """Whether an operand's own flat index is that of the space."""
        if self.shape is None:
            return self.level(index) == ELEMENT
        return _strides(index, self.shape) == _strides(range(len(self.shape)), self.shape)

    def holds(self, index: IndexMap) -> bool:
        """Whether the space can say where an operand at this index map lies."""
        if self.shape is not None or self.level(index) == TILE:
            return True
        return index == self.groups[0]

    def level(self, index: IndexMap) -> int:
        """How often a value at this index map changes: TILE, ROW or ELEMENT."""
        walked = [n for n, group in enumerate(self.groups) if any(d in group for d in index)]
        if not walked:
            return TILE
        return ELEMENT if walked[-1] == len(self.groups) - 1 else ROW


def space_of(shape: tuple[int, ...] | None, rank: int, indices: Iterable[IndexMap]) -> Space:
    """The smallest space for outputs of `shape` (None: any, of `rank` dims) and these operands."""
    if shape is None or not shape:
        return Space(None, (tuple(range(rank)),))
    # A dim of size 1 says nothing; if all are, the first stands for them.
    dims = [d for d, size in enumerate(shape) if size != 1] or [0]
    operands = [_strides(index, shape) for index in {*indices, tuple(range(rank))}]
    groups: list[tuple[int, ...]] = [(dims[0],)]
    for d in dims[1:]:
        last = groups[-1][-1]
        if all(strides[last] == strides[d] * shape[d] for strides in operands):
            groups[-1] += (d,)
        else:
            groups.append((d,))
    return Space(shape, tuple(groups))


def _strides(index: Sequence[int | None], shape: Sequence[int]) -> tuple[int, ...]:
    """An operand's row-major strides along each dim of the space, 0 where it does not move."""
    strides = [0] * len(shape)
    step = 1
    for at in reversed(index):
        if at is not None and shape[at] != 1:
            strides[at] = step
            step *= shape[at]
    return tuple(strides)
