"""Arrays that a relation is true of, and whether a relation is true of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcc.layout._digits import UNIFORM, Digit, Digits, count, normal
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._tie import FIRST

Array = np.ndarray[Any, Any]
_REDUCE: Mapping[ReduceOp, Any] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def arrays_of(
    relation: Relation,
    whole: Sequence[int],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    *,
    positive: bool = False,
    boolean: bool = False,
    integers: range | None = None,
) -> tuple[Array, Array]:
    """Random arrays with this relation: all ranks' parts, stacked along the axes of `sizes`, and
    the whole."""
    named = [digit for digit in relation.digits() if digit.named]
    table = rng.uniform(0.5, 2.0, [digit.size for digit in named])
    if not positive:
        table *= rng.choice([-1.0, 1.0], table.shape)
    if boolean:
        table = rng.integers(0, 2, table.shape).astype(bool)
    if integers is not None:
        table = rng.integers(integers.start, integers.stop, table.shape)
    if relation.const is not None:
        at_n, at_1 = relation.const
        return np.full((*sizes.values(), *relation.shape), at_n), np.full(tuple(whole), at_1)
    one = table[tuple(_whole_values(digit, whole) for digit in named)]
    one = np.broadcast_to(one, whole)
    scale = 1.0 if math.isinf(relation.scale) else relation.scale
    parts = table[tuple(_rank_values(digit, relation, sizes) for digit in named)]
    parts = np.broadcast_to(parts, (*sizes.values(), *relation.shape))
    parts = parts.copy() if boolean else parts * scale
    # Ranks along an axis that the relation does not mention hold the same terms.
    varied = [1 if relation.plain_over(axis) else n for axis, n in sizes.items()]
    for at, axis in enumerate(sizes):
        if axis in relation.partial:
            noise = _uniform_noise(relation, varied, rng)
            parts = _pending(parts, at, relation.partial[axis], noise)
    if relation.local:
        parts = np.broadcast_to(_uniform_noise(relation, varied, rng), parts.shape)
    if integers is not None:
        parts = np.round(parts).astype(int)
    for axis, turn in relation.turned.items():
        parts = parts.take(turn, list(sizes).index(axis))
    return parts, one.copy()


def _whole_values(digit: Digit, whole: Sequence[int]) -> Array:
    """The digit of every whole index."""
    index = np.arange(whole[digit.dim]).reshape(-1, *[1] * (len(whole) - digit.dim - 1))
    return index // digit.stride % digit.size


def _rank_values(digit: Digit, relation: Relation, sizes: Mapping[str, int]) -> Array:
    """The value that the digit, which the relation names once, has for every rank and per-rank
    index."""
    axes = [(digits, n) for axis, n in sizes.items() for digits in [relation.ranks.get(axis, ())]]
    if digit in relation.ranks.get(FIRST, ()):
        return np.zeros((1,) * (len(axes) + len(relation.dims)), int)
    dims = [(digits, count(digits)) for digits in relation.dims]
    everything = [*axes, *dims]
    for position, (digits, n) in enumerate(everything):
        if digit in digits:
            place = count(digits[digits.index(digit) + 1 :])
            index = np.arange(n).reshape(-1, *[1] * (len(everything) - position - 1))
            return index // place % digit.size
    raise AssertionError(f"{digit} is not named")


def _uniform_noise(relation: Relation, varied: Sequence[int], rng: np.random.Generator) -> Array:
    """Random numbers that do not change along the relation's uniform digits."""
    return _made_uniform(rng.uniform(0.5, 2.0, (*varied, *relation.shape)), relation, len(varied))


def _made_uniform(parts: Array, relation: Relation, lead: int) -> Array:
    """`parts` where the first value along each uniform digit stands for all."""
    digits = [digit for dim in relation.dims for digit in dim]
    out = parts.reshape(*parts.shape[:lead], *(digit.size for digit in digits))
    for at, digit in enumerate(digits, lead):
        if digit.dim == UNIFORM and digit.size:
            out = np.broadcast_to(out.take([0], at), out.shape)
    return out.reshape(parts.shape)


def _pending(parts: Array, at: int, op: ReduceOp, noise: Array) -> Array:
    """Terms along dimension `at`, random as `noise` is, that reduce to what stands there on every
    rank."""
    whole = parts.take(0, at)
    rank = int(noise.ravel()[0] * 1e6) % parts.shape[at]
    noise = np.moveaxis(np.broadcast_to(noise, parts.shape), at, 0).copy()
    if op == "sum":
        noise[-1] = whole - noise[:-1].sum(0)
    elif op == "prod":
        noise[-1] = whole / noise[:-1].prod(0)
    else:
        noise = whole - noise if op == "max" else whole + noise
        noise[rank] = whole
    return np.moveaxis(noise, 0, at)


