"""The mpi backend, between two processes: each scenario is a function of mpi_rank.py."""

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

RANKS = 2
MPIRUN = shutil.which("mpirun", path=sysconfig.get_path("scripts")) or "mpirun"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def mpirun(scenario: str, **env: str) -> str:
    """The output of both ranks of one scenario; fails if one of them does."""
    program = Path(__file__).with_name("mpi_rank.py")
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "120"]
    done = subprocess.run(
        [MPIRUN, "-n", str(RANKS), *options, sys.executable, program, str(free_port()), scenario],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout
    for rank in range(RANKS):
        assert f"rank {rank} passed {scenario}" in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("scenario", ["values", "gradients", "program", "no_gradient", "auto"])
def test_between_processes(scenario: str) -> None:
    mpirun(scenario)


def test_ranks_that_disagree_are_told() -> None:
    mpirun("disagree", JAXCC_CHECK="1")


def test_a_rank_that_does_not_come() -> None:
    mpirun("absent", JAXCC_CHECK="1", JAXCC_TIMEOUT_S="3")
