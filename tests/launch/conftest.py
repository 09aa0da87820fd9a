"""A launcher for each test, whose processes end with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.close()
