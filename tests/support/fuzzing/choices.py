"""Where a generator's choices come from: a random number generator, or hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Choices(Protocol):
    """A source of choices."""

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        ...


class RandomChoices:
    """Choices of a seeded random number generator."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self._random.randrange(n)


class DrawnChoices:
    """Choices that hypothesis draws, and makes smaller when a test fails."""

    def __init__(self, draw: Callable[[Any], Any], integers: Callable[[int, int], Any]) -> None:
        self._draw = draw
        self._integers = integers

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return self._draw(self._integers(0, n - 1))


def chance(choices: Choices, percent: int) -> bool:
    """Yes, in `percent` of 100; a choice that is made smaller becomes No."""
    return choices.below(100) >= 100 - percent


def pick[T](choices: Choices, of: Sequence[T]) -> T:
    """One of several."""
    return of[choices.below(len(of))]
