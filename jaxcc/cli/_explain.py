"""`jaxcc explain`: the catalogue's entry for an error code, or a list of all codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, UsageError
from jaxcc.layout import catalogue


def explain(code: str | None, *, as_json: bool) -> int:
    """Shows what `code` means, as errors show it or in lower case; without one, lists all codes."""
    output = Output(as_json)
    if code is None:
        output.show(_listed(catalogue.CODES))
        output.document({code: entry.title for code, entry in catalogue.CODES.items()})
        return CLEAN
    wanted = code.upper().strip("[]")
    if wanted not in catalogue.CODES:
        near = _near(wanted)
        hint = f"; did you mean {near[0]}?" if near else ""
        codes = dict.fromkeys([*near, *catalogue.CODES])
        raise UsageError(f"there is no error code {code!r}{hint}\n\n{_listed(codes)}")
    text = catalogue.explain(wanted)
    output.show(text)
    output.document({"code": wanted, "explanation": text})
    return CLEAN


def _near(wanted: str) -> list[str]:
    """The codes that may have been meant: those with words from `wanted` on, then similar ones."""
    inside = [code for code in catalogue.CODES if wanted and f"_{wanted}" in f"_{code}"]
    return inside + difflib.get_close_matches(wanted, catalogue.CODES, n=5, cutoff=0.7)


def _listed(codes: Iterable[str]) -> str:
    """One line for each code: the code and its title."""
    width = max(map(len, catalogue.CODES))
    return "\n".join(f"{code:{width}}  {catalogue.CODES[code].title}" for code in codes)
