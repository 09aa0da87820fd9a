"""Functions that are pointwise in some dimensions and need all of the others.

A rule of such a function gives, for every dimension of an operand or result, the number of the
*joint dimension* that it walks, or None if the function reads or makes that dimension as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc.layout._digits import Digits, in_place, renumbered, uniform, whole_dim
from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused
from jaxcc.layout.rules._combine import (
    measured,
    partial_and_sliced,
    partial_refused,
    require_unit,
    result,
    together,
)

Labels = Sequence[int | None]


def joint(
    eqn: Equation,
    operands: Sequence[Relation],
    reads: Sequence[Labels],
    fixes: tuple[str, ...] = (),
) -> Relation:
    """The operands walked together in the joint dimensions, the others being held whole.

    An operand is uniform along a joint dimension that it has not. Scale and pending reductions are
    left to the caller.

    Args:
      eqn: the equation.
      operands: the relations of its operands.
      reads: for each operand, what each of its dimensions is.
      fixes: what to do, besides a gather, about a sliced dimension that has to be whole.
    """
    extents: dict[int, int] = {}
    for index, (x, labels) in enumerate(zip(operands, reads, strict=True)):
        for dim, (label, size) in enumerate(zip(labels, x.shape, strict=True)):
            if label is None:
                require_full(eqn, x, dim, index, fixes)
            else:
                extents[label] = size
    shape = [extents[label] for label in range(len(extents))]
    lifted = [_lifted(x, labels, shape) for x, labels in zip(operands, reads, strict=True)]
    return together(eqn, lifted)


def _lifted(x: Relation, labels: Labels, shape: Sequence[int]) -> Relation:
    place = {dim: label for dim, label in enumerate(labels) if label is not None}
    return replace(lifted(x, place, place, shape), const=None)


def lifted(
    x: Relation, at: Mapping[int, int], whole_at: Mapping[int, int], shape: Sequence[int]
) -> Relation:
    """The operand over joint dimensions of sizes `shape`, uniform along those that it has not.

    Args:
      x: the operand.
      at: which joint dimension each of a rank's dimensions walks.
      whole_at: the same for those of a group of one.
      shape: a rank's.
    """
    dims = [uniform(size) for size in shape]
    for dim, label in at.items():
        dims[label] = renumbered(x.dims[dim], whole_at)
    ranks = {axis: renumbered(digits, whole_at) for axis, digits in x.ranks.items()}
    return replace(x, dims=tuple(dims), ranks=ranks)


def laid_out(eqn: Equation, base: Relation, labels: Labels, index: int = 0) -> Relation:
    """What the function makes of joint operands `base`, as result number `index`."""
    shape, whole = eqn.per_rank.out_shapes[index], eqn.whole.out_shapes[index]
    place = {label: dim for dim, label in enumerate(labels) if label is not None}
    dims: list[Digits] = []
    for dim, (label, size) in enumerate(zip(labels, shape, strict=True)):
        if label is not None:
            dims.append(renumbered(base.dims[label], place))
            continue
        if size != whole[dim]:
            raise Refused(
                "LAYOUT_STRUCTURE",
                f"{eqn.op} makes {size} elements along dimension {dim} on n ranks and "
                f"{whole[dim]} on one",
                because="the program computes another function on one rank than on n",
                fixes=("let it not depend on the group's size",),
            )
        dims.append(whole_dim(dim, size))
    ranks = {axis: renumbered(digits, place) for axis, digits in base.ranks.items()}
    return replace(base, dims=tuple(dims), ranks=ranks)


def batched(eqn: Equation, operands: Sequence[Relation], cores: Sequence[int]) -> list[Relation]:
    """A function of each operand's trailing dimensions, as many as `cores` says, for every index
    along the leading ones, which all operands and results share."""
    ranks = [len(x.dims) - core for x, core in zip(operands, cores, strict=True)]
    lead = max(ranks, default=0)
    reads = [
        [*range(lead - rank, lead), *[None] * core] for rank, core in zip(ranks, cores, strict=True)
    ]
    base = joint(eqn, operands, reads)
    return [
        laid_out(eqn, base, [*range(lead), *[None] * (len(shape) - lead)], index)
        for index, shape in enumerate(eqn.per_rank.out_shapes)
    ]


def require_full(
    eqn: Equation, x: Relation, dim: int, index: int = 0, fixes: tuple[str, ...] = ()
) -> None:
    """Refuses an operation along `dim` that needs all of it, in order, where a rank holds a
    part."""
    n, whole = eqn.per_rank.shapes[index][dim], eqn.whole.shapes[index][dim]
    elsewhere = any(
        digit.dim == dim
        for digits in (*x.dims[:dim], *x.dims[dim + 1 :], *x.ranks.values())
        for digit in digits
    )
    if n == whole and in_place(x.dims[dim], dim, whole) and not elsewhere:
        return
    raise Refused(
        "LAYOUT_NEEDS_WHOLE_DIM",
        f"{eqn.op} along dimension {dim} needs all of it, but {eqn.name(index)} is "
        f"{eqn.layout(index)}",
        because="a rank sees only its own block of the dimension",
        fixes=(*fixes, *_combinator(eqn.op), f"all_gather dimension {dim} first"),
    )


_COMBINATORS = frozenset({"argmax", "argmin", "top_k", "cumsum", "cumprod", "cummax", "cummin"})


def _combinator(op: str) -> tuple[str, ...]:
    """What computes `op` over a dimension of which ranks hold blocks."""
    return (f"use jaxcc.comm.{op}",) if op in _COMBINATORS else ()


def linear_in(eqn: Equation, operands: Sequence[Relation], index: int, base: Relation) -> Relation:
    """The result of a function that is linear in operand `index`; the caller looks at the
    others."""
    x = operands[index]
    for axis, op in x.partial.items():
        if op != "sum":
            why = f"{eqn.op} of a {op} over ranks is not the {op} of {eqn.op}s"
            raise partial_refused(eqn, index, axis, op, why)
        if any(axis in operand.ranks for operand in operands):
            raise partial_and_sliced(eqn, operands, axis)
    partial: dict[str, ReduceOp] = dict(x.partial)
    return result(base, base.dims, measured(eqn, index, x), partial)


def ordered_scale(eqn: Equation, index: int, x: Relation) -> float:
    """The scale of an operand that is only compared with itself: any positive one will do."""
    scale = measured(eqn, index, x)
    if scale <= 0 or kind_of(eqn.per_rank.dtypes[index]) == "u":
        require_unit(eqn.only(index), [x], f"{eqn.op} of negated values is another one")
    return scale
