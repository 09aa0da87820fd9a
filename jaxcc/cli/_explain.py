"""`jaxcc explain`: an error code, a page of the guide, or a list of both."""

from __future__ import annotations

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
        raise UsageError(_unknown(topic))
    text = catalogue.explain(wanted)
    output.show(text)
    output.document({"code": wanted, "explanation": text})
    return CLEAN


def _overview() -> str:
    """The pages of the guide, then the codes of each group."""
    parts = [f"guide: jaxcc explain PAGE\n{_listed(catalogue.GUIDES)}"]
    for group, about in catalogue.GROUPS.items():
        codes = [code for code in catalogue.CODES if code.startswith(f"{group}_")]
        parts.append(f"{about}: jaxcc explain CODE\n{_listed(codes)}")
    return "\n\n".join(parts)


def _unknown(topic: str) -> str:
    """What to say of a topic that is not there: one line, then what may have been meant."""
    near = catalogue.near(topic.strip("[]"))
    hint = f"; did you mean {near[0]}?" if near else ""
    headline = f"there is no error code or page {topic!r}{hint}"
    return "\n".join(filter(None, [headline, _listed(near), "jaxcc explain lists all"]))


def _listed(topics: Iterable[str]) -> str:
    """One line for each code or page: its name and title."""
    titles = {code: entry.title for code, entry in catalogue.CODES.items()} | {**catalogue.GUIDES}
    named = list(topics)
    width = max(map(len, named), default=0)
    return "\n".join(f"{name:{width}}  {titles[name]}" for name in named)
