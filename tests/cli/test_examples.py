"""The example programs run and do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# As in test_demo.py: what is small runs sooner without XLA's optimizations.
COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def output(name: str, *options: str, ranks: int = 2) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        env=os.environ
        | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={ranks} {COMPILE_FAST}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_attention_tail() -> None:
    listing, _, difference = output("attention_tail.py").partition("largest difference from")
    assert "reduce_scatter" in listing and "all_gather" in listing
    assert 0 < float(difference.split()[-1]) < 1e-3


def test_data_parallel() -> None:
    losses = [float(found) for found in re.findall(r"loss (\S+)", output("data_parallel.py"))]
    assert len(losses) == 6 and losses[-1] < losses[0] / 5


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "attention", "mlp", "pipeline"])
def test_all_schedules_of_a_workload_agree(name: str) -> None:
    ranks = 4 if name == "pipeline" else 2
    lines = output("workloads.py", name, "--size", "16", ranks=ranks).splitlines()
    overlapped = ["host"] if name in ("attention", "mlp", "pipeline") else []
    assert [line.split()[1] for line in lines] == ["xla", "xla", "host", *overlapped]
    for line in lines:
        assert float(line.split()[-1]) < 1e-5


def test_a_schedule_of_a_workload_is_shown() -> None:
    shown = output("workloads.py", "adam", "--size", "16", "--print", "fuse-rs-c-ag")
    assert "fused {" in shown and "Sliced(0)@dp" in shown
