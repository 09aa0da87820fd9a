"""The example programs run and do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
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
