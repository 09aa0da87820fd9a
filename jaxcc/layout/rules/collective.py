"""Collectives move digits between dimensions and ranks, or finish a pending reduction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcc.layout._digits import PER_RANK, CutError, Digit, Digits, normal, regroup, take, uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._ranked import each_rank, ranked
from jaxcc.layout._relation import Relation, constant, select
from jaxcc.layout._rules import Equation, Refused, collective_rule
from jaxcc.layout._settle import settled
from jaxcc.layout._turns import TESTED_ONLY, passed, passed_on
from jaxcc.layout.rules._combine import measured, partial_refused

_REDUCTIONS: Mapping[str, ReduceOp] = {
    "psum": "sum",
    "pmax": "max",
    "pmin": "min",
    "unreduced_psum": "sum",
    "unreduced_pmax": "max",
    "unreduced_pmin": "min",
}


def axes_of(eqn: Equation) -> tuple[str, ...]:
    """The axes of a collective, major first; refuses parts of an axis, and axes of vmap."""
    params = eqn.per_rank.params
    if params.get("axis_index_groups") is not None:
        raise Refused("LAYOUT_UNSUPPORTED", f"{eqn.op} with axis_index_groups has no rule")
    given = params.get("axes", params.get("axis_name", ()))
    axes = (given,) if isinstance(given, str) else tuple(given)
    if len(set(axes)) != len(axes):
        raise Refused(
            "LAYOUT_AXIS",
            f"{eqn.op} names an axis twice: {axes}",
            because="a rank takes part in a collective once",
            fixes=("name each axis once",),
        )
    if any(axis not in eqn.sizes for axis in axes):
        raise Refused("LAYOUT_UNSUPPORTED", f"{eqn.op} over the axis of a vmap has no rule")
    return axes


def finished(eqn: Equation, x: Relation, axis: str, op: ReduceOp) -> Relation:
    """`x` after a reduction over the ranks of `axis`.

    The sum of what n ranks hold alike is n times it: the scale says so, and is refused where it
    matters.
    """
    held = x.partial.get(axis)
    if held is not None and held != op:
        raise partial_refused(eqn, 0, axis, held, f"{eqn.op} over '{axis}' reduces with {op}")
    if axis in x.ranks:
        raise Refused(
            "LAYOUT_SUM_OF_SLICES",
            f"{eqn.op} over '{axis}' mixes different slices: {eqn.name(0)} is {eqn.layout(0)}",
            because=(
                "each rank holds another block, so element i of the result has no "
                "meaning on a group of one"
            ),
            fixes=(f"all_gather over '{axis}' to put the blocks together",),
        )
    partial: dict[str, ReduceOp] = {a: kind for a, kind in x.partial.items() if a != axis}
    if any(kind != op for kind in partial.values()):
        other = next(a for a, kind in partial.items() if kind != op)
        why = f"{op} does not commute with {partial[other]}"
        raise partial_refused(eqn, 0, other, partial[other], why)
    done = replace(x, partial=partial, local=x.local - {axis})
    counted = op == "sum" and held is None and axis not in x.local
    if not counted:
        return done
    return x.scaled(measured(eqn, 0, x) * eqn.sizes[axis])


_NUMBERS: Mapping[ReduceOp, Any] = {"sum": np.sum, "max": np.max, "min": np.min}


def _of_numbers(eqn: Equation, x: Relation, axes: Sequence[str], op: ReduceOp) -> Relation:
    """The reduction of a number that is known for every rank."""
    assert x.const is not None
    at_n, at_1 = x.const
    shape = tuple(eqn.sizes.values())
    table = np.array(each_rank(at_n, math.prod(shape))).reshape(shape)
    over = tuple(list(eqn.sizes).index(axis) for axis in axes)
    total = np.broadcast_to(_NUMBERS[op](table, axis=over, keepdims=True), shape)
    return constant(x.shape, (ranked(total.ravel().tolist()), at_1))


@collective_rule(*_REDUCTIONS, by_rank=True)
def _all_reduce(eqn: Equation, x: Relation) -> Relation:
    if x.const is not None:
        return _of_numbers(eqn, x, axes_of(eqn), _REDUCTIONS[eqn.op])
    x = settled(eqn, 0, x)
    for axis in axes_of(eqn):
        x = finished(eqn, x, axis, _REDUCTIONS[eqn.op])
    return x


def _dropped(
    params: Mapping[str, Any], dims: Sequence[Digits], out: Sequence[int]
) -> Sequence[Digits]:
    """On a group of one an untiled collective only adds or removes a dimension of size 1."""
    return regroup(dims, out)


@collective_rule("reduce_scatter", "unreduced_reduce_scatter", alone=_dropped)
def _reduce_scatter(eqn: Equation, x: Relation) -> Relation:
    params = eqn.per_rank.params
    dim: int = params["scatter_dimension"]
    axes = axes_of(eqn)
    for axis in axes:
        x = finished(eqn, x, axis, "sum")
    for axis in axes:
        x = scattered(eqn, x, axis, dim)
    return x if params["tiled"] else replace(x, dims=x.dims[:dim] + x.dims[dim + 1 :])


def scattered(eqn: Equation, x: Relation, axis: str, dim: int) -> Relation:
    """The rank's block of `dim` of a value that every rank along `axis` holds alike."""
    try:
        mine, rest = take(x.dims[dim], eqn.sizes[axis])
    except CutError:
        raise Refused(
            "LAYOUT_RESHAPE",
            f"{eqn.op} cuts dimension {dim} of {eqn.name(0)} where its parts do not "
            f"divide by {eqn.sizes[axis]}",
        ) from None
    dims = (*x.dims[:dim], rest, *x.dims[dim + 1 :])
    own = [digit.dim == PER_RANK for digit in mine]
    if any(own):
        if not all(own):
            raise Refused(
                "LAYOUT_MISMATCH",
                f"{eqn.op} over '{axis}' cuts {eqn.name(0)} across what ranks have of their own",
            )
        # What each of the ranks had by itself is one rank's own again.
        ranks = select(x.ranks, axis, ())
        return replace(x, dims=dims, ranks=ranks, local=x.local | {axis}, const=None)
    return replace(x, dims=dims, ranks=select(x.ranks, axis, mine))


