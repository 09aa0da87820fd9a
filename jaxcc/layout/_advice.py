"""What messages advise: the reduction that leaves a group of one's value, or what mends a factor.

A scale is the value on n ranks over the value on one, after all pending reductions.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Mapping, Sequence

from jaxcc.layout._constants import number_text
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation, same_scale
from jaxcc.layout._repair import Repair, unit_factor
from jaxcc.layout._values import Origin

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


def reduction_repair(
    x: Relation,
    axis: str,
    op: ReduceOp,
    sizes: Mapping[str, int],
    when: str,
    operand: int | None = 0,
) -> Repair:
    """How to finish the pending `op` of `x` over `axis`; `when` says where in the program.

    A psum over the pending axes leaves `x.scale`, so some of them may need a pmean instead.
    """
    pending = tuple(x.partial.items())
    if op not in _COLLECTIVES:
        return Repair((f"reduce it with a {op} all-reduce over '{axis}' {when}",), operand, pending)
    collective = f"jax.lax.{_COLLECTIVES[op]}"
    if op != "sum" or not math.isfinite(x.scale):
        return Repair((f"{collective}(..., '{axis}') {when}",), operand, pending)
    summed = [a for a, held in x.partial.items() if held == "sum"]
    for count in range(len(summed) + 1):
        for means in itertools.combinations(summed, count):
            ranks = math.prod(sizes[a] for a in means)
            if same_scale(x.scale, ranks):
                text = _reductions(collective, [a for a in summed if a not in means], means)
                return Repair((f"{text} {when}",), operand, pending, 1 / ranks)
    if same_scale(x.scale, 1 / sizes[axis]):
        fix = f"{collective}(..., '{axis}') * jax.lax.axis_size('{axis}') {when}"
        return Repair((fix,), operand, pending, sizes[axis])
    fix = (
        f"reduce it {when}, and take out the factor that depends on the number of ranks: "
        f"after {collective} it {compared(x.scale)}"
    )
    return Repair((fix,), operand, pending, unit_factor(x.scale))


def _reductions(collective: str, sums: Sequence[str], means: Sequence[str]) -> str:
    """The all-reduces of a value, over all axes that it is pending over."""
    text = "..."
    for name, axes in ((collective, sums), ("jax.lax.pmean", means)):
        if axes:
            named = ", ".join(f"'{axis}'" for axis in axes)
            text = f"{name}({text}, {f'({named})' if len(axes) > 1 else named})"
    return text


def scale_reason(scale: float, sizes: Mapping[str, int], origin: Origin | None = None) -> str:
    """How a value may have come to a scale."""
    for axis, n in _likely_first(sizes, origin):
        if n > 1 and same_scale(scale, n):
            return f"a value that all {n} ranks of '{axis}' hold, or its mean, was summed over them"
        if n > 1 and same_scale(scale, 1 / n):
            return f"a sum over '{axis}' was divided by its {n} ranks (pmean, or a local mean)"
    return "the factor changes with the number of ranks"


def scale_fixes(scale: float, sizes: Mapping[str, int], origin: Origin | None) -> tuple[str, ...]:
    """What brings a scale to 1; `origin` is what made the value so."""
    for axis, n in _likely_first(sizes, origin):
        if n > 1 and same_scale(scale, n):
            if _stands("psum", origin):
                return (f"remove the psum over '{axis}', or use jax.lax.pmean(..., '{axis}')",)
            return (
                f"reduce the ranks' means with jax.lax.pmean(..., '{axis}'), or divide by "
                f"jax.lax.axis_size('{axis}')",
                f"in a gradient (check_vma=True): take jax.lax.pmean(loss, '{axis}') before "
                "differentiating",
            )
        if n > 1 and same_scale(scale, 1 / n):
            if _stands("pmean", origin):
                return (f"use jax.lax.psum(..., '{axis}') for the pmean",)
            return (f"multiply by jax.lax.axis_size('{axis}')",)
    return ("divide by a number of the whole, not of a rank: for sizes, the whole array's",)


def _likely_first(sizes: Mapping[str, int], origin: Origin | None) -> list[tuple[str, int]]:
    """The axes with their sizes, those first that stand in the user's line."""

    def named(item: tuple[str, int]) -> bool:
        axis, _ = item
        return _stands(f'"{axis}"', origin) or _stands(f"'{axis}'", origin)

    return sorted(sizes.items(), key=named, reverse=True)


def _stands(word: str, origin: Origin | None) -> bool:
    """Whether the user's line holds a word."""
    if origin is None or origin.line is None:
        return False
    return word in linecache.getline(origin.line.file, origin.line.line)


def constant_fixes(
    pair: tuple[object, object], scale: float, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """What to do about a number that depends on the group's size."""
    number = number_text(pair[0])
    for axis, n in sizes.items():
        if n > 1 and same_scale(scale, 1 / n):
            return (f"use the whole size: multiply {number} by jax.lax.axis_size('{axis}')",)
        if n > 1 and same_scale(scale, n):
            return (f"divide {number} by jax.lax.axis_size('{axis}')",)
    return ("use a number that is the same for any number of ranks",)
