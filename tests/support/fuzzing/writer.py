"""The writer of a random body: what it has written, and what it believes of every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzzing.choices import Choices, chance, pick
from fuzzing.recipe import Body, Step
from fuzzing.types import Type, divides

LARGE = 4000
BLUNDERS = 20
"""Careless steps, in percent."""

Family = Callable[["Writer"], bool]


class Writer:
    """Writes one body: `types` are what it believes of every value so far.

    While `careless` holds, a step looks only at shapes, as someone does who forgot the layouts.
    """

    def __init__(
        self,
        choices: Choices,
        sizes: Mapping[str, int],
        inputs: Sequence[Type],
        right: bool,
    ) -> None:
        self.choices = choices
        self.sizes = sizes
        self.types = list(inputs)
        self.arity = len(inputs)
        self.steps: list[Step] = []
        self.right = right
        self.careless = False

    # Choosing -------------------------------------------------------------------------------------

    def any_of[T](self, of: Sequence[T]) -> T:
        return pick(self.choices, of)

    def chance(self, percent: int) -> bool:
        return chance(self.choices, percent)

    def value(
        self,
        legal: Callable[[Type], bool] = lambda t: True,
        possible: Callable[[Type], bool] = lambda t: True,
    ) -> int | None:
        """A value with the shape that a step needs, and, unless it is careless, the layout too."""
        found = [k for k, t in enumerate(self.types) if possible(t) and (self.careless or legal(t))]
        if not found:
            return None
        # The newest twice, so that programs become chains; blunders are about pending values.
        pending = [k for k in found if self.careless and self.types[k].partial]
        return self.any_of([*found, *found[-3:], found[-1], *pending * 3])

    def dim(self, t: Type, *, whole: bool = True) -> int | None:
        """A dimension that, unless the step is careless, no axis slices."""
        found = [d for d in range(t.ndim) if self.careless or not whole or not t.axes_of(d)]
        return self.any_of(found) if found else None

    # Writing --------------------------------------------------------------------------------------

    def add(self, t: Type, kind: str, reads: Sequence[int], *params: Any) -> bool:
        """Writes a step, if its result is small and divides."""
        if math.prod(t.shape) > LARGE or t.ndim > 4 or not divides(t, self.sizes):
            return False
        self.types.append(t)
        self.steps.append(Step(kind, tuple(reads), params))
        return True

    def step(self, families: Sequence[tuple[Family, int]], tries: int = 12) -> None:
        """Writes one more step, of a family that finds operands."""
        pool = [family for family, weight in families for _ in range(weight)]
        self.careless = not self.right and self.chance(BLUNDERS)
        for _ in range(tries):
            if self.any_of(pool)(self):
                break
        self.careless = False

    def unread(self) -> list[int]:
        """The values that no step reads, or the last one."""
        read = {k for step in self.steps for k in step.reads}
        return [k for k in range(self.arity, len(self.types)) if k not in read] or [
            len(self.types) - 1
        ]

    def body(
        self, inputs: Sequence[Type], wanted: Type | None, families: Sequence[tuple[Family, int]]
    ) -> tuple[Body, Type]:
        """A body of a few steps whose result, if there is a `wanted` type, has it."""
        inner = Writer(self.choices, self.sizes, inputs, self.right)
        for _ in range(1 + self.choices.below(3)):
            inner.step(families, tries=6)
        found = [k for k, t in enumerate(inner.types) if wanted is None or t == wanted]
        result = found[-1]
        if wanted is not None and result < inner.arity and wanted.is_float and wanted.whole:
            inner.add(wanted, "unary", [result], "tanh")
            result = len(inner.types) - 1
        return Body(inner.arity, tuple(inner.steps), (result,)), inner.types[result]
