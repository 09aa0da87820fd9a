"""The errors that jaxcc raises, and how one is shown: the user's line, the operands, why, and what
to do."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxcc._compat import SourceLine

if TYPE_CHECKING:
    from jaxcc.layout._repair import Repair

_LISTED = 8


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `code` is its entry in the catalogue, `what` one sentence about this
    case, `result` what messages call the result that is wrong, if one is, `untried` the fixes of
    which nobody knows whether the program passes with them, `group` the ranks with which it was
    found, where these are not those of the mesh."""

    code: str
    what: str
    line: SourceLine | None = None
    operands: tuple[str, ...] = ()
    because: str = ""
    fixes: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = field(default=(), compare=False, repr=False)
    result: str = ""
    untried: tuple[str, ...] = ()
    group: str = ""

    def render(self, others: Sequence[Finding] = ()) -> str:
        """The finding as text: headline, source line with a caret, operands, reason, fixes; and
        the other results of which it says the same."""
        parts = [f"[{self.code}] {self.what}"]
        if self.line is not None:
            parts.append(_frame(self.line))
            if self.line.within:
                parts.append(f"  inside it: {self.line.within}")
        if self.group:
            parts.append(f"  on {self.group}, one of the groups that are checked:")
        parts += [f"  {operand}" for operand in self.operands]
        if self.because:
            parts.append(f"  because: {self.because}")
        parts += [f"  fix: {fix}" for fix in self.fixes]
        parts += [f"  fix (not tried): {fix}" for fix in self.untried]
        if others:
            parts.append(f"  and {len(others)} more: {self._listed(others)}")
        return "\n".join(parts)

    def _listed(self, others: Sequence[Finding]) -> str:
        """The results' names, with the line of each that has another one; or the operands."""
        shown: list[str] = []
        for other in others[:_LISTED]:
            line, where = other.line, ""
            if line is not None and str(line) != str(self.line):
                where = f" ({os.path.basename(line.file)}:{line.line})"
            operand = other.operands[0].partition(": ")[2] if other.operands else "the same"
            shown.append(f"{other.result or operand}{where}")
        return "; ".join(shown) + ("; ..." if len(others) > _LISTED else "")

    def alike(self) -> object:
        """What findings have in common that say the same of several results, or of several values
        of one line, such as the gradients in an optimizer; types and costs may differ.
        """
        fixes = tuple(fix.partition(" (one all-reduce")[0] for fix in (*self.fixes, *self.untried))
        if self.result:
            return self.code, self.what.replace(self.result, ""), self.because, fixes
        line = self.line and (self.line.file, self.line.line, self.line.column)
        return self.code, self.what, self.because, fixes, line


def _frame(line: SourceLine) -> str:
    """`--> file:line:column in function`, and the source line with a caret under the expression."""
    head = f"  --> {line.file}:{line.line}:{line.column + 1} in {line.function}"
    text = linecache.getline(line.file, line.line).rstrip()
    if not text:
        return head
    number = str(line.line)
    gutter = " " * len(number)
    end = line.end_column if line.end_column is not None else len(text)
    caret = " " * line.column + "^" * max(1, min(end, len(text)) - line.column)
    return f"{head}\n   {number} | {text}\n   {gutter} | {caret}"


class JaxccError(Exception):
    """Base of every error that jaxcc raises; `code` names its entry in the catalogue (`jaxcc
    explain CODE`)."""

    # Messages and help name what users import.
    __module__ = "jaxcc"

    def __init__(
        self,
        code: str,
        what: str,
        *,
        line: SourceLine | None = None,
        operands: tuple[str, ...] = (),
        because: str = "",
        fixes: tuple[str, ...] = (),
    ) -> None:
        self.findings: tuple[Finding, ...] = (Finding(code, what, line, operands, because, fixes),)
        super().__init__(what)

    @property
    def code(self) -> str:
        """The catalogue code of the first finding."""
        return self.findings[0].code

    def __str__(self) -> str:
        alike: dict[object, list[Finding]] = {}
        for finding in self.findings:
            alike.setdefault(finding.alike(), []).append(finding)
        return "\n\n".join(first.render(others) for first, *others in alike.values())


class LayoutError(JaxccError, TypeError):
    """A program, or a layout given for it, that the checker refuses."""

    __module__ = "jaxcc"

    @classmethod
    def of(cls, findings: tuple[Finding, ...]) -> LayoutError:
        """One error that reports all `findings`."""
        error = cls(findings[0].code, findings[0].what)
        error.findings = findings
        return error


class ScheduleError(JaxccError, ValueError):
    """A verb whose condition the schedule does not meet."""

    __module__ = "jaxcc"


class CodegenError(JaxccError, RuntimeError):
    """A kernel that cannot be generated or compiled."""

    __module__ = "jaxcc"


class BackendError(JaxccError, RuntimeError):
    """A backend that is absent, or that failed while it ran."""

    __module__ = "jaxcc"


class TableError(JaxccError, ValueError):
    """A tuning table that cannot be read or does not fit."""

    __module__ = "jaxcc"
