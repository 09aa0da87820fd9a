"""How a per-rank value relates to the value that a group of one computes.

`v` on n ranks is related to `w` on one rank by: for every rank r and per-rank index i,
`v_r[i] == scale * w[o]` for *every* whole index o whose digits agree with those that i walks and r
selects. A digit of o that nobody names does not matter: w is uniform along it. Along an axis over
which v is neither sliced, pending nor Local, all ranks hold the same v; along a uniform digit v
itself does not change. Over pending axes v is first reduced, so they all have one operation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxcc.layout._digits import (
    PER_RANK,
    CutError,
    Digit,
    Digits,
    count,
    distinct,
    normal,
    rebase,
    uniform,
    unify,
    whole_dim,
)
from jaxcc.layout._dtypes import kind_of, wrapped
from jaxcc.layout._layouts import (
    Layout,
    LayoutMap,
    Local,
    Partial,
    ReduceOp,
    Replicated,
    Sliced,
)
from jaxcc.layout._ranked import Ranked, ranked
from jaxcc.layout._tie import FIRST, Tie, seen_tie

ANY_SCALE = math.inf
"""The scale of 0 and of infinities, which any ratio multiplies to themselves; it also stands for no
claim
about the size of a value that comes from a Local one, which a group of one cannot hold."""

NO_SCALE = math.nan
"""The scale of a pair of constants of which no ratio makes one from the other, such as 3 and 0."""

SCALE_TOLERANCE = 2.5e-7
"""Literals are f32: a ratio of products of a few of them is no more exact than this."""

EXACT_TOLERANCE = 1e-12
"""Of ratios of whole numbers and of sizes of groups, and of what is multiplied again and again."""


Turn = tuple[int, ...]
"""For each rank along an axis, the rank whose block it holds."""


def empty(shape: Sequence[int]) -> Relation:
    """The relation of an array without elements: there is nothing to say of them."""
    return Relation(tuple(uniform(size) for size in shape)).scaled(1.0)


def same_scale(a: float, b: float, dtype: Any = None) -> bool:
    """Whether two scales are one ratio, up to the rounding of literals, which are f32 if not of an
    exact `dtype`."""
    exact = dtype is not None and (kind_of(dtype) in ("b", "i", "u") or dtype == np.float64)
    return a == b or abs(a - b) <= (EXACT_TOLERANCE if exact else SCALE_TOLERANCE) * max(
        abs(a), abs(b)
    )


def scale_of(pair: tuple[Any, Any]) -> float:
    """The ratio of a constant at n to the same constant at 1."""
    at_n, at_1 = pair
    if isinstance(at_n, Ranked):
        return NO_SCALE
    if isinstance(at_n, (bool, np.bool_)):
        return 1.0 if at_n == at_1 else NO_SCALE
    n, one = complex(at_n), complex(at_1)
    if n == one == 0 and math.copysign(1, n.real) != math.copysign(1, one.real):
        return NO_SCALE
    if n == one or (at_n != at_n and at_1 != at_1):
        finite = math.isfinite(n.real) and math.isfinite(n.imag)
        return 1.0 if n != 0 and finite else ANY_SCALE
    if one == 0 or n == 0 or n.imag or one.imag or math.isinf(n.real) or math.isinf(one.real):
        return NO_SCALE
    scale = n.real / one.real
    # Whole numbers are exact: two that are nearly the same are no rounding of one.
    whole = n.real.is_integer() and one.real.is_integer()
    return NO_SCALE if whole and n != one and same_scale(scale, 1.0) else scale


def in_dtype(number: Any, dtype: Any) -> Any:
    """A number as an array of `dtype` holds it: rounded, and wrapped if it is an integer."""
    if isinstance(number, Ranked):
        return ranked(in_dtype(one, dtype) for one in number.values)
    dtype = np.dtype(dtype)
    kind = kind_of(dtype)
    if kind == "b":
        return bool(number)
    if kind in ("i", "u") and isinstance(number, int):
        return wrapped(number, dtype)
    with np.errstate(all="ignore"):
        number = number.real if isinstance(number, complex) and kind != "c" else number
        held = np.asarray(number).astype(dtype)
    if kind in ("i", "u"):
        return int(held)
    return float(held) if kind == "f" else held.item()


_NONE: Mapping[str, Any] = MappingProxyType({})


def _no_ranks() -> Mapping[str, Digits]:
    return _NONE


def _no_turns() -> Mapping[str, Turn]:
    return MappingProxyType({})


def _no_partial() -> Mapping[str, ReduceOp]:
    return _NONE


@dataclass(frozen=True)
class Relation:
    """A per-rank value against the whole value.

    Attributes:
      dims: for each per-rank dimension, the digits of the whole index that it walks, major first.
      ranks: for each axis, the digits that the rank's number along it selects; absent means none.
      partial: the axes over which the value is still to be reduced, with the operation.
      local: the axes over which ranks hold unrelated values.
      scale: value at n over value at 1.
      unmeasured: the value comes from a Local one, so `scale` says nothing.
      const: the value at n and at 1 if both are one number everywhere; at n perhaps another on
        every rank.
      tie: how the value depends on an array of integers, if that says more, or less, than the rest.
      turned: the axes of `ranks` over which a rank holds another one's block, and whose.
    """

    dims: tuple[Digits, ...]
    ranks: Mapping[str, Digits] = field(default_factory=_no_ranks)
    partial: Mapping[str, ReduceOp] = field(default_factory=_no_partial)
    local: frozenset[str] = frozenset()
    scale: float = 1.0
    unmeasured: bool = False
    const: tuple[Any, Any] | None = None
    tie: Tie | None = None
    turned: Mapping[str, Turn] = field(default_factory=_no_turns)

    @property
    def by_rank(self) -> bool:
        """Whether the rest holds only with what `tie` says, or the value is a number by rank."""
        if self.const is not None and isinstance(self.const[0], Ranked):
            return True
        return FIRST in self.ranks or (self.tie is not None and not self.tie.everywhere)

    def digits(self) -> Iterable[Digit]:
        """Every digit named, by a dimension or by a rank."""
        for digits in self.dims:
            yield from digits
        for digits in self.ranks.values():
            yield from digits

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The per-rank shape."""
        return tuple([count(digits) for digits in self.dims])

    def scaled(self, scale: float) -> Relation:
        """The same relation with another scale; what is unmeasured stays so."""
        return replace(self, scale=ANY_SCALE if self.unmeasured else scale, const=None)

    def plain_over(self, axis: str) -> bool:
        """Whether every rank along `axis` holds the same value."""
        return axis not in self.ranks and axis not in self.partial and axis not in self.local


