"""A step of a schedule: a verb with its arguments, resolved so that it can be applied again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from jaxcc.program import Program

Rewrite = Callable[..., Program]

REWRITES: dict[str, Rewrite] = {}
"""The rewrite of each verb, a function of a program and the step's arguments."""


def rewrite(verb: str) -> Callable[[Rewrite], Rewrite]:
    """Registers the function that carries out a verb's steps."""

    def register(function: Rewrite) -> Rewrite:
        REWRITES[verb] = function
        return function

    return register


@dataclass(frozen=True)
class Step:
    """One step: `split(name='total', dim=0)`."""

    verb: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.verb}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"


class Scheduled(Protocol):
    """What a verb acts on: a program, and a way to take one more step."""

    @property
    def program(self) -> Program:
        """The program as the steps so far have left it."""
        ...

    def then(self, step: Step) -> Self:
        """The same with one more step, checked."""
        ...
