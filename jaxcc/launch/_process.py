"""One rank, as its launcher holds it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jaxcc.launch._channel import ARRIVED
from jaxcc.launch._job import LAUNCHER, Job, Report, Seat
from jaxcc.launch._output import Kept, Lines

# More than a pipe holds.
_READ = 1 << 20


class Process:
    """A rank's process, in a session of its own: signals of a terminal reach the launcher alone,
    which hands them on, to the processes that the rank has started, too.

    Attributes:
      rank: its number.
      code: its exit code, as shells give it; None while it runs.
      has_arrived: whether it has imported JAX.
      report: what it said before it ended with an error.
      kept: the end of what it wrote to stderr, if that is not shown.
    """

    def __init__(self, job: Job, rank: int, coordinator: str) -> None:
        self.rank = rank
        self.code: int | None = None
        self.has_arrived = False
        self.report: Report | None = None
        self._unanswered = 0
        self.kept = Kept()
        self._said = b""
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = _start(job, rank, coordinator, theirs.fileno())
        self._outputs: dict[Any, Lines | Kept] = {}
        for pipe, stream in (
            (self._process.stdout, sys.stdout),
            (self._process.stderr, sys.stderr),
        ):
            if pipe is not None:
                shown = Lines(rank, job.ranks, stream) if job.every_output else self.kept
                self._outputs[pipe] = shown
        for source in self.sources():
            os.set_blocking(source.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def end(self) -> str:
        """How it ended."""
        code = self._process.returncode
        if code >= 0:
            return f"exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"killed by {name}"

    def sources(self) -> dict[Any, Callable[[], bool]]:
        """Files to wait for; for each what reads it, and says whether there may be more."""
        outputs = {pipe: lambda pipe=pipe: self._pass_on(pipe) for pipe in self._outputs}
        return {self._channel: self._listen, **outputs}

    def look(self) -> str | None:
        """What has become of the process: "ended", "stopped", "continued", or nothing new."""
        code = self._process.poll()
        if code is not None:
            self.code = code if code >= 0 else 128 - code
            # Its own children, which may live on, are not waited for.
            for read in self.sources().values():
                read()
            for shown in self._outputs.values():
                shown.end()
            return "ended"
        try:
            changed = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            # It has ended since; the next look sees how.
            return None
        if changed is None:
            return None
        return "stopped" if changed.si_code == os.CLD_STOPPED else "continued"

    def answer(self, text: str = "") -> None:
        """Lets a rank that waits go on."""
        if self._unanswered:
            self._unanswered -= 1
            with suppress(OSError):
                self._channel.send(f"{text}\n".encode())

    def send(self, number: int) -> bool:
        """Sends a signal to it and to the processes that it has started; whether there are any."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _listen(self) -> bool:
        data = _read(self._channel)
        *lines, self._said = (self._said + (data or b"")).split(b"\n")
        for line in lines:
            self._unanswered += 1
            if line.decode() == ARRIVED:
                self.has_arrived = True
            else:
                self.report = Report.from_text(line.decode())
        return data != b""

    def _pass_on(self, pipe: Any) -> bool:
        data = _read(pipe)
        if data:
            self._outputs[pipe].take(data)
        return data != b""


def _read(source: Any) -> bytes | None:
    """What has come; empty at the end, None if there is nothing yet."""
    try:
        return os.read(source.fileno(), _READ)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def _start(job: Job, rank: int, coordinator: str, channel: int) -> subprocess.Popen[bytes]:
    seat = Seat(
        rank=rank,
        ranks=job.ranks,
        coordinator=coordinator,
        devices=job.devices,
        cores=tuple(sorted(job.cores[rank])) if job.cores else (),
        launcher=os.getpid(),
        channel=channel,
        lines=job.every_output,
        is_module=job.program.is_module,
    )
    own = {"JAXCC_RANK": str(rank), "JAXCC_RANKS": str(job.ranks), LAUNCHER: "jaxcc run"}
    own |= _without_proxy(os.environ)
    unshown = subprocess.DEVNULL if rank else None
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jaxcc.launch._rank", seat.to_text()),
            *(job.program.target, *job.program.args),
        ],
        env={**os.environ, **job.environment, **own},
        stdin=unshown,
        stdout=subprocess.PIPE if job.every_output else unshown,
        stderr=subprocess.PIPE if job.every_output or rank else None,
        pass_fds=(channel,),
        start_new_session=True,
    )


def _without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Keeps ranks from asking a proxy, where there is one, for the way to this machine."""
    excepted = environment.get("no_grpc_proxy") or environment.get("no_proxy")
    return {"no_grpc_proxy": f"127.0.0.1,{excepted}" if excepted else "127.0.0.1"}
