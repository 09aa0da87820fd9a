"""Which rank failed first, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxcc.launch._output import Lines, note, write
from jaxcc.launch._process import Process

# Of an error's first line, where its traceback stands above or is like another.
_SHOWN = 100


class Failures:
    """Ranks that failed, in the order in which they are to be told.

    A peer that dies makes others fail with errors that only show the consequence. A death is
    therefore told before errors that came to light with it; of errors the first that was reported
    is, and its rank has reported before its peers could notice.

    Attributes:
      first: the rank that failed first.
    """

    def __init__(self, ranks: Sequence[Process], *, prefixed: bool) -> None:
        self.first: Process | None = None
        self._ranks = ranks
        self._prefixed = prefixed
        self._noticed: list[Process] = []
        self._told: list[Process] = []
        self._others: dict[str, list[int]] = {}

    def notice(self, process: Process) -> bool:
        """Whether it had not been noticed that this rank failed."""
        new = process not in self._noticed
        if new:
            self._noticed.append(process)
        return new

    def tell(self, *, every: bool) -> None:
        """Shows what the first rank that failed has to say, or with `every` each rank.

        Without, the others are to be ended, and are not told of if they then end without a report.
        """
        new = [process for process in self._noticed if process not in self._told]
        ended = self.first is not None and not every
        for process in sorted(new, key=lambda process: process.report is not None):
            self._told.append(process)
            if self.first is None or every:
                self.first = self.first or process
                self._show(process, others_end=not every)
            elif process.report is not None or not ended:
                self._others.setdefault(_why(process), []).append(process.rank)

    def tell_of_others(self) -> None:
        """One line for all that failed alike."""
        for why, ranks in self._others.items():
            note(f"{named(ranks)} failed too: {why}")

    def tell_after_signal(self) -> None:
        """Where the lowest rank was that Ctrl-C interrupted, and what failed in another way."""
        reports = {process: process.report for process in self._ranks if process.report is not None}
        interrupted = [p for p, report in reports.items() if report.why == "KeyboardInterrupt"]
        for process in interrupted[:1]:
            self._show_traceback(process)
        for process, report in reports.items():
            if report.text and process not in (*interrupted, *self._told):
                self._show(process, others_end=False)

    def _show(self, process: Process, *, others_end: bool) -> None:
        process.kept.show()
        self._show_traceback(process)
        left = [other.rank for other in self._ranks if other.code == 0]
        before = f", after {named(left)} had ended" if left else ""
        others = any(other.code is None for other in self._ranks if other is not process)
        follows = "; the others are ended" if others and others_end else ""
        note(f"rank {process.rank} failed{before}: {_why(process)}{follows}")

    def _show_traceback(self, process: Process) -> None:
        if process.report is not None:
            text = process.report.text.encode(errors="backslashreplace")
            if self._prefixed:
                Lines(process.rank, len(self._ranks), sys.stderr).take(text)
            else:
                write(sys.stderr, text)


def named(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 2 and 3"."""
    *most, last = map(str, sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def exit_code(process: Process) -> int:
    """Of a rank that failed, before or after it has ended."""
    code = process.report.code if process.report is not None else process.code
    assert code is not None
    return code


def _why(process: Process) -> str:
    why = process.report.why if process.report is not None else process.end
    return why if len(why) <= _SHOWN else f"{why[:_SHOWN]}..."
