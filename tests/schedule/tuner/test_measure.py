"""What measuring a machine gives, and that a busy one gets fewer calls, not more time."""

import time
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcc import codegen
from jaxcc.layout import CodegenError
from jaxcc.schedule.tuner import (
    CPU,
    H100,
    _measure,
    find_profile,
    parse_profile,
    profile_this_machine,
    save_profile,
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_profile_of_this_machine(ranks: int) -> None:
    heard: list[str] = []
    devices = jax.devices()[:ranks]
    profile = profile_this_machine(devices, progress=heard.append)
    # Every number is one that a profile can have.
    assert parse_profile(profile.to_json()) == profile
    assert profile.ranks_per_node == ranks
    assert profile.fused[0].name == "kernel"
    assert heard == ["calls", "copies", "products", "sums"]
    assert save_profile(profile)
    mesh = jax.sharding.Mesh(devices, ("x",))
    assert find_profile(None, mesh) == profile


def test_without_kernels_xlas_sums_stand_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kernel: Any) -> Any:
        raise CodegenError("CODEGEN_NO_COMPILER", "there is no compiler")

    monkeypatch.setattr(codegen, "compile_kernel", refuse)
    profile = profile_this_machine(jax.devices()[:2])
    assert profile.fused == profile.protocols


def test_slow_calls_are_few() -> None:
    calls: list[float] = []

    def slow() -> float:
        time.sleep(_measure._SHARE_S)
        calls.append(0.0)
        return 0.0

    (us,) = _measure._best_us(slow)
    assert us >= 1e6 * _measure._SHARE_S
    assert len(calls) == 1 + _measure._FEWEST


def test_a_machine_that_nobody_measured_is_ranked_as_the_nearest() -> None:
    class Device:
        def __init__(self, platform: str, kind: str) -> None:
            self.platform, self.device_kind = platform, kind

    class Mesh:
        def __init__(self, *device: str) -> None:
            self.devices = [Device(*device)]

    assert find_profile(None, Mesh("cpu", "cpu")) == CPU
    assert find_profile(None, Mesh("gpu", "Tesla V100-SXM3-32GB")).name == "dgx2"
    assert find_profile(None, Mesh("gpu", "NVIDIA H200")).name == "h200"
    assert find_profile(None, Mesh("gpu", "NVIDIA B200")) == H100
