"""`jaxcc demo` as a user runs it, on small sizes: with and without a compiler, on 3 ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcc.cli.demo import model, optimizer

# Three quarters of a small demo's time are XLA's optimizations.
COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def demo(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs `jaxcc demo --quick` in an environment that says nothing about devices."""
    kept = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    return subprocess.run(
        [sys.executable, "-m", "jaxcc", "demo", "--quick", *args],
        env=kept | {"XLA_FLAGS": COMPILE_FAST} | changes,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def fused() -> subprocess.CompletedProcess[str]:
    return demo("--json")


@pytest.fixture(scope="module")
def found(fused: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert fused.returncode == 0, fused.stderr
    return json.loads(fused.stdout)


def test_all_results_agree_with_their_references(found: dict[str, Any]) -> None:
    assert found["ranks"] == 2 and found["clean"] and found["fused"]
    oracles = [set(row["differences"]) for row in found["rows"]]
    both = {"one rank", "NumPy f64"}
    assert oracles == [both, both, {"one rank", "XLA"}, both, both]
    for row in found["rows"]:
        assert row["agrees"], row
        assert max(row["differences"].values()) < 1e-4, row


def test_times_are_medians_between_quartiles(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        for side in row["times"].values():
            assert 0 < side["low"] <= side["median"] <= side["high"]


def test_training_learns_the_same_on_all_sides(found: dict[str, Any]) -> None:
    losses = {name: np.array(run) for name, run in found["losses"].items()}
    assert set(losses) == {"jaxcc", "XLA", "one rank"}
    for run in losses.values():
        assert run.shape == (6,)
        np.testing.assert_allclose(run[0], np.log(model.BYTES), rtol=0.05)
        assert run[-1] < run[0] - 0.1
        np.testing.assert_allclose(run, losses["one rank"], rtol=1e-4)


def test_the_wrong_line_is_shown_and_the_schedule_is_printed(found: dict[str, Any]) -> None:
    shown = found["attention"]
    assert "[LAYOUT_" in shown["error"]
    assert "psum(x @ w + b, AXIS)" in shown["error"] and "^" in shown["error"]
    assert "all_reduce" in shown["source"] and "fused" not in shown["source"]
    assert "fused" in shown["schedule"]


def test_progress_goes_to_stderr(fused: subprocess.CompletedProcess[str]) -> None:
    # How far it is is told every 5 s, which a fast machine does not need.
    assert "training" in fused.stderr and "done in" in fused.stderr
    assert "warning" not in fused.stderr and "Traceback" not in fused.stderr


def test_without_a_compiler_results_are_the_same_after_one_warning(
    found: dict[str, Any], tmp_path: Path
) -> None:
    done = demo("--json", PATH=str(tmp_path), JAXCC_CXX="", JAXCC_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line.lower()]
    assert "compiler" in warning
    unfused = json.loads(done.stdout)
    assert unfused["clean"] and not unfused["fused"] and len(unfused["warnings"]) == 1
    for name, run in unfused["losses"].items():
        np.testing.assert_allclose(run, found["losses"][name], rtol=1e-4)


def test_three_ranks_as_text() -> None:
    done = demo("--ranks", "3", "--steps", "3", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "3 ranks, f32, jaxcc fused" in done.stdout
    assert "[LAYOUT_" in done.stdout and "loss, nats per byte" in done.stdout


def test_adam_in_f64_is_optax() -> None:
    """The demo's own oracle, against another one."""
    import jax
    import optax

    random = np.random.default_rng(4)
    param, draws = random.standard_normal(50), random.standard_normal((3, 2, 50))
    with jax.enable_x64(True):
        adam = optax.adam(0.1)
        expected = jax.numpy.asarray(param)
        state = adam.init(expected)
        for draw in draws:
            updates, state = adam.update(jax.numpy.asarray(draw.mean(0)), state, expected)
            expected = optax.apply_updates(expected, updates)
        expected = np.asarray(expected)
    got = optimizer.adam_in_f64(param, *draws, learning_rate=0.1)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_batches_are_windows_of_the_help_topics() -> None:
    text = model.corpus().tobytes()
    drawn = model.batches(seed=3, steps=2, batch=4, context=16)
    assert drawn.shape == (2, 4, 17) and drawn.dtype == np.uint8
    assert all(window.tobytes() in text for window in drawn.reshape(-1, 17))
    np.testing.assert_array_equal(drawn, model.batches(seed=3, steps=2, batch=4, context=16))
