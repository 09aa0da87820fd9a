"""Tuning end to end on CPU ranks: what is tried, what is thrown out, and what is kept."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, Sliced, codegen
from jaxcc.layout import CodegenError
from jaxcc.schedule import Step
from jaxcc.schedule._step import REWRITES
from jaxcc.schedule.tuner import H100, Options, Tuned, _tune, tune

G = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(64,)).astype(np.float32)


def step_of(g: Any, w: Any) -> Any:
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    return jaxcc.name(w - 0.5 * total, "new_w")


def typed() -> Any:
    return jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))(step_of)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(folder))
    monkeypatch.setattr(_tune, "_ROUNDS", 4)
    return folder


def stored(folder: Path) -> Path:
    (path,) = folder.glob("tuned-*.json")
    return path


def by_verbs(tuned: Tuned) -> dict[str, Any]:
    return {trial.verbs: trial for trial in tuned.trials}


def test_the_winner_is_right_and_no_slower_than_the_program_as_written() -> None:
    tuned = typed().autotune(G, W, budget_s=120)
    close(tuned(G, W), W - 0.5 * G.astype(np.float64).sum(0))
    assert not tuned.cached
    best, *others = tuned.trials
    assert best.status == "fastest" and best.median_us is not None
    assert best.low_us <= best.median_us <= best.high_us
    assert all(one.status == "timed" for one in others)
    assert all(one.median_us >= best.median_us for one in others)
    assert [str(step) for step in tuned.schedule.steps] == list(best.steps)
    assert set(by_verbs(tuned)) == {
        *("as written", "split", "split reorder", "split fuse", "split reorder fuse")
    }
    assert all(one.difference < 1e-5 and one.estimate_us > 0 for one in tuned.trials)
    assert str(tuned) == tuned.table
    assert "as written" in tuned.table and "fastest" in tuned.table and "median" in tuned.table
    assert "split(name='total', dim=0); reorder(gather='total.gather'" in tuned.table
    assert json.loads(json.dumps(tuned.to_json()))["trials"][0]["status"] == "fastest"


def test_a_second_call_takes_the_winner_from_disk(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = typed().autotune(G, W, budget_s=120)
    assert stored(own_folder).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(_tune, "candidates", None)
    second = typed().autotune(G, W, budget_s=120)
    assert second.cached
    assert second.schedule.steps == first.schedule.steps
    assert second.trials == first.trials
    close(second(G, W), first(G, W))
    with pytest.raises(TypeError):  # it would have to enumerate
        typed().autotune(G, W, budget_s=120, cache=False)


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "empty", "other", "writable", "step", "stale"]
)
def test_a_file_that_is_not_to_be_trusted_is_tuned_anew(own_folder: Path, damage: str) -> None:
    # As written only: what else there is takes longer.
    typed().autotune(G, W, budget_s=1e-3)
    path = stored(own_folder)
    text = path.read_text()
    if damage == "writable":
        path.chmod(0o666)
    elif damage == "step":
        # Whole, but of a step that this program does not have.
        content = _tune._store.read_json(path)
        gone = Step("split", {"name": "gone", "dim": 0})
        content["steps"] = [{"verb": gone.verb, "arguments": dict(gone.arguments)}]
        _tune._store.write_json(path, content)
    elif damage == "stale":
        content = _tune._store.read_json(path)
        content["key"]["jaxcc"] = "0"
        _tune._store.write_json(path, content)
    else:
        changed = text.replace("fastest", "slowest")
        texts = {"cut": text[:-40], "changed": changed, "empty": "", "other": "[1]"}
        path.write_text(texts[damage])
    assert not typed().autotune(G, W, budget_s=1e-3).cached
    assert typed().autotune(G, W, budget_s=1e-3).cached


def test_nothing_is_kept_in_a_folder_that_others_can_write(own_folder: Path) -> None:
    own_folder.mkdir()
    own_folder.chmod(0o777)
    with pytest.warns(UserWarning, match="CODEGEN_CACHE"):
        tuned = typed().autotune(G, W, budget_s=1e-3, backend="xla")
    assert not tuned.cached and not list(own_folder.glob("*.json"))


def test_shapes_options_and_budgets_are_told_apart(own_folder: Path) -> None:
    typed().autotune(G, W, budget_s=1e-3)
    assert not typed().autotune(G[:, :32], W[:32], budget_s=1e-3).cached
    assert not typed().autotune(G, W, budget_s=1e-3, backend="xla").cached
    assert not typed().autotune(G, W, budget_s=1e-3, donate=("w",)).cached
    assert len(list(own_folder.glob("tuned-*.json"))) == 4
    assert typed().autotune(G, W, budget_s=1e-3).cached
    # A larger budget may find more.
    assert not typed().autotune(G, W, budget_s=2e-3).cached


def test_the_budget_is_kept() -> None:
    tuned = typed().autotune(G, W, budget_s=1e-3)
    assert tuned.schedule.steps == ()
    assert by_verbs(tuned)["as written"].status == "fastest"
    assert {one.status for one in tuned.trials[1:]} == {"not tried"}
    start = time.perf_counter()
    typed().autotune(G, W, budget_s=2, cache=False)
    assert time.perf_counter() - start < 20


def test_a_schedule_that_computes_something_else_is_thrown_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of a backend, which no verification of the program sees."""
    right = Schedule.compile

    def wrong(self: Schedule, *args: Any, **kwargs: Any) -> Any:
        compiled = right(self, *args, **kwargs)
        if self.steps:
            fine = compiled._mapped
            compiled.__dict__["_mapped"] = lambda *x: [y + 1 for y in fine(*x)]
        return compiled

    monkeypatch.setattr(Schedule, "compile", wrong)
    tuned = typed().autotune(G, W, budget_s=120)
    assert tuned.schedule.steps == ()
    assert {one.status for one in tuned.trials[1:]} == {"wrong"}
    assert "SCHEDULE_WRONG_RESULT" in tuned.table


