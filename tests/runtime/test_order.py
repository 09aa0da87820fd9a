"""Independent collectives with large buffers do not deadlock."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("ranks", "count"), [(2, 24), (4, 16)])
def test_independent_collectives_come_in_one_order(ranks: int, count: int) -> None:
    script = Path(__file__).with_name("independent_collectives.py")
    environment = os.environ | {"JAXCC_TIMEOUT_S": "30"}
    done = subprocess.run(
        [sys.executable, str(script), str(ranks), str(count)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
