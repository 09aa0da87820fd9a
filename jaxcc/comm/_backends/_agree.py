"""JAXCC_CHECK=1: processes compare what they are about to do before any data moves."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from jaxcc._settings import timeout_s
from jaxcc.comm._call import Call
from jaxcc.layout import BackendError

_WIDTH = 256


def agree(call: Call, comm: Any) -> None:
    """While tracing, compares `call` between all processes of `comm`, if JAXCC_CHECK=1.

    Without it MPI itself notices some differences and ends the job. With it all processes must
    trace the same calls in the same order; they wait JAXCC_TIMEOUT_S seconds (300) for one that
    does not come.

    Raises:
      BackendError: BACKEND_DISAGREE on every process, BACKEND_TIMEOUT, BACKEND_SETTING.
    """
    if not _flag("JAXCC_CHECK"):
        return
    mine = np.zeros(_WIDTH, np.uint8)
    text = str(call).encode()[:_WIDTH]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.zeros((comm.size, _WIDTH), np.uint8)
    _wait(comm.Iallgather(mine, everyone), call)
    texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in everyone]
    if len(set(texts)) > 1:
        raise BackendError(
            "BACKEND_DISAGREE",
            "the processes of one group are about to run different collectives",
            operands=tuple(f"rank {rank}: {text}" for rank, text in enumerate(texts)),
            fixes=("make shapes, dtypes and the order of calls the same on every rank",),
        )


def _wait(request: Any, call: Call) -> None:
    limit = timeout_s()
    deadline = time.monotonic() + limit
    while not request.Test():
        if time.monotonic() > deadline:
            raise BackendError(
                "BACKEND_TIMEOUT",
                f"waited {limit:g} s for the other processes to trace {call}",
                fixes=("trace the same program on every rank", "raise JAXCC_TIMEOUT_S"),
            )
        time.sleep(1e-4)


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise BackendError("BACKEND_SETTING", f"{name} is {value!r}; it takes 0 or 1")
    return value == "1"
