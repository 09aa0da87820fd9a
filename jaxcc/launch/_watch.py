"""The launcher: starts ranks, and watches them until all have ended."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxcc._coordination import serve
from jaxcc.launch._failures import Failures, exit_code, named
from jaxcc.launch._job import Job
from jaxcc.launch._output import note
from jaxcc.launch._process import Process
from jaxcc.launch._signals import Signals

_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A wrapper around the launcher may hand on a Ctrl-C that came here, too.
_TWICE_S = 0.3
# Ranks that still run so long after a signal are named.
_REMIND_S = 2.0
# A peer's death can come to light after the error that it causes, which waits so long.
_JUDGE_S = 0.05


def run(job: Job) -> int:
    """Runs the job in new processes, which end with this one at the latest.

    To be called in the main thread.

    Returns:
      0 if all ranks end so, else the exit code of the first that failed. Where a signal ended it,
      or the job, this is 128 and the signal's number, as in a shell.
    """
    watched = (*_HANDED_ON, signal.SIGTSTP, signal.SIGCHLD)
    with _free_port() as port, Signals(watched) as signals:
        address = f"127.0.0.1:{port}"
        ranks: list[Process] = []
        try:
            for rank in range(job.ranks):
                ranks.append(Process(job, rank, address))
            service = serve(address, job.ranks)
            code = _Watch(job, ranks, signals).until_all_ended()
            del service
            return code
        except BaseException:
            for process in ranks:
                process.send(signal.SIGKILL)
            raise


@contextmanager
def _free_port() -> Iterator[int]:
    """A port that nobody else is given, but that the service may listen on."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class _Watch:
    """Waits for what happens to ranks.

    It runs until all have ended. What is to be done later stands in `_due`, with its time.
    """

    def __init__(self, job: Job, ranks: list[Process], signals: Signals) -> None:
        self._job = job
        self._ranks = ranks
        self._signals = signals
        self._failures = Failures(ranks, prefixed=job.every_output)
        self._stopped: set[int] = set()
        self._handed_on: int | None = None
        self._handed_on_at = 0.0
        self._ends = False
        self._due: dict[Callable[[], None], float] = {}

    def until_all_ended(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals.source, selectors.EVENT_READ, lambda: True)
            for process in self._ranks:
                for source, read in process.sources().items():
                    selector.register(source, selectors.EVENT_READ, read)
            while self._running():
                for key, _ in selector.select(self._patience()):
                    if not key.data():
                        selector.unregister(key.fileobj)
                for number in self._signals.take():
                    self._take(number)
                for process in self._running():
                    self._look(process)
                self._gather()
                self._do_what_is_due()
        self._judge()
        if self._ends or self._handed_on is not None:
            self._end_what_ranks_started()
        return self._told_result()

    def _running(self) -> list[Process]:
        return [process for process in self._ranks if process.code is None]

    def _patience(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._due[action] = time.monotonic() + seconds

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for action in [action for action, due in self._due.items() if due <= now]:
            del self._due[action]
            action()

    def _look(self, process: Process) -> None:
        match process.look():
            case "stopped":
                self._stopped.add(process.rank)
                note(f"rank {process.rank} (process {process.pid}) is stopped; its peers wait")
            case "continued" if process.rank in self._stopped:
                self._stopped.remove(process.rank)
                note(f"rank {process.rank} goes on")
            case _:
                pass
        if (process.report or process.code) and self._failures.notice(process):
            self._after(_JUDGE_S, self._judge)

    def _gather(self) -> None:
        """Lets ranks go on that have imported JAX, when all have, or when one never will."""
        missing = [process for process in self._ranks if not process.has_arrived]
        # The peers of a rank that failed are ended, unless they are to go on.
        lost = [p.rank for p in missing if p.code == 0 or (p.code and self._job.keep_going)]
        if lost or not missing:
            for process in self._ranks:
                if process.has_arrived and process.report is None:
                    process.answer(f"{named(lost)} ended without importing it" if lost else "")

    def _judge(self) -> None:
        """Tells which rank failed, ends its peers, and only then lets it go."""
        if self._handed_on is None:
            self._failures.tell(every=self._job.keep_going)
            failed = self._failures.first is not None
            if failed and not self._ends and not self._job.keep_going:
                self._ends = True
                self._send(signal.SIGTERM, but=self._failures.first)
                self._after(self._job.grace_s, self._kill)
        for process in self._ranks:
            if process.report is not None:
                process.answer()

    def _take(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif number != signal.SIGCHLD:
            self._hand_on(number)

    def _hand_on(self, number: int) -> None:
        """Sends all ranks a signal that came here; of a second one they die."""
        if self._handed_on is None and not self._ends:
            self._handed_on, self._handed_on_at = number, time.monotonic()
            self._send(number)
            self._after(_REMIND_S, self._remind)
        elif time.monotonic() - self._handed_on_at > _TWICE_S:
            self._kill()

    def _remind(self) -> None:
        ranks = named([process.rank for process in self._running()])
        again = "Ctrl-C again kills" if self._handed_on == signal.SIGINT else "again, it kills"
        note(f"{ranks} still run; {again} them")

    def _pause(self) -> None:
        """Ctrl-Z: ranks, which the terminal does not reach, stop with this process."""
        for process in self._running():
            process.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._running():
            process.send(signal.SIGCONT)

    def _send(self, number: int, but: Process | None = None) -> None:
        for process in self._running():
            if process is not but:
                process.send(number)
                # A stopped process takes signals only when it goes on.
                process.send(signal.SIGCONT)

    def _kill(self) -> None:
        for process in self._running():
            process.send(signal.SIGKILL)

    def _end_what_ranks_started(self) -> None:
        """Ends their processes, which may be tidying up, when the grace is over."""
        until = time.monotonic() + self._job.grace_s
        while any([process.send(0) for process in self._ranks]) and time.monotonic() < until:
            time.sleep(_JUDGE_S)
        for process in self._ranks:
            process.send(signal.SIGKILL)

    def _told_result(self) -> int:
        self._failures.tell_of_others()
        if self._handed_on is not None and any(process.code for process in self._ranks):
            self._failures.tell_after_signal()
            note(f"ended by {signal.Signals(self._handed_on).name}")
            return 128 + self._handed_on
        first = self._failures.first
        return 0 if first is None else exit_code(first)
