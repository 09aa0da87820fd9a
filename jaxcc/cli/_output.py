"""What a command writes: results to stdout, progress and warnings to stderr."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from jaxcc.cli._streams import write_document, writing

if TYPE_CHECKING:
    from jaxcc.layout import JaxccError

_UPDATE_S = 5.0
_FILE_WIDTH = 120


def findings_document(error: JaxccError) -> list[dict[str, Any]]:
    """What an error says, finding by finding, for the JSON document."""
    return [
        {key: value for key, value in asdict(replace(one, repairs=())).items() if key != "repairs"}
        for one in error.findings
    ]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves the error to `writing`; rich would end the process with the code of findings."""
        raise


class Output:
    """The two streams of a command; with `as_json`, stdout carries one JSON document only.

    A stream that cannot be written raises OutputError.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._out = _Console(highlight=False, quiet=as_json)
        if not self._out.is_terminal:
            self._out.width = _FILE_WIDTH
        self._err = _Console(stderr=True, highlight=False)

    def show(self, what: RenderableType = "", *, style: str = "") -> None:
        """A result for people: text as it is, without markup, or a table."""
        shown = Text(what) if isinstance(what, str) else what
        with writing(sys.stdout):
            self._out.print(shown, style=style, soft_wrap=True)

    def document(self, value: Any) -> None:
        """The JSON document."""
        if self._as_json:
            write_document(value)

    def note(self, text: str, *, style: str = "") -> None:
        """One line on stderr."""
        with writing(sys.stderr):
            self._err.print(Text(text), style=style, soft_wrap=True)

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Shows `what` while the block runs; the block tells how far it is by calling what it gets.

        On a terminal this is one line that changes; elsewhere a line at the start, one every
        5 s at most, and one at the end.
        """
        start = time.perf_counter()
        if self._err.is_terminal:
            with self._err.status(what) as status:
                yield lambda detail: status.update(f"{what}: {detail}")
        else:
            self.note(f"{what} ...")
            shown = start

            def tell(detail: str) -> None:
                nonlocal shown
                if time.perf_counter() - shown > _UPDATE_S:
                    shown = time.perf_counter()
                    self.note(f"{what}: {detail}")

            yield tell
        self.note(f"{what}: done in {time.perf_counter() - start:.1f} s", style="dim")

    @contextmanager
    def warnings_as_lines(self) -> Iterator[list[str]]:
        """Shows each warning once, as one line on stderr, and lists the warnings that came."""
        seen: list[str] = []

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            text = " ".join(str(message).split())
            if text not in seen:
                seen.append(text)
                self.note(f"jaxcc: warning: {text}", style="yellow")

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            yield seen
