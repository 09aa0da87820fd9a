"""`jaxcc run` as a user starts it, and what scripts that it runs begin with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT_S = 120


class Launcher:
    """`jaxcc run` with a script; the script may write lines to what `lines()` gives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, script: str, *options: str, args: tuple[str, ...] = (), **environment: str
    ) -> subprocess.Popen[str]:
        path = self._folder / "script.py"
        path.write_text(script)
        process = subprocess.Popen(
            [sys.executable, "-m", "jaxcc", "run", *options, str(path), *args],
            env={**os.environ, "LINES": str(self._folder / "lines"), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(
        self, script: str, *options: str, args: tuple[str, ...] = (), stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *options, args=args)
        out, err = process.communicate(stdin, timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def lines(self, count: int) -> list[str]:
        """What ranks have written with `say`, when there are so many lines."""
        path = self._folder / "lines"
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            if path.exists() and len(lines := path.read_text().splitlines()) >= count:
                return lines
            time.sleep(0.02)
        raise AssertionError(f"{count} lines did not come")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


SAY = """
import os, signal, sys, time
RANK, RANKS = int(os.environ["JAXCC_RANK"]), int(os.environ["JAXCC_RANKS"])
def say(*what):
    with open(os.environ["LINES"], "a") as lines:
        lines.write(" ".join(map(str, what)) + "\\n")
"""
SUM = (
    SAY
    + """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
jax.set_mesh(jax.make_mesh((jax.device_count(),), ("x",)))
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), in_specs=P("x"), out_specs=P()))
"""
)


def is_alive(pid: int) -> bool:
    """Whether it runs; a process that has ended, but whose parent has not looked, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, f"of {pids} some still run"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
