"""The host backend between processes: each scenario is a function of process_rank.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(scenario: str, processes: int, devices: int = 1, *options: str, **env: str) -> None:
    """Runs a scenario in processes with so many devices each; fails if one that ends does."""
    program = Path(__file__).with_name("process_rank.py")
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-m", "jaxcc", "run", "-n", str(processes)]
        + ["--devices-per-rank", str(devices), "--output", "all", *options, str(program), scenario],
        env={**os.environ, "XLA_FLAGS": "", "JAXCC_TIMEOUT_S": "60", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    for rank in range(processes if scenario != "killed" else processes - 1):
        assert f"rank {rank} passed {scenario}" in done.stdout, done.stdout
    if scenario != "killed":
        assert done.returncode == 0, done.stdout
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (3, 1), (2, 2)])
def test_every_collective(processes: int, devices: int) -> None:
    run("collectives", processes, devices)


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (3, 1), (2, 2)])
def test_all_reduce(processes: int, devices: int) -> None:
    run("all_reduces", processes, devices)


def test_fused_optimizers_have_the_bits_of_one_process() -> None:
    run("steps", 2, 2)


def test_fused_kernels_send() -> None:
    run("pipeline", 2, 2)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_killed_rank(processes: int) -> None:
    run("killed", processes, 1, "--keep-going")


def test_a_stopped_rank(tmp_path: Path) -> None:
    run("stopped", 2, JAXCC_TIMEOUT_S="2", NOTE=str(tmp_path / "pid"))


def test_a_waiting_rank_is_idle() -> None:
    run("waiting", 2)


def test_different_programs() -> None:
    run("different", 2)


def test_programs_in_another_order() -> None:
    run("other_order", 2)


def test_different_tables(tmp_path: Path) -> None:
    run("disagree", 2, NOTE=str(tmp_path / "table"))