def select(ranks: Mapping[str, Digits], axis: str, digits: Digits) -> Mapping[str, Digits]:
    """`ranks` where the rank along `axis` selects `digits`; uniform digits select nothing.

    Raises CutError for digits of ranks' own values: no part of a whole says what is selected.
    """
    if any(digit.dim == PER_RANK for digit in digits):
        raise CutError
    out = {name: held for name, held in ranks.items() if name != axis}
    if any(digit.named for digit in digits):
        out[axis] = normal(digits)
    return out


def constant(shape_n: Sequence[int], pair: tuple[Any, Any]) -> Relation:
    """A number that fills `shape_n` on every rank."""
    return Relation(tuple(uniform(n) for n in shape_n), scale=scale_of(pair), const=pair)


def stored(relation: Relation, dtype: Any) -> Relation:
    """The relation where a known number is as `dtype` holds it."""
    if relation.const is None:
        return relation
    at_n, at_1 = (in_dtype(number, dtype) for number in relation.const)
    return replace(relation, scale=scale_of((at_n, at_1)), const=(at_n, at_1))


def from_layout(layout: LayoutMap, whole: Sequence[int], sizes: Mapping[str, int]) -> Relation:
    """The relation that a user's layout states about an array of shape `whole`.

    Of two axes that slice one dimension, the first in `layout` is the major one.
    """
    blocks = list(whole)
    ranks: dict[str, Digits] = {}
    partial: dict[str, ReduceOp] = {}
    local: set[str] = set()
    for axis in layout:
        one = layout[axis]
        if isinstance(one, Sliced):
            dim = one.dim % len(blocks)
            blocks[dim] //= sizes[axis]
            ranks[axis] = normal([Digit(dim, blocks[dim], sizes[axis])])
        elif isinstance(one, Partial):
            partial[axis] = one.op
        elif one == Local:
            local.add(axis)
    return Relation(
        dims=tuple(whole_dim(dim, block) for dim, block in enumerate(blocks)),
        ranks={axis: digits for axis, digits in ranks.items() if digits},
        partial=partial,
        local=frozenset(local),
        scale=ANY_SCALE if local else 1.0,
        unmeasured=bool(local),
    )


