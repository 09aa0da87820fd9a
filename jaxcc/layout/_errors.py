"""The errors that jaxcc raises, and how one is shown: the user's line, the operands, why, and what
to do."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxcc._compat import SourceLine

if TYPE_CHECKING:
    from jaxcc.layout._repair import Repair


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `code` is its entry in the catalogue, `what` one sentence about this
    case."""

    code: str
    what: str
    line: SourceLine | None = None
    operands: tuple[str, ...] = ()
    because: str = ""
    fixes: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = field(default=(), compare=False, repr=False)

    def render(self) -> str:
        """The finding as text: headline, source line with a caret, operands, reason, fixes."""
        parts = [f"[{self.code}] {self.what}"]
        if self.line is not None:
            parts.append(_frame(self.line))
            if self.line.within:
                parts.append(f"  inside it: {self.line.within}")
        parts += [f"  {operand}" for operand in self.operands]
        if self.because:
            parts.append(f"  because: {self.because}")
        parts += [f"  fix: {fix}" for fix in self.fixes]
        return "\n".join(parts)


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
        return "\n\n".join(finding.render() for finding in self.findings)


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
