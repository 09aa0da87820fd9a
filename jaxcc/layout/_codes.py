"""The shape of an entry in the catalogue of error codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """What an error code means.

    Attributes:
      title: one line.
      explanation: why it is an error, and the way out.
      wrong: a program that raises it, if it is about a program; run after `EXAMPLE_SETUP`.
      right: the same program put right.
    """

    title: str
    explanation: str
    wrong: str = ""
    right: str = ""
