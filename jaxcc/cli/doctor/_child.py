"""Processes that answer probes: whatever they do, they are ended in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import jaxcc
from jaxcc.cli.doctor._probe import FAILS, Answer

_GRACE_S = 2.0
_POLL_S = 0.02


class Child:
    """A Python process with an answer on its last line of output.

    Its output goes to files: a pipe stays open as long as anything that it started lives.
    """

    def __init__(
        self,
        module: str,
        *args: str,
        launcher: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        leads: bool = False,
    ) -> None:
        """Starts `python -m module args`, by `launcher` if there is one.

        Args:
          variables: what its environment has beside this one's.
          leads: whether what it starts is ended with it.
        """
        # The jaxcc that it imports is this one, whatever the current folder holds.
        path = [str(Path(jaxcc.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONSAFEPATH": "1"}
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._leads = leads
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [*launcher, sys.executable, "-m", module, *args],
            env={**os.environ, **own, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=leads,
        )

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.started

    def end(self) -> Answer:
        """Ends it, if it still runs, by SIGTERM and 2 s later by SIGKILL.

        Returns:
          What it said; how it ended, if it said nothing or did not end well.
        """
        late = self.status is None
        if late:
            self._send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        # What it started may have survived it.
        if self._leads or self.status is None:
            self._send(signal.SIGKILL)
        status = self._process.wait()
        return _told(_lines(self._out), _lines(self._err), status, self.seconds if late else None)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self._leads else os.kill)(self._process.pid, number)


def say(look: Callable[[], Answer]) -> None:
    """Answers, in the process of a `Child`, with what `look` returns, or the error it raises."""
    try:
        answer = look()
    except Exception as error:
        answer = Answer.of_error(error)
    print(f"\n{json.dumps(answer.as_json())}", flush=True)


def together(ranks: Sequence[Child]) -> Answer:
    """The answer of processes that need one another: the first that is not good, else the first.

    One that fails ends the others, which would wait for it.
    """
    while None in (states := [rank.status for rank in ranks]) and not any(states):
        time.sleep(_POLL_S)
    answers = [rank.end() for rank in ranks]
    told = [answer for answer, state in zip(answers, states, strict=True) if state] or answers
    return next((answer for answer in told if answer.state == FAILS), told[0])


def _told(out: list[str], err: list[str], status: int, late_s: float | None) -> Answer:
    """What a process said; how it ended, if it said nothing or did not end well."""
    said: list[Answer] = []
    for line in out:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            said.append(Answer.of_json(json.loads(line)))
    # A launcher's output has an answer of each rank.
    if failed := [one for one in said if one.state == FAILS]:
        return failed[0]
    if said and status == 0:
        return said[-1]
    why = err[-1].strip() if err else ""
    if late_s is not None:
        return Answer(FAILS, f"no answer within {late_s:.0f} s", why)
    if status < 0:
        named = signal.Signals(-status).name if -status in signal.valid_signals() else -status
        return Answer(FAILS, f"its process was ended by {named}", why)
    return Answer(FAILS, f"its process ended with status {status}", why)


def _lines(file: IO[bytes]) -> list[str]:
    """The lines of what was written to a file, which is closed."""
    with file:
        file.seek(0)
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]
