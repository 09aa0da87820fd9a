"""What an operation of the interpreter gets, besides its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Unsupported(Exception):
    """The interpreter has no such operation."""


@dataclass(frozen=True)
class Call:
    """One equation: its parameters, ranks along each axis, how many leading dimensions, and the
    per-rank shapes of its results."""

    params: Mapping[str, Any]
    sizes: Mapping[str, int]
    lead: int
    shapes: Sequence[tuple[int, ...]]

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def at(self, dim: int) -> int:
        """Where a per-rank dimension stands."""
        return int(dim) + self.lead