def seen_through(relation: Relation, view: Sequence[Digits]) -> Relation:
    """`relation` to an array, as one to a reshaped, transposed or broadcast view of that array."""
    if all(digits == whole_dim(dim, count(digits)) for dim, digits in enumerate(view)):
        if relation.tie is None or len(view) == len(relation.tie.view):
            return relation
        return replace(relation, tie=seen_tie(relation.tie, view))
    ranks = {axis: rebase(digits, view) for axis, digits in relation.ranks.items()}
    return replace(
        relation,
        dims=tuple(rebase(digits, view) for digits in relation.dims),
        ranks=ranks,
        tie=seen_tie(relation.tie, view),
    )


def joined(relations: Sequence[Relation]) -> tuple[tuple[Digits, ...], Mapping[str, Digits]]:
    """The digits and ranks of several values that one index walks together.

    Raises CutError if two of them walk different parts, or one part would be walked twice.
    """
    dims = relations[0].dims
    ranks: dict[str, Digits] = dict(relations[0].ranks)
    for other in relations[1:]:
        dims = tuple(unify(a, b) for a, b in zip(dims, other.dims, strict=True))
        for axis, digits in other.ranks.items():
            ranks[axis] = unify(ranks[axis], digits) if axis in ranks else digits
    named = [digit for digits in (*dims, *ranks.values()) for digit in digits]
    if not distinct(named):
        raise CutError
    return dims, ranks


def agrees(value: Relation, declared: Relation) -> bool:
    """Whether a value with relation `value` has the digits that `declared` says."""
    try:
        dims, ranks = joined([value, declared])
    except (CutError, ValueError):
        return False
    return dims == declared.dims and dict(ranks) == dict(declared.ranks)


def layout_seen(relation: Relation, axes: Sequence[str]) -> LayoutMap | str:
    """The layout to show for a value, from its own digits; a text if no layout says it.

    A rank's digits continue the leading digit of the dimension that they slice.
    """
    found: dict[str, Layout] = {}
    extent = {
        position: (digits[0].dim, digits[0].end)
        for position, digits in enumerate(relation.dims)
        if digits
    }
    # Minor axes first: each continues what the one before it has reached.
    for axis, digits in sorted(relation.ranks.items(), key=lambda kv: kv[1][-1].stride):
        position = _sliced_position(relation, digits, extent)
        if position is None:
            return _describe_digits(relation, axis)
        extent[position] = (digits[0].dim, digits[0].end)
        found[axis] = Sliced(position)
    major_first = sorted(
        axes, key=lambda axis: -relation.ranks[axis][-1].stride if axis in relation.ranks else 0
    )
    entries: list[tuple[str, Layout]] = []
    for axis in major_first:
        if axis in relation.local:
            entries.append((axis, Local))
        elif axis in relation.partial:
            entries.append((axis, Partial(relation.partial[axis])))
        else:
            entries.append((axis, found.get(axis, Replicated)))
    layout = LayoutMap(tuple(entries))
    if relation.turned:
        return f"{layout.describe()}, passed on along {', '.join(relation.turned)}"
    return layout


def _sliced_position(
    relation: Relation, digits: Digits, extent: Mapping[int, tuple[int, int]]
) -> int | None:
    """The per-rank dimension whose leading digit the rank's only digit continues."""
    if len(digits) != 1:
        return None
    (digit,) = digits
    for position, (dim, end) in extent.items():
        if dim == digit.dim and end == digit.stride:
            return position
    if digit.stride != 1:
        return None
    empty = [position for position, held in enumerate(relation.dims) if not held]
    if digit.dim in empty:
        return digit.dim
    return empty[0] if len(empty) == 1 else None


def _describe_digits(relation: Relation, axis: str) -> str:
    """For example `Sliced(1, as 3 x [4] x 8)`: where in a dimension the rank's digits stand."""
    ranked = relation.ranks[axis]
    for position, digits in enumerate(relation.dims):
        here = [d for d in digits if d.dim == ranked[0].dim]
        if here:
            merged = sorted([*here, *ranked], key=lambda d: -d.stride)
            parts = [f"[{d.size}]" if d in ranked else str(d.size) for d in merged]
            lead = [str(d.size) for d in digits if d.dim != ranked[0].dim]
            return f"Sliced({position}, as {' x '.join(lead + parts)})@{axis}"
    dims = " and ".join(dict.fromkeys(str(digit.dim) for digit in ranked))
    return f"sliced along parts of dimension {dims} of the whole@{axis}"
