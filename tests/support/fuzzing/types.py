"""What a generator believes of a value: its whole shape, its type, and its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxcc.layout import Layout, LayoutMap, Local, Partial, Sliced

FLOATS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Type:
    """A value's whole shape, element type and layout.

    Attributes:
      shape: of the whole array.
      dtype: `float32`, `bfloat16`, `int32` or `bool`.
      sliced: pairs of axis and dimension; of two axes on one dimension the first is the major one.
      partial: pairs of axis and pending reduction.
      local: axes over which ranks hold unrelated values.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    sliced: tuple[tuple[str, int], ...] = ()
    partial: tuple[tuple[str, Any], ...] = ()
    local: tuple[str, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def whole(self) -> bool:
        """Nothing is pending."""
        return not self.partial

    @property
    def ops(self) -> set[str]:
        """The pending reductions."""
        return {op for _, op in self.partial}

    def axes_of(self, dim: int) -> tuple[str, ...]:
        """The axes that slice a dimension, major first."""
        return tuple(axis for axis, d in self.sliced if d == dim)

    def dim_of(self, axis: str) -> int | None:
        """The dimension that an axis slices."""
        return dict(self.sliced).get(axis)

    def plain(self, axis: str) -> bool:
        """Every rank along the axis holds the same."""
        return self.dim_of(axis) is None and axis not in (*dict(self.partial), *self.local)

    def layout(self) -> LayoutMap:
        """As jaxcc writes it."""
        entries: list[tuple[str, Layout]] = [(axis, Sliced(dim)) for axis, dim in self.sliced]
        entries += [(axis, Partial(op)) for axis, op in self.partial]
        entries += [(axis, Local) for axis in self.local]
        return LayoutMap(tuple(entries))

    def moved(self, shape: Sequence[int], places: Mapping[int, int]) -> Type:
        """The same with dimensions moved to `places`; those that are not there are gone."""
        sliced = tuple((axis, places[dim]) for axis, dim in self.sliced if dim in places)
        return replace(self, shape=tuple(shape), sliced=sliced)

    def without(self, dims: Sequence[int]) -> Type:
        """Without some dimensions and what slices them."""
        kept = [d for d in range(self.ndim) if d not in dims]
        return self.moved([self.shape[d] for d in kept], {d: k for k, d in enumerate(kept)})

    def resized(self, dim: int, size: int) -> Type:
        """With another size of one dimension."""
        shape = list(self.shape)
        shape[dim] = size
        return replace(self, shape=tuple(shape))

    def unsliced(self, axis: str) -> Type:
        """With every rank along the axis holding all of it."""
        return replace(self, sliced=tuple(pair for pair in self.sliced if pair[0] != axis))

    def pending(self, axis: str, op: str | None) -> Type:
        """With another pending reduction over one axis, or none."""
        rest = [pair for pair in self.partial if pair[0] != axis]
        rest += [] if op is None else [(axis, op)]
        return replace(self, partial=tuple(sorted(rest)))


def divides(t: Type, sizes: Mapping[str, int]) -> bool:
    """Whether every sliced dimension divides."""
    for dim, size in enumerate(t.shape):
        n = 1
        for axis in t.axes_of(dim):
            n *= sizes[axis]
        if size % n:
            return False
    return True


def to_dtype(name: str) -> np.dtype[Any]:
    """The element type of this name."""
    return np.dtype(jnp.bfloat16 if name == "bfloat16" else name)


def to_json(t: Type) -> list[Any]:
    """As lists and numbers."""
    return [
        list(t.shape),
        t.dtype,
        [list(p) for p in t.sliced],
        [list(p) for p in t.partial],
        list(t.local),
    ]


def from_json(data: Sequence[Any]) -> Type:
    """From what `to_json` gave."""
    shape, dtype, sliced, partial, local = data
    return Type(
        tuple(shape),
        dtype,
        tuple((a, d) for a, d in sliced),
        tuple((a, op) for a, op in partial),
        tuple(local),
    )