def _lead(eqn: Equation, x: Relation, axis: str) -> Digits:
    """The digits that a gather over `axis` puts in front: one block per rank."""
    if axis in x.local:
        return (Digit(PER_RANK, 1, eqn.sizes[axis]),)
    return x.ranks.get(axis, uniform(eqn.sizes[axis]))


def _refuse_pending(eqn: Equation, x: Relation, axes: Sequence[str]) -> None:
    for axis in axes:
        if axis in x.partial:
            op = x.partial[axis]
            raise partial_refused(eqn, 0, axis, op, "the parts of a sum would lie side by side")


@collective_rule("all_gather", "all_gather_reduced", alone=_dropped)
def _all_gather(eqn: Equation, x: Relation) -> Relation:
    params = eqn.per_rank.params
    dim: int = params["all_gather_dimension"]
    axes = axes_of(eqn)
    _refuse_pending(eqn, x, axes)
    if not params["tiled"]:
        x = replace(x, dims=(*x.dims[:dim], (), *x.dims[dim:]))
    return gathered(eqn, x, axes, dim)


def gathered(eqn: Equation, x: Relation, axes: Sequence[str], dim: int) -> Relation:
    """The ranks' blocks, or copies, along `axes`, the major one first, in front of dimension
    `dim`."""
    for axis in reversed(axes):
        front = normal(_lead(eqn, x, axis) + x.dims[dim])
        dims = (*x.dims[:dim], front, *x.dims[dim + 1 :])
        x = replace(x, dims=dims, ranks=select(x.ranks, axis, ()), local=x.local - {axis})
    return x


@collective_rule("all_to_all", alone=_dropped)
def _all_to_all(eqn: Equation, x: Relation) -> Relation:
    params = eqn.per_rank.params
    split: int = params["split_axis"]
    concat: int = params["concat_axis"]
    axes = axes_of(eqn)
    if len(axes) != 1:
        raise Refused("LAYOUT_UNSUPPORTED", "all_to_all over several axes has no rule yet")
    (axis,) = axes
    _refuse_pending(eqn, x, axes)
    front = _lead(eqn, x, axis)
    ranks = x.ranks
    x = scattered(eqn, x, axis, split)
    if axis in x.local:
        x = replace(x, ranks=ranks)
    dims = list(x.dims)
    if not params["tiled"]:
        del dims[split]
        dims.insert(concat, ())
    dims[concat] = normal(front + dims[concat])
    return replace(x, dims=tuple(dims))


def _kept(
    params: Mapping[str, Any], dims: Sequence[Digits], out: Sequence[int]
) -> Sequence[Digits]:
    """On a group of one a permutation without its rank makes zeros."""
    if [tuple(pair) for pair in params["perm"]] != [(0, 0)]:
        raise CutError
    return dims