def test_a_wrong_copy_on_one_rank_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    device = mesh_of(2).devices.flat[1]
    right = Schedule.compile

    def wrong(self: Schedule, *args: Any, **kwargs: Any) -> Any:
        compiled = right(self, *args, **kwargs)
        if not self.steps:
            return compiled
        fine = compiled._mapped

        def off_on_one(*x: Any) -> list[Any]:
            (y,) = fine(*x)
            parts = [s.data + float(s.device == device) for s in y.addressable_shards]
            return [jax.make_array_from_single_device_arrays(y.shape, y.sharding, parts)]

        compiled.__dict__["_mapped"] = off_on_one
        return compiled

    monkeypatch.setattr(Schedule, "compile", wrong)
    tuned = typed().autotune(G, W, budget_s=120, backend="xla")
    assert {one.status for one in tuned.trials[1:]} == {"wrong"}


def test_a_rewrite_that_changes_the_program_is_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    split = REWRITES["split"]

    def mutant(program: Any, **arguments: Any) -> Any:
        """Leaves the update out."""
        program = split(program, **arguments)
        return program.with_ops(program.ops, outputs=("total.gather",))

    monkeypatch.setitem(REWRITES, "split", mutant)
    tuned = typed().autotune(G, W, budget_s=120, backend="xla")
    assert tuned.schedule.steps == ()
    assert all("SCHEDULE_CHANGES_RESULT" in one.message for one in tuned.trials[1:])


def test_a_kernel_that_does_not_compile_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kernel: Any) -> Any:
        raise CodegenError("CODEGEN_COMPILE", "the compiler refused a kernel")

    monkeypatch.setattr(codegen, "compile_kernel", refuse)
    tuned = typed().autotune(G, W, budget_s=120)
    for verbs, trial in by_verbs(tuned).items():
        assert ("fuse" in verbs) == (trial.status == "failed") == ("refused" in trial.message)
    assert "CODEGEN_COMPILE" in tuned.table


def test_a_reference_that_differs_from_the_program_itself_is_an_error() -> None:
    schedule = typed().schedule(jax.ShapeDtypeStruct((64,), "float32"), W)
    with pytest.raises(ScheduleError, match="SCHEDULE_WRONG_RESULT"):
        tune(schedule, (G, W), lambda: W, Options(budget_s=1, cache=False))
    tune(schedule, (G, W), lambda: W, Options(budget_s=1, rtol=10.0, cache=False))


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


def test_a_file_that_cannot_be_written_costs_only_the_memory(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> Path:
        raise CodegenError("CODEGEN_CACHE", "no space left on device")

    monkeypatch.setattr(codegen, "new_cache_file", full)
    _tune._store._warn.cache_clear()
    with pytest.warns(UserWarning, match="keeps no tuning results: .*no space left"):
        tuned = typed().autotune(G, W, budget_s=1e-3, backend="xla")
    close(tuned(G, W), W - 0.5 * G.astype(np.float64).sum(0))
    assert not list(own_folder.glob("tuned-*"))


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


def test_a_plot_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    tuned = typed().autotune(G, W, budget_s=1e-3)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ScheduleError, match=r"(?s)SCHEDULE_NO_MATPLOTLIB.*jaxcc\[plot\]"):
        tuned.plot(tmp_path / "out.png")


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    tuned = typed().autotune(G, W, budget_s=1e-3)
    for name in ("out.png", "out.svg"):
        tuned.plot(tmp_path / name)
        assert os.path.getsize(tmp_path / name) > 5000
