"""What rules of several families share: digits walked together, scales, and pending reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._advice import (
    OTHER_CONSTANT,
    after_the_sum,
    compared,
    constant_repairs,
    pending_repairs,
    reduction_repair,
)
from jaxcc.layout._constants import number_text
from jaxcc.layout._digits import CutError, Digits
from jaxcc.layout._dtypes import kind_of
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import ANY_SCALE, Relation, joined, same_scale
from jaxcc.layout._repair import Repair
from jaxcc.layout._rules import Equation, Refused

COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to")
_VOCABULARY = (
    "ids in a slice of a vocabulary: mine = ids - jax.lax.axis_index(axis) * rows; own = "
    "(mine >= 0) & (mine < rows)"
)


def together(eqn: Equation, operands: Sequence[Relation]) -> Relation:
    """The digits of all operands, and Local where one of them is; scale and partial are left to the
    caller."""
    local = frozenset[str]().union(*(operand.local for operand in operands))
    for axis in local:
        for index, operand in enumerate(operands):
            if axis in operand.ranks:
                raise Refused(
                    "LAYOUT_MISMATCH",
                    f"{eqn.op} mixes {eqn.name(index)}, sliced over '{axis}', with a value "
                    f"that is Local "
                    f"over '{axis}'",
                    because="a rank's own value belongs to no slice",
                )
    try:
        dims, ranks = joined(operands)
    except CutError:
        raise _mismatch(eqn, operands) from None
    unmeasured = any(operand.unmeasured for operand in operands)
    return Relation(dims, ranks, local=local, unmeasured=unmeasured)


def _mismatch(eqn: Equation, operands: Sequence[Relation]) -> Refused:
    shown = [
        f"{eqn.layout(i)}{' in another order' if _reordered(x) else ''}"
        for i, x in enumerate(operands)
    ]
    if any(map(_reordered, operands)):
        fixes = (
            "gather and reshape so that blocks lie along the dimension that they are blocks of: "
            "jax.lax.all_gather(..., axis=that dimension, tiled=True)",
        )
    elif len(set(shown)) == 1:
        fixes = (
            "all_gather one of them first",
            'for a ring: jaxcc.comm.ring, or check(..., structure="rank-dependent")',
        )
    else:
        fixes = ("give the operands one layout, or gather the sliced one (all_gather) first",)
    return Refused(
        "LAYOUT_MISMATCH",
        f"the operands of {eqn.op} are different parts of the whole: "
        f"{' and '.join(dict.fromkeys(shown))}",
        because="element i of one operand does not belong to element i of the other on every rank",
        fixes=fixes,
    )


def _reordered(x: Relation) -> bool:
    """Whether a dimension walks a part of another one, or several parts of its own."""
    return any(
        len(digits) > 1 or any(digit.named and digit.dim != dim for digit in digits)
        for dim, digits in enumerate(x.dims)
    )


def measured(eqn: Equation, index: int, operand: Relation) -> float:
    """The operand's scale, if it has one."""
    if math.isnan(operand.scale):
        raise Refused(
            "LAYOUT_SCALE",
            f"{eqn.name(index)} is {_pair(operand)}: no factor leads from one to the other",
            because="the constant depends on the group's size",
        )
    return operand.scale


def product(eqn: Equation, a: float, b: float) -> float:
    """The scale of a product.

    Refuses a negative factor of 0 or an infinity, whose sign it turns.
    """
    unbounded = math.isinf(a) or math.isinf(b)
    if unbounded and (a < 0 or b < 0):
        raise _unknown_sign(eqn)
    return ANY_SCALE if unbounded else a * b


def _unknown_sign(eqn: Equation) -> Refused:
    return Refused("LAYOUT_SCALE", f"{eqn.op} of values whose sign depends on the group's size")


def _pair(operand: Relation) -> str:
    if operand.const is None:
        return "different on n ranks and on one"
    at_n, at_1 = operand.const
    return f"{number_text(at_n)} on n ranks and {number_text(at_1)} on one"


