"""`jaxcc explain`: the catalogue's entry for an error code."""

from __future__ import annotations

import difflib

from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, UsageError
from jaxcc.layout import catalogue


def explain(code: str, *, as_json: bool) -> int:
    """Shows what `code` means; codes are as errors show them, in either case."""
    wanted = code.upper().strip("[]")
    if wanted not in catalogue.CODES:
        near = difflib.get_close_matches(wanted, catalogue.CODES, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"there is no error code {code!r}{hint}")
    text = catalogue.explain(wanted)
    output = Output(as_json)
    output.show(text)
    output.document({"code": wanted, "explanation": text})
    return CLEAN
