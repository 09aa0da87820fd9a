"""What tests of whole tunings share."""

from pathlib import Path

import pytest

from jaxcc.schedule.tuner import _tune


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, for this test alone; of timings few rounds."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(folder))
    monkeypatch.setattr(_tune, "_ROUNDS", 4)
    return folder