def common_scale(
    eqn: Equation,
    scales: Sequence[float],
    positive: bool = False,
    counts: Sequence[int] | None = None,
) -> float:
    """The one scale of values that are added, compared or chosen from.

    Args:
      eqn: the equation.
      scales: of each operand.
      positive: whether a negative one is refused.
      counts: how often a pending sum counts each operand; `scales` include it.
    """
    known = [(i, scale) for i, scale in enumerate(scales) if not math.isinf(scale)]
    if not known:
        return ANY_SCALE
    first, scale = known[0]
    if positive and any(kind_of(dtype) == "u" for dtype in eqn.per_rank.dtypes):
        require_ordered(eqn, first, scale)
    # Of 0 and the infinities a negative factor makes others.
    positive = positive or len(known) < len(scales)
    for index, other in known[1:]:
        if not same_scale(scale, other, _exact_type(eqn)):
            raise _unlike(eqn, scales, (first, index), counts or [1] * len(scales))
    if positive and scale <= 0:
        raise _unknown_sign(eqn)
    return scale


def _exact_type(eqn: Equation) -> Any:
    """The element type of the operands if they all have one: of integers no ratio is rounded."""
    numbers = {dtype for dtype in eqn.per_rank.dtypes if kind_of(dtype) != "b"}
    return numbers.pop() if len(numbers) == 1 else None


def _unlike(
    eqn: Equation, scales: Sequence[float], pair: tuple[int, int], counts: Sequence[int]
) -> Refused:
    """The error for two operands whose ratio changes with the number of ranks."""
    repairs: list[Repair] = []
    extra: list[str] = []
    for index, other in (pair, pair[::-1]):
        number = eqn.number(index)
        const = _changing(eqn, index)
        if const is not None:
            found = constant_repairs(const, scales[index] / scales[other], eqn.sizes, number)
            repairs += found
            extra += () if found else (OTHER_CONSTANT,)
            if kind_of(eqn.per_rank.dtypes[index]) in ("i", "u") and eqn.op in (*COMPARES, "rem"):
                extra.append(_VOCABULARY)
        elif same_scale(scales[other], 1.0) and counts[other] == 1:
            repairs.append(Repair((), number, traced=True, name=eqn.name(index)))
    if not repairs and not extra:
        extra = ["bring both to what a group of one has before they meet (psum, pmean, axis_size)"]
    return Refused(
        "LAYOUT_SCALE",
        f"{eqn.op} takes {_sized(eqn, scales, pair[0], counts)}, "
        f"and {_sized(eqn, scales, pair[1], counts)}",
        because="the ratio of the operands changes with the number of ranks",
        fixes=(*(fix for repair in repairs for fix in repair.fixes), *extra),
        repairs=tuple(repairs),
    )


def _changing(eqn: Equation, index: int) -> tuple[Any, Any] | None:
    """The number that an operand is on n ranks and on one, if they differ."""
    held = eqn.held(index)
    const = held.relation.const if held is not None and held.relation is not None else None
    return const if const is not None and const[0] != const[1] else None


def _sized(eqn: Equation, scales: Sequence[float], index: int, counts: Sequence[int]) -> str:
    """An operand with its size in relation to the group of one."""
    const = _changing(eqn, index)
    if const is not None:
        return (
            f"a number that depends on the number of ranks: {number_text(const[0])} on n ranks "
            f"and {number_text(const[1])} on one (from a literal or a shape)"
        )
    own = f"{eqn.name(index)}, which {compared(scales[index] / counts[index])}"
    return own if counts[index] == 1 else f"{own} and is counted {counts[index]} times"


def require_ordered(eqn: Equation, index: int, scale: float) -> None:
    """Refuses a multiple of unsigned integers, which wraps around and has another order."""
    if same_scale(scale, 1.0, _exact_type(eqn)):
        return
    raise Refused(
        "LAYOUT_SCALE",
        f"{eqn.name(index)} {compared(scale)}, and {eqn.op} needs it equal",
        because="a multiple of an unsigned integer wraps around, and is ordered otherwise",
    )


def require_unit(eqn: Equation, operands: Sequence[Relation], why: str) -> None:
    """Refuses operands whose scale is not 1."""
    for index, operand in enumerate(operands):
        scale = measured(eqn, index, operand)
        if not math.isinf(scale) and not same_scale(scale, 1.0, _exact_type(eqn)):
            repairs, fixes = _unit_repairs(eqn, index, scale)
            raise Refused(
                "LAYOUT_SCALE",
                f"{eqn.name(index)} {compared(scale)}, and {eqn.op} needs it equal",
                because=why,
                fixes=fixes,
                repairs=repairs,
            )


