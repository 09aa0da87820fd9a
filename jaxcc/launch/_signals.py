"""Signals that a launcher gets, as something to wait for."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Any


class Signals:
    """While it is open, signals are kept until they are taken, and `source` becomes readable.

    One that this process was started to ignore stays ignored, as in a shell's background jobs.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
        self._came: list[int] = []
        self._former: dict[signal.Signals, Any] = {}
        self.source, self._wakes = socket.socketpair()

    def __enter__(self) -> Signals:
        for end in (self.source, self._wakes):
            end.setblocking(False)
        self._former_wakes = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, self._keep) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_wakes)
        self.source.close()
        self._wakes.close()

    def take(self) -> list[int]:
        """What has come since."""
        try:
            while self.source.recv(4096):
                pass
        except BlockingIOError:
            pass
        came, self._came = self._came, []
        return came

    def _keep(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)
