"""Faults of processes: one of a group is killed, stopped, late or leaves at a random moment.

JAXCC_FAULTS_S=900 lets each fault come again and again for so many seconds in all; the C++ test
`fault_test SECONDS` has far more of them in that time, without JAX.
"""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAULTS = ("early", "killed", "stopped", "paused", "late", "left")
FATAL = ("early", "killed", "stopped", "left")


def run(fault: str, ranks: int, victim: int, seed: int, note: Path) -> None:
    """One run; every rank that the fault leaves alive must pass what fault_rank.py asserts."""
    before = set(os.listdir("/dev/shm"))
    program = Path(__file__).with_name("fault_rank.py")
    done = subprocess.run(
        [sys.executable, "-m", "jaxcc", "run", "-n", str(ranks), "--keep-going"]
        + ["--output", "all", str(program), fault, str(victim), str(seed)],
        env={**os.environ, "XLA_FLAGS": "", "JAXCC_TIMEOUT_S": "60", "NOTE": str(note)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    told = f"{fault}: rank {victim} of {ranks}, seed {seed}\n{done.stdout}"
    print(told)
    killed = fault in ("early", "killed")
    passed = {int(rank) for rank in re.findall(r"rank (\d) passed", done.stdout)}
    assert passed == set(range(ranks)) - ({victim} if killed else set()), told
    # Each ends with its own code.
    codes = {int(r): int(c) for r, c in re.findall(r"rank (\d) failed.*: exit code (\d+)", told)}
    ends = set(range(ranks)) - ({victim} if killed or fault == "left" else set())
    assert codes == ({rank: 40 + rank for rank in ends} if fault in FATAL else {}), told
    assert (f"rank {victim} failed: killed by SIGKILL" in told) == killed
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_a_random_moment(fault: str, tmp_path: Path) -> None:
    until = time.monotonic() + float(os.environ.get("JAXCC_FAULTS_S", "0")) / len(FAULTS)
    while True:
        ranks, seed = random.randint(2, 4), random.getrandbits(32)
        run(fault, ranks, random.randrange(ranks), seed, tmp_path / "note")
        if fault == "killed":
            # The next run of the program knows nothing of it.
            run("none", ranks, 0, seed, tmp_path / "note")
        if time.monotonic() > until:
            return