def _unit_repairs(
    eqn: Equation, index: int, scale: float
) -> tuple[tuple[Repair, ...], tuple[str, ...]]:
    """What makes an operand equal to that of a group of one: what can be tried, and all of it."""
    const, number = _changing(eqn, index), eqn.number(index)
    if const is None:
        return (Repair((), number, traced=True, name=eqn.name(index)),), ()
    repairs = constant_repairs(const, scale, eqn.sizes, number)
    return repairs, tuple(fix for one in repairs for fix in one.fixes) or (OTHER_CONSTANT,)


def require_whole(eqn: Equation, operands: Sequence[Relation], why: str) -> None:
    """Refuses operands that are still to be reduced."""
    for index, operand in enumerate(operands):
        for axis, op in operand.partial.items():
            raise partial_refused(eqn, index, axis, op, why)


# Where a maximum is taken over a sliced dimension, it mostly is the first step of one of these.
_OF_MAXIMA = (
    "over a sliced dimension: jaxcc.comm.softmax, jaxcc.comm.logsumexp, jaxcc.comm.cross_entropy",
)


def partial_refused(
    eqn: Equation, index: int, axis: str, op: ReduceOp, why: str, also: tuple[str, ...] = ()
) -> Refused:
    """The error for an operation that does not commute with a pending reduction; `also` are more
    fixes, which are not tried."""
    held = eqn.held(index)
    relation = held.relation if held is not None else None
    known = relation if relation is not None else Relation((), partial={axis: op})
    number, name = eqn.number(index), eqn.name(index)
    repairs = pending_repairs(known, axis, op, eqn.sizes, f"before {eqn.op}", number, name)
    return Refused(
        "LAYOUT_PARTIAL_NONLINEAR",
        f"{eqn.op} needs the whole value, but {eqn.name(index)} is Partial({op}) over '{axis}'",
        because=why + after_the_sum(known, repairs),
        fixes=(*repairs[0].fixes, *also, *(_OF_MAXIMA if op == "max" else ())),
        repairs=repairs,
    )


def additive(eqn: Equation, operands: Sequence[Relation]) -> tuple[float, Mapping[str, ReduceOp]]:
    """Scale and pending sums of a sum of `operands`.

    A value that every rank holds, with scale t, is a pending sum over n ranks with scale n t.
    """
    axes = {
        axis for operand in operands for axis in operand.partial if axis not in _local(operands)
    }
    scales = [measured(eqn, i, operand) for i, operand in enumerate(operands)]
    for axis in sorted(axes):
        if any(axis in operand.ranks for operand in operands):
            raise partial_and_sliced(eqn, operands, axis)
        for index, operand in enumerate(operands):
            op = operand.partial.get(axis)
            if op is not None and op != "sum":
                raise partial_refused(eqn, index, axis, op, f"{op} does not commute with {eqn.op}")
    counts = [
        math.prod(eqn.sizes[axis] for axis in axes if axis not in operand.partial)
        for operand in operands
    ]
    counted = [scale * count for scale, count in zip(scales, counts, strict=True)]
    try:
        scale = common_scale(eqn, counted, counts=counts)
    except Refused:
        if axes:
            _refuse_counted(eqn, operands, scales, sorted(axes))
        raise
    return scale, dict.fromkeys(axes, "sum")


def _local(operands: Sequence[Relation]) -> frozenset[str]:
    return frozenset[str]().union(*(operand.local for operand in operands))


def partial_and_sliced(eqn: Equation, operands: Sequence[Relation], axis: str) -> Refused:
    """The error for a value that is pending over `axis` where another operand is sliced over it."""
    index = next(i for i, operand in enumerate(operands) if axis in operand.partial)
    other = next(i for i, operand in enumerate(operands) if axis in operand.ranks)
    op = operands[index].partial[axis]
    why = f"each rank would pair its own slice of {eqn.name(other)} with its own term"
    return partial_refused(eqn, index, axis, op, why)


