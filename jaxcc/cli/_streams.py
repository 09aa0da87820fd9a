"""Stdout and stderr, whose reader may go away and whose disk may be full."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class OutputError(Exception):
    """A stream that takes no more; `gone` if that is because nobody reads it any longer."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write: {error.strerror}")
        self.gone = isinstance(error, BrokenPipeError)


@contextmanager
def writing(stream: TextIO | None) -> Iterator[None]:
    """A block that does nothing else but write to `stream`, all of it at its end.

    Raises:
      OutputError: what is not written by then is lost.
    """
    try:
        try:
            yield
        finally:
            if stream is not None:  # closed before Python started
                stream.flush()
    except OSError as error:
        assert stream is not None
        # Else Python writes what is left in the buffer, and fails, once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise OutputError(error) from None


def write_document(value: Any) -> None:
    """Writes the one JSON document of a command to stdout."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with writing(sys.stdout):
        print(text)
