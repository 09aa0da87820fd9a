"""What a probe is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

OK, OFF, FAILS = "ok", "off", "fails"
"""It is there and works; it is not there, and need not be; it should work here and does not."""

_SHOWN = 500  # of an error's text


@dataclass(frozen=True)
class Answer:
    """What one probe found.

    Attributes:
      state: OK, OFF or FAILS.
      what: one line about what is there, or is wrong.
      because: why it is OFF or FAILS, where that is known.
      fixes: what changes that.
      code: of the error that told it, an entry of `jaxcc explain`.
      facts: the same as numbers and names, for programs.
    """

    state: str
    what: str
    because: str = ""
    fixes: tuple[str, ...] = ()
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of_error(cls, error: Exception) -> Answer:
        """FAILS, as the error says it: with reason and fixes if it is one of jaxcc's."""
        for finding in getattr(error, "findings", ()):
            return cls(FAILS, finding.what, finding.because, finding.fixes, finding.code)
        return cls(FAILS, " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN])

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Answer:
        """What `as_json` made."""
        return cls(**{**document, "fixes": tuple(document["fixes"])})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Probe:
    """One question.

    Attributes:
      room: the heading that it stands under.
      limit_s: how long its process may take; None for a probe that runs in the doctor's.
      optional: codes of errors that say of something that need not be there that it is not.
    """

    room: str
    name: str
    look: Callable[[], Answer]
    limit_s: float | None
    optional: frozenset[str]

    def judge(self, answer: Answer) -> Answer:
        """The answer, OFF if what fails need not be there."""
        if answer.state == FAILS and answer.code in self.optional:
            return replace(answer, state=OFF)
        return answer


PROBES: dict[str, Probe] = {}
"""All probes by name, in the order of the report."""


def probe(
    room: str, name: str, *, limit_s: float | None = None, optional: tuple[str, ...] = ()
) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    """Makes a function a probe; see `Probe`."""

    def register(look: Callable[[], Answer]) -> Callable[[], Answer]:
        PROBES[name] = Probe(room, name, look, limit_s, frozenset(optional))
        return look

    return register
