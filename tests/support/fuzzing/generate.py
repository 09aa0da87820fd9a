"""Random programs whose writer keeps track of the layouts: right ones by construction, and such
with a blunder here and there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuzzing.choices import Choices, chance, pick
from fuzzing.families import POINTWISE
from fuzzing.families_moving import SHAPES
from fuzzing.families_nested import NESTED
from fuzzing.families_parallel import COLLECTIVES, INDEXED
from fuzzing.families_reducing import REDUCTIONS
from fuzzing.recipe import Body, Recipe
from fuzzing.types import Type, divides
from fuzzing.writer import Writer

FAMILIES = [*POINTWISE, *REDUCTIONS, *SHAPES, *COLLECTIVES, *INDEXED, *NESTED]
SIZES: tuple[Mapping[str, int], ...] = (
    {"tp": 2}, {"tp": 2}, {"tp": 3}, {"tp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 3},
    {"dp": 3, "tp": 2}, {"dp": 1, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 2, "dp": 1, "tp": 3},
)  # fmt: skip
# Every group size from 1 to 4 divides 12; two axes on one dimension may need 24.
WHOLE = (12, 12, 24)


def recipe(choices: Choices, *, right: bool = False) -> tuple[Recipe, Mapping[str, int]]:
    """A random program and the mesh that it is written for.

    Args:
      choices: where the choices come from.
      right: whether each step keeps to the layouts; otherwise now and then one does not.
    """
    sizes = pick(choices, SIZES)
    inputs = [_input(choices, sizes, right) for _ in range(2 + choices.below(3))]
    writer = Writer(choices, sizes, inputs, right)
    for _ in range(3 + choices.below(6)):
        writer.step(FAMILIES)
    outputs = writer.unread()
    if not right:
        outputs = outputs[-1 - choices.below(3) :]
    body = Body(len(inputs), tuple(writer.steps), tuple(outputs))
    vma = not chance(choices, 40)
    return Recipe(
        tuple(sizes), tuple(inputs), body, tuple(writer.types[k] for k in outputs), vma
    ), sizes


def _input(choices: Choices, sizes: Mapping[str, int], right: bool) -> Type:
    ndim = pick(choices, (2, 2, 2, 3, 1, 1))
    shape = tuple(pick(choices, WHOLE) if d < 2 else pick(choices, (2, 4, 6)) for d in range(ndim))
    t = Type(shape, pick(choices, ("float32",) * 7 + ("bfloat16", "int32", "bool")))
    order = list(sizes)
    if chance(choices, 30):
        order.reverse()
    op = pick(choices, ("sum", "sum", "sum", "max", "min"))
    for axis in order:
        kind = choices.below(10)
        if kind < 5:
            new = replace(t, sliced=(*t.sliced, (axis, choices.below(ndim))))
            t = new if divides(new, sizes) else t
        elif kind in (5, 6) and t.dtype != "bool" and not t.local:
            t = t.pending(axis, op)
        elif kind == 7 and not right and chance(choices, 30) and not t.partial:
            t = replace(t, local=(*t.local, axis))
    return t
