"""What a launcher shows: its own lines, and what ranks print."""

from __future__ import annotations

import os
import sys
from typing import TextIO

# Of a rank whose output is not shown, so much is kept, in case that it fails.
_KEPT = 64 << 10
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Lines:
    """The output of one rank, line by line, each behind the rank's number."""

    def __init__(self, rank: int, ranks: int, stream: TextIO) -> None:
        self._stream = stream
        self._rest = b""
        label = f"[{rank:{len(str(ranks - 1))}}]"
        if _has_colours(stream):
            label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
        self._label = f"{label} ".encode()

    def take(self, data: bytes) -> None:
        """Shows the lines that `data` ends; a progress bar's end with a carriage return."""
        lines = (self._rest + data).replace(b"\r\n", b"\n").splitlines(keepends=True)
        all_ended = not lines or lines[-1].endswith((b"\n", b"\r"))
        self._rest = b"" if all_ended else lines.pop()
        self._show(lines)

    def end(self) -> None:
        """Shows a last line that was not ended."""
        if self._rest:
            self._show([self._rest + b"\n"])
            self._rest = b""

    def _show(self, lines: list[bytes]) -> None:
        write(self._stream, b"".join(self._label + line for line in lines))


class Kept:
    """The end of an output that is shown only if its rank fails."""

    def __init__(self) -> None:
        self._data = b""

    def take(self, data: bytes) -> None:
        self._data = (self._data + data)[-_KEPT:]

    def end(self) -> None:
        pass

    def show(self) -> None:
        write(sys.stderr, self._data)
        self._data = b""


def note(text: str) -> None:
    """One line of the launcher's own."""
    write(sys.stderr, f"jaxcc run: {text}\n".encode())


def write(stream: TextIO, data: bytes) -> None:
    """Writes all of it now."""
    stream.flush()
    while data:
        data = data[os.write(stream.fileno(), data) :]


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