def _refuse_counted(
    eqn: Equation, operands: Sequence[Relation], scales: Sequence[float], axes: Sequence[str]
) -> None:
    for axis in axes:
        n = eqn.sizes[axis]
        pending = [
            s for s, operand in zip(scales, operands, strict=True) if axis in operand.partial
        ]
        for index, operand in enumerate(operands):
            if axis in operand.partial or math.isinf(scales[index]):
                continue
            if any(same_scale(scales[index], scale) for scale in pending):
                name = eqn.name(index)
                fixes = (
                    f"add {name} after the sum over '{axis}'",
                    f"add {name} / jax.lax.axis_size('{axis}')",
                )
                raise Refused(
                    "LAYOUT_COUNTED",
                    f"{name} is counted {n} times: it is Replicated over '{axis}' and "
                    f"added to a value that "
                    f"is Partial(sum) over '{axis}'",
                    because=f"the sum over the {n} ranks adds {name} once for each rank",
                    fixes=fixes,
                    repairs=(
                        Repair(fixes, eqn.number(index), powers=((axis, -1),)),
                        _reduced_before(eqn, operands, axis, name),
                    ),
                ) from None


def _reduced_before(eqn: Equation, operands: Sequence[Relation], axis: str, name: str) -> Repair:
    """The all-reduce of what is pending, before the sum with `name`."""
    index = next(i for i, operand in enumerate(operands) if axis in operand.partial)
    when = f"of {eqn.name(index)}, before {name} is added"
    repair = reduction_repair(operands[index], axis, "sum", eqn.sizes, when, eqn.number(index))
    return replace(repair, last=True)


def multiplicative(
    eqn: Equation, operands: Sequence[Relation], linear: Sequence[int] | None = None
) -> Mapping[str, ReduceOp]:
    """Pending reductions of a product; only the factors in `linear` (default: all) may be
    pending."""
    local = _local(operands)
    out: dict[str, ReduceOp] = {}
    for axis in sorted({axis for operand in operands for axis in operand.partial} - local):
        holders = [i for i, operand in enumerate(operands) if axis in operand.partial]
        index = holders[0]
        op = operands[index].partial[axis]
        if len(holders) > 1:
            both = f"reduce each operand of {eqn.op} over '{axis}' before it"
            why = "a product of sums is not the sum of products"
            raise partial_refused(eqn, holders[1], axis, op, why, also=(both,))
        if linear is not None and index not in linear:
            raise partial_refused(eqn, index, axis, op, f"{eqn.op} is not linear in this operand")
        if any(axis in operand.ranks for operand in operands):
            raise partial_and_sliced(eqn, operands, axis)
        if op == "sum":
            out[axis] = op
            continue
        unsigned = any(kind_of(dtype) == "u" for dtype in eqn.per_rank.dtypes)
        signs = {_sign(operand) for i, operand in enumerate(operands) if i != index}
        if op == "prod" or unsigned or signs not in ({1}, {-1}):
            raise partial_refused(
                eqn, index, axis, op, f"{op} commutes only with a constant factor"
            )
        out[axis] = op if signs == {1} else flipped(op)
    return out


def flipped(op: ReduceOp) -> ReduceOp:
    """max for min and min for max: what a decreasing function makes of them."""
    return {"max": "min", "min": "max"}.get(op, op)  # pyright: ignore[reportReturnType]


def _sign(operand: Relation) -> int:
    if operand.const is None or any(isinstance(c, complex) for c in operand.const):
        return 0
    at_n, at_1 = operand.const
    finite = math.isfinite(at_n) and math.isfinite(at_1)
    return 1 if finite and at_n > 0 < at_1 else -1 if finite and at_n < 0 > at_1 else 0


def unit_only(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    """A function of several whole values that has no more structure."""
    require_whole(eqn, operands, f"{eqn.op} is not linear")
    require_unit(eqn, operands, f"{eqn.op} is not homogeneous")
    return result(base, base.dims, 1.0, {})


def unsigned(eqn: Equation) -> bool:
    """Whether a difference can wrap around 0, so that it does not grow with its operands."""
    return kind_of(eqn.per_rank.dtypes[0]) == "u"


def result(
    base: Relation, dims: Sequence[Digits], scale: float, partial: Mapping[str, ReduceOp]
) -> Relation:
    """`base` with new dims, scale and pending reductions; Local takes the place of the latter."""
    kept = {axis: op for axis, op in partial.items() if axis not in base.local}
    return replace(
        base,
        dims=tuple(dims),
        partial=kept,
        scale=ANY_SCALE if base.unmeasured else scale,
        const=None,
    )
