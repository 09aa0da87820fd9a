"""`raises_layout`: a finding that a test expects."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager

from jaxcc.layout import Finding, LayoutError, catalogue


@contextmanager
def raises_layout(code: str, *, line: str | int | None = None) -> Iterator[list[Finding]]:
    """Expects a LayoutError that has a finding with `code`:

        with raises_layout("LAYOUT_COUNTED", line="x @ w + b"):
            layer.check(x, w, b)

    Args:
      code: as in the message; `jaxcc explain` lists the codes.
      line: where the finding has to point: the number of a line, or a text that stands in it.

    Yields:
      A list that holds all findings afterwards.

    Raises:
      AssertionError: nothing was raised, or something else was found, or elsewhere.
      ValueError: there is no such code.
    """
    if code not in catalogue.CODES:
        near = catalogue.near(code)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"raises_layout: there is no error code {code!r}{hint}")
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
    if line is not None and not any(_points_at(finding, line) for finding in matching):
        places = ", ".join(map(_place, matching))
        raise AssertionError(f"{code} is reported at {places}, not at {line!r}")


def _points_at(finding: Finding, line: str | int) -> bool:
    if isinstance(line, int):
        return finding.line is not None and finding.line.line == line
    return line in _source(finding)


def _source(finding: Finding) -> str:
    """The text of the line that a finding points at."""
    if finding.line is None:
        return ""
    return linecache.getline(finding.line.file, finding.line.line).strip()


def _place(finding: Finding) -> str:
    return "no line" if finding.line is None else f"{finding.line}: {_source(finding)!r}"
