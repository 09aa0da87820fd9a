"""Parts and wholes: index ramps, slices, splits and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxcc.layout._digits import (
    UNIFORM,
    CutError,
    Digit,
    Digits,
    in_place,
    normal,
    take,
    uniform,
    whole_dim,
)
from jaxcc.layout._dtypes import holds_all_to
from jaxcc.layout._ranked import rank_along
from jaxcc.layout._relation import Relation, constant
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout._tie import FIRST, Ramp, Tie
from jaxcc.layout.rules._combine import result, together
from jaxcc.layout.rules.indexing import chosen


@layout_rule("iota")
def _iota(eqn: Equation) -> Relation:
    """A ramp; one that is shorter on n ranks is the first block of the whole one."""
    dim: int = eqn.per_rank.params["dimension"]
    (shape,), (whole,) = eqn.per_rank.out_shapes, eqn.whole.out_shapes
    dims = [whole_dim(d, size) if d == dim else uniform(size) for d, size in enumerate(shape)]
    size, length = shape[dim], whole[dim]
    view = [whole_dim(0, length) if d == dim else uniform(n) for d, n in enumerate(whole)]
    tie = Tie(Ramp(length), tuple(view), shift=(0, 0))
    exact = holds_all_to(eqn.per_rank.out_dtypes[0], length)
    if size == length:
        return Relation(tuple(dims), tie=tie if exact else None)
    if size == 0 or length % size or not exact:
        raise Refused(
            "LAYOUT_RANK_INDEX",
            f"iota counts to {size} on each of n ranks and to {length} on one",
            because="the numbers of a rank's own block start at 0 on every rank",
            fixes=("pass the positions as a Sliced argument",),
        )
    first = normal([Digit(dim, size, length // size)])
    return Relation(tuple(dims), {FIRST: first}, tie=tie)


@layout_rule("axis_index")
def _axis_index(eqn: Equation) -> Relation:
    given = eqn.per_rank.params["axis_name"]
    axes = (given,) if isinstance(given, str) else tuple(given)
    if any(axis not in eqn.sizes for axis in axes):
        raise Refused("LAYOUT_UNSUPPORTED", "axis_index over the axis of a vmap has no rule")
    return constant((), (rank_along(axes, eqn.sizes), 0))


@layout_rule("slice")
def _slice(eqn: Equation, x: Relation) -> Relation:
    n, one = eqn.per_rank, eqn.whole
    bounds = zip(n.params["start_indices"], n.params["limit_indices"], strict=True)
    whole_bounds = zip(one.params["start_indices"], one.params["limit_indices"], strict=True)
    ones = (1,) * len(n.shapes[0])
    strides = zip(*((side.params["strides"] or ones) for side in (n, one)), strict=True)
    steps = [any(step != 1 for step in both) for both in strides]
    for dim, ((start, limit), (whole_start, whole_limit)) in enumerate(
        zip(bounds, whole_bounds, strict=True)
    ):
        size, whole, strided = n.shapes[0][dim], one.shapes[0][dim], steps[dim]
        if (start, limit) == (0, size) and (whole_start, whole_limit) == (0, whole) and not strided:
            continue
        x = _part(
            eqn, x, dim, (start, limit, size), (whole_start, whole_limit, whole), strided=strided
        )
    return x


Span = tuple[int, int, int]
"""start, limit and size of a dimension."""


def _part(
    eqn: Equation, x: Relation, dim: int, here: Span, whole: Span, *, strided: bool = False
) -> Relation:
    """`dim` cut to a span: the same of a dimension held whole, or leading digits of a sliced
    one."""
    start, limit, size = here
    whole_start, whole_limit, whole_size = whole
    digits = x.dims[dim]
    same = not any(d.dim == dim for held in x.ranks.values() for d in held) and not any(
        d.dim == dim for at, held in enumerate(x.dims) for d in held if at != dim
    )
    if same and here == whole and in_place(digits, dim, size):
        length = len(range(start, limit)) if not strided else eqn.per_rank.out_shapes[0][dim]
        new = uniform(length) if digits == uniform(size) else whole_dim(dim, length)
        return _with_dim(x, dim, new)
    if same and not strided and all(d.dim == UNIFORM for d in digits):
        return _with_dim(x, dim, uniform(limit - start))
    length, whole_length = limit - start, whole_limit - whole_start
    aligned = (
        not strided
        and length > 0
        and whole_length > 0
        and start % length == 0
        and whole_start % whole_length == 0
        and size % length == 0
        and size // length == whole_size // whole_length
        and whole_size % whole_length == 0
        and start // length == whole_start // whole_length
    )
    if aligned:
        try:
            lead, rest = take(digits, size // length)
        except CutError:
            lead, rest = (), ()
        if lead == normal([Digit(dim, whole_length, size // length)]):
            return _with_dim(x, dim, rest)
    raise Refused(
        "LAYOUT_SLICE",
        f"{eqn.op} takes [{start}:{limit}] of dimension {dim} on each rank and "
        f"[{whole_start}:{whole_limit}] "
        f"on one, but {eqn.name(0)} is {eqn.layout(0)}",
        because="the same positions of a rank's block are other elements of the whole",
        fixes=("slice a dimension that every rank holds whole, or gather it first",),
    )


def _with_dim(x: Relation, dim: int, digits: Digits) -> Relation:
    return replace(x, dims=(*x.dims[:dim], digits, *x.dims[dim + 1 :]))


@layout_rule("split")
def _split(eqn: Equation, x: Relation) -> Sequence[Relation]:
    dim: int = eqn.per_rank.params["axis"]
    size, whole_size = eqn.per_rank.shapes[0][dim], eqn.whole.shapes[0][dim]
    start = whole_start = 0
    parts: list[Relation] = []
    for length, whole_length in zip(
        eqn.per_rank.params["sizes"], eqn.whole.params["sizes"], strict=True
    ):
        here = (start, start + int(length), size)
        whole = (whole_start, whole_start + int(whole_length), whole_size)
        parts.append(_part(eqn, x, dim, here, whole))
        start, whole_start = here[1], whole[1]
    return parts


@layout_rule("concatenate")
def _concatenate(eqn: Equation, *operands: Relation) -> Relation:
    dim: int = eqn.per_rank.params["dimension"]
    sizes = [shape[dim] for shape in eqn.per_rank.shapes]
    whole_sizes = [shape[dim] for shape in eqn.whole.shapes]
    # What the operands share is everything but the joined dimension.
    along = [operand.dims[dim] for operand in operands]
    full = sizes == whole_sizes and all(
        in_place(digits, dim, n) for digits, n in zip(along, sizes, strict=True)
    )
    full = full and not any(
        digit.dim == dim for x in operands for held in x.ranks.values() for digit in held
    )
    others = [_with_dim(operand, dim, ()) for operand in operands]
    if full:
        base = together(eqn, others)
        joined = whole_dim(dim, sum(sizes))
    else:
        base = together(eqn, operands)
        if len(set(sizes)) != 1 or len(set(whole_sizes)) != 1:
            raise _uneven(eqn)
        joined = normal((Digit(dim, whole_sizes[0], len(operands)), *base.dims[dim]))
    scale, partial = chosen(eqn, operands)
    return result(base, _with_dim(base, dim, joined).dims, scale, partial)


def _uneven(eqn: Equation) -> Refused:
    return Refused(
        "LAYOUT_SLICE",
        "concatenate joins blocks of different lengths along a dimension that is sliced",
        because="the ranks' blocks of the result would interleave unevenly",
    )
