"""What a caller may choose of a tuning, and which arguments it takes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of
from tuning import by_verbs, typed

import jaxcc
from jaxcc import Local, Replicated, ScheduleError, Sliced
from jaxcc.schedule.tuner import H100

G = np.random.default_rng(2).normal(size=(2, 64)).astype(np.float32)
W = np.random.default_rng(3).normal(size=(64,)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("own_folder")


def test_state_may_become_sliced_and_donated() -> None:
    def momentum(g: Any, w: Any, m: Any) -> Any:
        m = jaxcc.name(0.9 * m + jaxcc.name(lax.psum(g, "tp"), "total"), "new_m")
        return jaxcc.name(w - 0.5 * m, "new_w"), m

    f = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated, Replicated))(momentum)
    heard: list[str] = []
    options: Any = {"slice": ("m", "new_m"), "donate": ("w", "m"), "progress": heard.append}
    tuned = f.autotune(G, W, W, budget_s=120, **options)
    assert "split reorder as_slice fuse" in by_verbs(tuned)
    assert all(one.status in ("fastest", "timed") for one in tuned.trials)
    w, m = tuned(G, jax.numpy.copy(W), jax.numpy.copy(W))
    m64 = 0.9 * W.astype(np.float64) + G.sum(0)
    close(m, m64)
    close(w, W - 0.5 * m64)
    if "as_slice" in by_verbs(tuned) and tuned.trials[0].verbs.count("as_slice"):
        assert tuned.compiled.program.in_layouts[2]["tp"] == Sliced(0)
    assert "computing the reference" in heard


def test_arguments_may_be_trees_and_static() -> None:
    @jaxcc.typed(mesh=mesh_of(2), in_layouts=({"g": Local},), static_argnames="times")
    def scaled(p: Any, times: int = 2) -> Any:
        return {"out": lax.psum(p["g"], "tp") * times}

    tuned = scaled.autotune({"g": G}, times=3, budget_s=120, backend="xla")
    close(tuned({"g": G})["out"], 3 * G.sum(0))


def test_random_keys_are_arguments() -> None:
    def dropout(x: Any, key: Any) -> Any:
        total = lax.psum(x, "tp")
        return jax.numpy.where(jax.random.bernoulli(key, 0.5, total.shape), total, 0.0), key

    f = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))(dropout)
    key = jax.random.key(11)
    tuned = f.autotune(G, key, budget_s=120, donate="key")
    assert {one.status for one in tuned.trials} == {"fastest", "timed"}
    got, same = tuned(G, jax.numpy.copy(key))
    mask = np.asarray(jax.random.bernoulli(key, 0.5, (64,)))
    close(got, np.where(mask, G.astype(np.float64).sum(0), 0.0))
    assert np.array_equal(jax.random.key_data(same), jax.random.key_data(key))


def test_numbers_of_every_kind_are_arguments() -> None:
    def mixed(x: Any, i: Any, b: Any, h: Any) -> Any:
        return lax.psum(x, "tp") * i, jax.numpy.where(b, h, 0)

    f = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated, Replicated, Replicated))(mixed)
    x = np.random.default_rng(5).integers(-9, 9, (2, 8)).astype(np.int32)
    h = np.random.default_rng(6).normal(size=(8,)).astype(jax.numpy.bfloat16)
    tuned = f.autotune(x, 3, np.arange(8) % 2 == 0, h, budget_s=120)
    assert {one.status for one in tuned.trials} == {"fastest", "timed"}
    product, chosen = tuned(x, 3, np.arange(8) % 2 == 0, h)
    assert np.array_equal(product, 3 * x.sum(0))
    assert np.array_equal(np.asarray(chosen), np.where(np.arange(8) % 2 == 0, h, 0))


def test_dead_results_are_left_out_of_every_schedule() -> None:
    @jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))
    def both(g: Any, w: Any) -> Any:
        total = jaxcc.name(lax.psum(g, "tp"), "total")
        return {"log": jaxcc.name(jax.numpy.exp(total), "log"), "w": w - total}

    tuned = both.autotune(G, W, budget_s=120, dead="log")
    assert {one.status for one in tuned.trials} == {"fastest", "timed"}
    assert all(one.steps[0] == "dead(name='log')" for one in tuned.trials)
    result = tuned(G, W)
    assert result["log"] is None
    close(result["w"], W - G.astype(np.float64).sum(0))
    again = both.autotune(G, W, budget_s=120, dead=("log",))
    assert again.cached and again(G, W)["log"] is None
    assert not both.autotune(G, W, budget_s=1e-3).cached


@pytest.mark.parametrize("budget", [0, "5", True, -1, float("nan"), float("inf")])
def test_a_budget_that_is_none(budget: Any) -> None:
    with pytest.raises(ScheduleError, match=r"(?s)SCHEDULE_ARGUMENT.*budget_s is .*above 0"):
        typed().autotune(G, W, budget_s=budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slice": "W"}, "slice: 'W' is no input or result of step_of; there are g, w, "),
        ({"slice": ("new_w", "nw")}, "'nw' is no input or result"),
        ({"donate": "new_w"}, "donate: 'new_w' is no input"),
        ({"donate": (1,)}, "donate has 1, which is no name"),
        ({"dead": "w"}, "'w' is an input"),
        ({"rtol": -1}, "rtol is -1"),
    ],
)
def test_options_that_name_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        typed().autotune(G, W, **options)


def test_one_name_is_as_good_as_a_list_of_one() -> None:
    first = typed().autotune(G, W, budget_s=1e-3, slice="w", donate="w")
    assert typed().autotune(G, W, budget_s=1e-3, slice=("w",), donate=["w"]).cached
    assert first.compiled.program.inputs == ("g", "w")


def test_a_profile_by_name_or_from_a_file(tmp_path: Path) -> None:
    def estimates(profile: Any) -> list[float]:
        tuned = typed().autotune(G, W, budget_s=1e-3, profile=profile, cache=False)
        return [one.estimate_us for one in tuned.trials]

    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"profile": H100.to_json()}))
    assert estimates("h100") == estimates(str(path)) == estimates(H100) != estimates("cpu")
    with pytest.raises(jaxcc.TableError, match=r"(?s)TABLE_MISSING.*'h300'.*dgx2, h100"):
        estimates("h300")


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(jaxcc.BackendError, match="BACKEND_UNKNOWN"):
        typed().autotune(G, W, backend="gpu")
    mesh = jax.sharding.AbstractMesh((2,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(jaxcc.BackendError, match="BACKEND_NO_DEVICES"):
        typed().over(mesh).autotune(G, W)


def test_a_profile_ranks() -> None:
    slow_links = dataclasses.replace(H100, intra_gbps=1e-3)
    tuned = typed().autotune(G, W, budget_s=1e-3, profile=slow_links)
    assert all(one.estimate_us > 50 for one in tuned.trials)
