"""What messages advise: the reduction that leaves a group of one's value, or what mends a factor.

A scale is the value on n ranks over the value on one, after all pending reductions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from jaxcc.layout._constants import number_text
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation, same_scale
from jaxcc.layout._repair import Repair

_COLLECTIVES: Mapping[str, str] = {"sum": "psum", "max": "pmax", "min": "pmin"}
RANDOM_FIXES = (
    "draw with jaxcc.random, which makes the rank's block of the whole array of a Replicated key",
    "make the random array (or the mask) for the whole shape outside the function, and pass it as "
    "an argument with the layout of what it meets",
)
RANDOM_WHY = (
    "a group of one needs the same random numbers, so they have to be made from global indices, "
    "not from a rank's own key or shape"
)


def is_random(op: str) -> bool:
    """Whether a primitive makes random numbers or keys."""
    return op.startswith(("random_", "threefry", "rng_"))


def times(scale: float) -> str:
    """A scale in words that an object follows: `4 times`, `1/4 of`, `equal to`."""
    if scale == 1.0:
        return "equal to"
    inverse = 1 / scale if scale else math.inf
    if math.isfinite(inverse) and abs(round(inverse)) > 1 and abs(inverse - round(inverse)) < 1e-4:
        return f"1/{round(inverse)} of"
    short = f"{scale:g}"
    return f"{short if short != '1' else f'{scale:.9g}'} times"


def compared(scale: float) -> str:
    """A value's scale as a predicate: `is 4 times what a group of one has`."""
    return f"is {times(scale)} what a group of one has"


def pending_repairs(
    x: Relation,
    axis: str,
    op: ReduceOp,
    sizes: Mapping[str, int],
    when: str,
    operand: int | None = 0,
    name: str = "it",
) -> tuple[Repair, ...]:
    """How to finish the pending `op` of `x` over `axis`; `when` says where in the program.

    Where no psum or pmean leaves what a group of one has, it is looked for where the factor comes
    from.
    """
    repair = reduction_repair(x, axis, op, sizes, when, operand)
    if op != "sum" or not math.isfinite(x.scale) or same_scale(x.scale, 1.0):
        return (repair,)
    return repair, Repair((), operand, last=True, traced=True, name=name)


def after_the_sum(x: Relation, repairs: Sequence[Repair]) -> str:
    """What to add to a reason where no reduction leaves what a group of one has."""
    return "" if repairs[0].fixes else f"; after a psum it {compared(x.scale)}"


def reduction_repair(
    x: Relation,
    axis: str,
    op: ReduceOp,
    sizes: Mapping[str, int],
    when: str,
    operand: int | None = 0,
) -> Repair:
    """The reduction of `x` over its pending axes.

    A psum over them leaves `x.scale`, so some of them may need a pmean instead.
    """
    pending = tuple(x.partial.items())
    if op not in _COLLECTIVES:
        return Repair((f"reduce it with a {op} all-reduce over '{axis}' {when}",), operand, pending)
    collective = f"jax.lax.{_COLLECTIVES[op]}"
    if op != "sum" or not math.isfinite(x.scale):
        return Repair((f"{collective}(..., '{axis}') {when}",), operand, pending)
    summed = [a for a, held in x.partial.items() if held == "sum"]
    for means in subsets(summed):
        if same_scale(x.scale, math.prod(sizes[a] for a in means)):
            text = _reductions(collective, [a for a in summed if a not in means], means)
            powers = tuple((a, -1) for a in means)
            return Repair((f"{text} {when}",), operand, pending, powers)
    if same_scale(x.scale, 1 / sizes[axis]):
        fix = f"{collective}(..., '{axis}') * jax.lax.axis_size('{axis}') {when}"
        return Repair((fix,), operand, pending, ((axis, 1),))
    return Repair((), operand, pending)


def _reductions(collective: str, sums: Sequence[str], means: Sequence[str]) -> str:
    """The all-reduces of a value, over all axes that it is pending over."""
    text = "..."
    for name, axes in ((collective, sums), ("jax.lax.pmean", means)):
        if axes:
            text = f"{name}({text}, {axes_text(axes)})"
    return text


def constant_repairs(
    pair: tuple[object, object], scale: float, sizes: Mapping[str, int], operand: int | None
) -> tuple[Repair, ...]:
    """What to do about a number that is `scale` times what it should be beside a group of one's."""
    number = number_text(pair[0])
    found: list[Repair] = []
    for axes in subsets([axis for axis, n in sizes.items() if n > 1]):
        ranks = math.prod(sizes[axis] for axis in axes)
        whole = f"jax.lax.axis_size({axes_text(axes)})"
        if axes and same_scale(scale, 1 / ranks):
            fix = f"use the whole size: multiply {number} by {whole}"
            found.append(Repair((fix,), operand, powers=tuple((axis, 1) for axis in axes)))
        if axes and same_scale(scale, ranks):
            powers = tuple((axis, -1) for axis in axes)
            found.append(Repair((f"divide {number} by {whole}",), operand, powers=powers))
    return tuple(found)


OTHER_CONSTANT = "use a number that is the same for any number of ranks"
"""What to do about a number of which no power of the sizes makes a group of one's."""


def subsets(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Some of these axes, the fewest first."""
    return [some for count in range(len(axes) + 1) for some in itertools.combinations(axes, count)]


def axes_text(axes: Sequence[str]) -> str:
    """Axes as a user names them in a call."""
    named = ", ".join(f"'{axis}'" for axis in axes)
    return f"({named})" if len(axes) > 1 else named
