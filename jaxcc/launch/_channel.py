"""What a rank and its launcher say to each other: lines, each of which is answered by one."""

from __future__ import annotations

import os
import socket

ARRIVED = "arrived"
"""A rank has imported JAX, and waits for the others to. Any other line is a report."""


class Launcher:
    """The launcher, as a rank sees it."""

    def __init__(self, channel: int) -> None:
        # Processes that the rank starts are no ranks.
        os.set_inheritable(channel, False)
        self._socket = socket.socket(fileno=channel)

    def ask(self, line: str, limit_s: float) -> str | None:
        """The answer, empty if all is well; None if there is none within `limit_s`."""
        self._socket.settimeout(limit_s)
        try:
            self._socket.sendall(f"{line}\n".encode())
            with self._socket.makefile() as lines:
                answer = lines.readline()
        except OSError:
            return None
        return answer.rstrip("\n") if answer else None
