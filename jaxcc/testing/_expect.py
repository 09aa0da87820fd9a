"""Context managers and assertions for tests of layouts."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager

from jaxcc.layout import Finding, LayoutError


@contextmanager
def raises_layout(code: str, *, line: str | None = None) -> Iterator[list[Finding]]:
    """Expects a LayoutError that has a finding with `code`, at a source line that contains `line`.

    Yields a list that holds the findings afterwards.

    Raises:
      AssertionError: nothing was raised, or something else was found.
    """
    findings: list[Finding] = []
    try:
        yield findings
    except LayoutError as error:
        findings += error.findings
    else:
        raise AssertionError(f"expected {code}, but the checker accepted the program")
    matching = [finding for finding in findings if finding.code == code]
    if not matching:
        found = "\n\n".join(finding.render() for finding in findings)
        raise AssertionError(f"expected {code}, but found\n{found}")
    if line is not None and not any(line in _source(finding) for finding in matching):
        lines = ", ".join(repr(_source(finding)) for finding in matching)
        raise AssertionError(f"{code} is reported at {lines or 'no line'}, not at {line!r}")


def _source(finding: Finding) -> str:
    """The text of the line that a finding points at."""
    if finding.line is None:
        return ""
    return linecache.getline(finding.line.file, finding.line.line).strip()
