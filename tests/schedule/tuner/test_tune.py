"""Tuning end to end on CPU ranks: what is tried, what is thrown out, and what is kept."""

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from oracles import close, mesh_of
from tuning import by_verbs, typed

from jaxcc import Schedule, ScheduleError, codegen
from jaxcc.layout import CodegenError
from jaxcc.schedule import Step
from jaxcc.schedule._step import REWRITES
from jaxcc.schedule.tuner import Options, _tune, tune

G = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(64,)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("own_folder")


def stored(folder: Path) -> Path:
    (path,) = folder.glob("tuned-*.json")
    return path


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
