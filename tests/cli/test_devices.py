"""How many virtual devices a command asks JAX for."""

from __future__ import annotations

import os

import pytest

from jaxcc.cli._devices import force_host_devices

COUNT = "--xla_force_host_platform_device_count"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, f"{COUNT}=3"),
        ("--xla_other=1", f"--xla_other=1 {COUNT}=3"),
        (f"{COUNT}=2 --xla_other=1", f"{COUNT}=3 --xla_other=1"),
        (f"--xla_other=1 {COUNT}=8", f"--xla_other=1 {COUNT}=8"),
    ],
)
def test_a_setting_that_suffices_stays(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if given is not None:
        monkeypatch.setenv("XLA_FLAGS", given)
    force_host_devices(3)
    assert os.environ["XLA_FLAGS"] == expected
