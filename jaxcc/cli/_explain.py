"""`jaxcc explain`: an error code, a page of the guide, or a list of both."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, UsageError
from jaxcc.layout import catalogue


def explain(topic: str | None, *, as_json: bool) -> int:
    """Shows what `topic` means: a code as errors show it or in lower case, or a page; without one,
    lists all.
    """
    output = Output(as_json)
    if topic is None:
        output.show(_overview())
        codes = {code: entry.title for code, entry in catalogue.CODES.items()}
        output.document({"guides": dict(catalogue.GUIDES), "codes": codes})
        return CLEAN
    if topic.lower() in catalogue.GUIDES:
        page = catalogue.guide(topic.lower())
        output.show(f"{page}\nThe examples come after\n\n{catalogue.EXAMPLE_SETUP}".rstrip())
        output.document({"guide": topic.lower(), "explanation": page})
        return CLEAN
    wanted = topic.upper().strip("[]")
    if wanted not in catalogue.CODES:
        near = _near(wanted)
        hint = f"; did you mean {near[0]}?" if near else ""
        codes = dict.fromkeys([*near, *catalogue.CODES])
        raise UsageError(f"there is no error code {topic!r}{hint}\n\n{_listed(codes)}")
    text = catalogue.explain(wanted)
    output.show(text)
    output.document({"code": wanted, "explanation": text})
    return CLEAN


def _overview() -> str:
    """The pages of the guide, then the codes of each group."""
    width = max(map(len, catalogue.GUIDES))
    pages = [f"{name:{width}}  {title}" for name, title in catalogue.GUIDES.items()]
    parts = ["\n".join(["guide: jaxcc explain PAGE", *pages])]
    for group, about in catalogue.GROUPS.items():
        codes = [code for code in catalogue.CODES if code.startswith(f"{group}_")]
        parts.append(f"{about}: jaxcc explain CODE\n{_listed(codes)}")
    return "\n\n".join(parts)


def _near(wanted: str) -> list[str]:
    """The codes that may have been meant: those with words from `wanted` on, then similar ones."""
    inside = [code for code in catalogue.CODES if wanted and f"_{wanted}" in f"_{code}"]
    return inside + difflib.get_close_matches(wanted, catalogue.CODES, n=5, cutoff=0.7)


def _listed(codes: Iterable[str]) -> str:
    """One line for each code: the code and its title."""
    width = max(map(len, catalogue.CODES))
    return "\n".join(f"{code:{width}}  {catalogue.CODES[code].title}" for code in codes)
