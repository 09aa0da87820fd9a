"""Whether what the checker says of a value is true of arrays; by an own reading of `Relation`.

Arrays have a leading dimension for random inputs, then, on n ranks, one for each axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fuzzing.call import Array

from jaxcc.layout._digits import UNIFORM, Digits
from jaxcc.layout._ranked import IntSet, each_rank
from jaxcc.layout._relation import Relation
from jaxcc.layout._tie import FIRST, NO_INTEGER, Tie

_REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
Sizes = tuple[tuple[str, int], ...]


class Claims:
    """Holds relations against arrays on a mesh; `rtol` is for values, relative to the largest."""

    def __init__(self, sizes: Mapping[str, int], rtol: float) -> None:
        self.sizes = dict(sizes)
        self.rtol = rtol

    def false(self, relation: Relation, parts: Array, one: Array, integer: Array | None) -> str:
        """What is false about a relation; empty if nothing is.

        Args:
          relation: what is claimed.
          parts: the value on n ranks.
          one: the value on a group of one.
          integer: the integers of the relation's tie, if it has one.
        """
        if parts.shape[1:] != (*self.sizes.values(), *relation.shape):
            return f"shape {parts.shape[1:]}, claimed {relation.shape}"
        for axis, turn in relation.turned.items():
            parts = parts.take(np.argsort(turn), 1 + list(self.sizes).index(axis))
        if relation.const is not None:
            return self._constant(relation.const, parts, one)
        if relation.partial or relation.local:
            problem = self._alike(relation, parts)
            if problem:
                return problem
        if relation.unmeasured:
            return ""
        if len(set(relation.partial.values())) > 1:
            return "pending reductions of two kinds have no order"
        for at, axis in enumerate(self.sizes, 1):
            if axis in relation.partial:
                total = _REDUCE[relation.partial[axis]](parts, axis=at, keepdims=True)
                parts = np.broadcast_to(total, parts.shape)
        ranks = tuple(sorted(relation.ranks.items()))
        found = _places(relation.dims, ranks, one.shape[1:], tuple(self.sizes.items()))
        if isinstance(found, str):
            return found
        of_whole, of_rank = found
        flat = one.reshape(len(one), -1)
        if not self._same(flat, flat[:, of_whole]):
            return "the whole value is not uniform along a digit that nobody names"
        if math.isnan(relation.scale):
            return "no scale"
        scale = 1.0 if math.isinf(relation.scale) else relation.scale
        expected = flat[:, of_rank] if scale == 1.0 else flat[:, of_rank] * scale
        if relation.tie is None:
            return "" if self._same(parts, expected) else f"values differ (scale {scale})"
        known = self._integers(relation.tie, integer, one.shape)
        if isinstance(known, str):
            return known
        return self._tied(relation, parts, flat, expected, known, of_rank)

    def _same(self, a: Array, b: Array) -> bool:
        if a.dtype == bool or b.dtype == bool:
            return bool(np.array_equal(a, np.broadcast_to(b, a.shape)))
        if (a == b).all():
            return True
        if a.dtype.kind in "iu" and b.dtype.kind in "iu":
            return False
        size = np.abs(b[np.isfinite(b)]).max(initial=0)
        return bool(np.allclose(a, b, self.rtol, 1e-6 + self.rtol * size / 10, equal_nan=True))

    def _constant(self, const: tuple[Any, Any], parts: Array, one: Array) -> str:
        count = math.prod(self.sizes.values())
        at_n = np.asarray(each_rank(const[0], count)).reshape(tuple(self.sizes.values()))
        at_n = at_n.reshape(at_n.shape + (1,) * (parts.ndim - 1 - at_n.ndim))
        right = self._same(parts, np.broadcast_to(at_n, parts.shape))
        right = right and self._same(one, np.broadcast_to(np.asarray(const[1]), one.shape))
        return "" if right else f"not the constants {const}"

    def _alike(self, relation: Relation, parts: Array) -> str:
        """Axes and digits that the value does not depend on, before it is reduced."""
        for at, axis in enumerate(self.sizes, 1):
            if relation.plain_over(axis) and not self._same(parts, parts.take([0], at)):
                if not relation.by_rank:
                    return f"ranks of {axis} differ"
        lead = 1 + len(self.sizes)
        digits = [digit for dim in relation.dims for digit in dim]
        split = parts.reshape(*parts.shape[:lead], *(digit.size for digit in digits))
        for at, digit in enumerate(digits, lead):
            if digit.dim == UNIFORM and not relation.by_rank:
                if not self._same(split, split.take([0], at)):
                    return "not uniform along a uniform digit"
        return ""

    # Values that hang on an integer --------------------------------------------------------------

    def _integers(self, tie: Tie, integer: Array | None, shape: Sequence[int]) -> Array | str:
        """For each element of the whole value, the integer that it hangs on."""
        if tie.root is NO_INTEGER:
            return np.zeros((shape[0], math.prod(shape[1:])), int)
        if integer is None:
            return ""
        found = _places(tie.view, (), integer.shape[1:], ())
        if isinstance(found, str):
            return found
        return integer.reshape(shape[0], -1)[:, found[1].ravel()]

    def _tied(
        self,
        relation: Relation,
        parts: Array,
        flat: Array,
        expected: Array,
        integers: Array,
        of_rank: Array,
    ) -> str:
        tie = relation.tie
        assert tie is not None
        count = math.prod(self.sizes.values())
        x = integers[:, of_rank]
        everywhere = np.ones(x.shape, bool)
        right = everywhere if tie.within is None else self._by_rank(tie.within, x)
        if tie.shift is not None:
            at_n = np.asarray(each_rank(tie.shift[0], count)).reshape(tuple(self.sizes.values()))
            at_n = at_n.reshape((1, *at_n.shape, *(1,) * (x.ndim - 1 - at_n.ndim)))
            if not np.array_equal(parts[right], (x + at_n)[right]):
                return f"not the integer shifted by {tie.shift[0]}"
            if not np.array_equal(flat[:, of_rank][right], (x + tie.shift[1])[right]):
                return f"not the integer shifted by {tie.shift[1]} on one rank"
        elif tie.mask is not None:
            if not np.array_equal(parts[right].astype(bool), self._by_rank(tie.mask[0], x)[right]):
                return f"not the mask {tie.mask[0]}"
            if not np.array_equal(flat[:, of_rank][right].astype(bool), _in(tie.mask[1], x)[right]):
                return f"not the mask {tie.mask[1]} on one rank"
        elif not self._same(parts[right], np.broadcast_to(expected, parts.shape)[right]):
            return f"values differ where {tie.within}"
        if tie.outside is not None and tie.within is not None:
            other = np.asarray(tie.outside)
            if not self._same(parts[~right], np.broadcast_to(other, parts[~right].shape)):
                return f"not {tie.outside} elsewhere"
            elsewhere = ~_in(tie.inside, integers)
            if not self._same(flat[elsewhere], np.broadcast_to(other, flat[elsewhere].shape)):
                return f"not {tie.outside} elsewhere on one rank"
        if not relation.by_rank and not self._same(parts, expected):
            return f"values differ (scale {relation.scale})"
        return ""

    def _by_rank(self, sets: Sequence[IntSet], x: Array) -> Array:
        out = np.zeros(x.shape, bool)
        for rank, one in zip(np.ndindex(*self.sizes.values()), sets, strict=True):
            at = (slice(None), *rank)
            out[at] = _in(one, x[at])
        return out


def _in(of: IntSet, x: Array) -> Array:
    out = np.zeros(x.shape, bool)
    for low, high in of.intervals:
        out |= (x >= low) & (x < high)
    return out


@functools.lru_cache(maxsize=4096)
def _places(
    dims: tuple[Digits, ...],
    ranks: tuple[tuple[str, Digits], ...],
    whole: tuple[int, ...],
    sizes: Sizes,
) -> tuple[Array, Array] | str:
    """A whole element with the same named digits: for each whole element, and for each element of
    each rank. Or why there is none."""
    named = [digit for digits in (*dims, *(d for _, d in ranks)) for digit in digits if digit.named]
    radix = 1
    place: dict[Any, int] = {}
    for digit in named:
        if digit in place:
            return f"{digit} is walked twice"
        place[digit] = radix
        radix *= digit.size
    index = np.indices(whole) if whole else np.zeros((0,), int)
    of_whole: Any = np.zeros(whole, int)
    for digit in named:
        of_whole = of_whole + index[digit.dim] // digit.stride % digit.size * place[digit]
    axes = dict(ranks)
    walked = [(axes.get(axis, ()), n) for axis, n in sizes]
    walked += [(digits, math.prod(digit.size for digit in digits)) for digits in dims]
    of_rank: Any = np.zeros([n for _, n in walked], int)
    for at, (digits, n) in enumerate(walked):
        number = np.arange(n).reshape([-1 if k == at else 1 for k in range(len(walked))])
        low = 1
        for digit in reversed(digits):
            if digit.named:
                of_rank = of_rank + number // low % digit.size * place[digit]
            low *= digit.size
        if at < len(sizes) and digits and low != n:
            return f"{low} blocks for {n} ranks"
    if any(axis not in dict(sizes) and axis != FIRST for axis in axes):
        return "an unknown axis"
    first = np.full(radix, -1)
    flat = of_whole.ravel()
    first[flat[::-1]] = np.arange(flat.size)[::-1]
    if (first[of_rank] < 0).any():
        return "a rank walks digits that no element of the whole has"
    return first[flat], first[of_rank]