def holds(relation: Relation, parts: Array, one: Array, sizes: Mapping[str, int]) -> str:
    """Why `relation` is not true of these arrays; empty if it is."""
    if parts.shape != (*sizes.values(), *relation.shape):
        return f"per-rank shape {parts.shape[len(sizes) :]}, claimed {relation.shape}"
    for axis, turn in relation.turned.items():
        parts = parts.take(np.argsort(turn), list(sizes).index(axis))
    for at, axis in enumerate(sizes):
        if relation.plain_over(axis) and not _same(parts, parts.take([0], at)):
            return f"ranks of {axis} differ"
    if not _same(parts, _made_uniform(parts, relation, len(sizes))):
        return "not uniform along a uniform digit"
    if len(set(relation.partial.values())) > 1:
        return "pending reductions of two kinds have no order"
    for at, axis in enumerate(sizes):
        if axis in relation.partial:
            total = _REDUCE[relation.partial[axis]](parts, axis=at, keepdims=True)
            parts = np.broadcast_to(total, parts.shape)
    if relation.unmeasured:
        return ""
    if relation.const is not None:
        at_n, at_1 = relation.const
        if not _same(parts, np.asarray(at_n)) or not _same(one, np.asarray(at_1)):
            return f"not the constants {relation.const}"
    named = [digit for digit in relation.digits() if digit.named]
    table = np.full([digit.size for digit in named], one.ravel()[0])
    at_whole = np.broadcast_arrays(*(_whole_values(d, one.shape) for d in named), one)[:-1]
    at_rank = np.broadcast_arrays(*(_rank_values(d, relation, sizes) for d in named), parts)[:-1]
    if named:
        table[tuple(at_whole)] = one
    if not _same(np.broadcast_to(table[tuple(at_whole)], one.shape), one):
        return "the whole value is not uniform along a digit that nobody names"
    expected = np.broadcast_to(table[tuple(at_rank)], parts.shape)
    if math.isnan(relation.scale):
        return "" if relation.const is not None else "no scale"
    if not math.isinf(relation.scale) and relation.scale != 1.0:
        expected = expected * relation.scale
    return "" if _same(parts, expected) else f"values differ (scale {relation.scale})"


def _same(a: Array, b: Array) -> bool:
    if a.dtype == bool:
        return bool(np.array_equal(a, np.broadcast_to(b, a.shape)))
    return bool(np.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True))


def random_relation(
    whole: Sequence[int],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    *,
    pending: Sequence[ReduceOp] = ("sum",),
    plain: float = 0.5,
) -> Relation:
    """A relation to an array of shape `whole`; with probability `plain` one that a user's layout
    could state."""
    dims = [_factored(dim, size, rng) for dim, size in enumerate(whole)]
    ranks: dict[str, Digits] = {}
    partial: dict[str, ReduceOp] = {}
    op: ReduceOp = pending[int(rng.integers(len(pending)))] if pending else "sum"
    for axis, n in sizes.items():
        kind = rng.choice(["sliced", "replicated", "partial"], p=[0.5, 0.25, 0.25])
        places = [
            (d, k) for d, digits in enumerate(dims) for k, g in enumerate(digits) if g.size == n
        ]
        if kind == "sliced" and places:
            leading = [place for place in places if place[1] == 0]
            choice = leading if leading and rng.random() < plain else places
            d, k = choice[rng.integers(len(choice))]
            ranks[axis] = (dims[d].pop(k),)
        elif kind == "partial" and pending:
            partial[axis] = op
    if rng.random() > plain:
        flat = [(d, k) for d, digits in enumerate(dims) for k in range(len(digits))]
        if flat and rng.random() < 0.5:
            d, k = flat[rng.integers(len(flat))]
            # Along this digit the whole value is uniform, and the rank may hold another number of
            # copies.
            dims[d][k] = Digit(UNIFORM, 1, int(rng.choice([dims[d][k].size, 1, 2])))
        if flat and rng.random() < 0.3:
            a, b = rng.integers(len(dims), size=2)
            dims[a], dims[b] = dims[b], dims[a]
    n = next(iter(sizes.values()))
    scale = float(rng.choice([1.0, 1.0, 1.0, n, 1 / n, 3.0, -2.0]))
    return Relation(tuple(normal(d) for d in dims), ranks, partial, scale=scale)


def _factored(dim: int, size: int, rng: np.random.Generator) -> list[Digit]:
    """The dimension as digits of random sizes, major first."""
    sizes: list[int] = []
    rest = size
    while rest > 1:
        divisors = [k for k in range(2, rest + 1) if rest % k == 0]
        sizes.append(int(rng.choice(divisors)))
        rest //= sizes[-1]
    digits: list[Digit] = []
    stride = size
    for n in sizes:
        stride //= n
        digits.append(Digit(dim, stride, n))
    return digits