@collective_rule("ppermute", alone=_kept, turns=True)
def _permute(eqn: Equation, x: Relation) -> Relation:
    axes = axes_of(eqn)
    pairs: Sequence[tuple[int, int]] = eqn.per_rank.params["perm"]
    every = set(range(math.prod(eqn.sizes[axis] for axis in axes)))
    if {source for source, _ in pairs} != every or {to for _, to in pairs} != every:
        raise Refused(
            "LAYOUT_RANK_DEPENDENT",
            f"{eqn.op} leaves out ranks of {', '.join(axes)}, which receive zeros",
            because="a group of one receives zeros too, or all, whatever the others do; so it can "
            "be neither proved nor scheduled",
            fixes=(
                TESTED_ONLY,
                "for a typed function or a schedule: send to all, [(i, (i + 1) % n) for i in "
                f"range(n)], and multiply what arrives by (jax.lax.axis_index({axes[0]!r}) > 0)",
            ),
        )
    if len(axes) == 1 and axes[0] in x.ranks:
        return passed(x, axes[0], pairs)
    for axis in axes:
        if axis in x.ranks:
            raise passed_on(eqn, 0, axis, f"{eqn.op} mixes up the ranks of several axes")
    kinds = {
        "local" if axis in x.local else x.partial.get(axis, "plain")
        for axis in axes
        if eqn.sizes[axis] > 1
    }
    if len(kinds) > 1:
        raise Refused(
            "LAYOUT_RANK_DEPENDENT",
            f"{eqn.op} over {', '.join(axes)} mixes up the ranks of these axes, and "
            f"{eqn.name(0)} is {eqn.layout(0)}",
            because="one rank's term would be counted twice and another's not at all",
            fixes=("permute over one axis at a time",),
        )
    # What all ranks hold, and a reduction over what they hold, do not change if they change places.
    return x


@collective_rule("pbroadcast", "jaxcc_broadcast")
def _broadcast(eqn: Equation, x: Relation) -> Relation:
    """What one rank holds, for all of them."""
    axes = axes_of(eqn)
    _refuse_pending(eqn, x, axes)
    if any(axis in x.ranks for axis in axes):
        raise Refused(
            "LAYOUT_RANK_DEPENDENT",
            f"a broadcast gives all ranks one rank's block of {eqn.name(0)}, which is "
            f"{eqn.layout(0)}",
            because="a group of one has the whole there",
            fixes=("all_gather it",),
        )
    return replace(x, local=x.local - set(axes))


@collective_rule("jaxcc_on_root")
def _on_root(eqn: Equation, x: Relation) -> Relation:
    """What one rank holds, and zeros on the others: what they hold adds up to it."""
    axes = axes_of(eqn)
    _refuse_pending(eqn, x, axes)
    for axis in axes:
        if axis in x.ranks:
            raise Refused(
                "LAYOUT_RANK_DEPENDENT",
                f"only one rank's block of {eqn.name(0)}, which is {eqn.layout(0)}, is kept",
                because="a group of one has the whole there",
                fixes=("gather it to the root",),
            )
    for axis, op in x.partial.items():
        if op != "sum":
            raise partial_refused(eqn, 0, axis, op, "zeros of other ranks would count")
    here = {axis: "sum" for axis in axes if axis not in x.local}
    return replace(settled(eqn, 0, x), partial={**x.partial, **here}, const=None)


@collective_rule("vary_unreduced_cast", "vary_unreduced_cast_p")
def _declared_pending(eqn: Equation, x: Relation) -> Relation:
    for axis in axes_of(eqn):
        if x.partial.get(axis) != "sum" and axis not in x.local:
            raise Refused(
                "LAYOUT_MISMATCH",
                f"{eqn.op} declares a pending sum over '{axis}', but {eqn.name(0)} is "
                f"{eqn.layout(0)}",
                fixes=("leave out the cast",),
            )
    return x


@collective_rule("jaxcc_own_slice")
def _own_slice(eqn: Equation, x: Relation) -> Relation:
    params = eqn.per_rank.params
    axis, dim = str(params["axis"]), int(params["dim"])
    if not x.plain_over(axis):
        raise Refused(
            "LAYOUT_MISMATCH",
            f"a rank takes its slice of a value that every rank holds, but {eqn.name(0)} "
            f"is {eqn.layout(0)}",
        )
    return scattered(eqn, x, axis, dim)
