"""What the enumeration finds, and that each program comes once."""

from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType
from workloads import WORKLOADS

import jaxcc
from jaxcc import Replicated, Schedule, ScheduleError, Sliced
from jaxcc.program import Program
from jaxcc.schedule import Step
from jaxcc.schedule.tuner import Candidate, _moves, candidates, digest

NAMES = sorted(WORKLOADS)


def mesh_of(n: int) -> AbstractMesh:
    return AbstractMesh((n,), ("tp",), axis_types=(AxisType.Auto,))


def schedule_of(name: str, n: int = 4) -> Schedule:
    return WORKLOADS[name].schedule(mesh_of(n), 64)


def verbs(one: Candidate) -> tuple[str, ...]:
    """The verbs of its steps, each once in a row."""
    names = [step.verb for step in one.steps]
    return tuple(v for i, v in enumerate(names) if i == 0 or v != names[i - 1])


@pytest.mark.parametrize("name", NAMES)
def test_finds_the_papers_schedules_without_verifying_any(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = WORKLOADS[name]
    schedule = schedule_of(name)
    rewrites: list[Step] = []

    def counted(program: Program, step: Step) -> Program | None:
        rewrites.append(step)
        return take(program, step)

    def walked(*args: Any) -> Any:
        raise AssertionError("a program was traced and walked")

    take = _moves.take
    monkeypatch.setattr(_moves, "take", counted)
    monkeypatch.setattr("jaxcc.schedule._schedule.layouts_of", walked)
    monkeypatch.setattr("jaxcc.schedule._schedule.computes_the_same", walked)
    found = candidates(schedule, slice=workload.state)
    # What takes time: a fraction of a millisecond for each rewrite.
    assert len(rewrites) <= 10 * len(found)
    kinds = {verbs(one) for one in found}
    sliced = ("as_slice",) if workload.state else ()
    assert () in kinds  # AR-C
    assert ("split", "reorder", *sliced) in kinds  # RS-C-AG
    assert ("split", "reorder", *sliced, "fuse") in kinds  # the same in one kernel


@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_is_verified_and_different(name: str) -> None:
    found = candidates(schedule_of(name), slice=WORKLOADS[name].state)
    assert len({one.digest for one in found}) == len(found)
    for one in found:
        schedule = one.schedule()
        assert schedule.steps == one.steps
        assert digest(schedule.program) == one.digest


def test_inputs_become_sliced_only_if_the_caller_allows_it() -> None:
    schedule = schedule_of("adam")
    for one in candidates(schedule):
        assert one.program.in_layouts == schedule.program.in_layouts
        assert one.program.out_layouts == schedule.program.out_layouts
    found = candidates(schedule, slice=("m",))
    assert any(one.program.in_layouts[2]["tp"] == Sliced(0) for one in found)
    assert all(one.program.in_layouts[3]["tp"] == Replicated for one in found)


def test_the_whole_state_becomes_sliced_at_once() -> None:
    for one in candidates(schedule_of("adam"), slice=WORKLOADS["adam"].state):
        names = [step.arguments["name"] for step in one.steps if step.verb == "as_slice"]
        assert names in ([], ["m", "v", "new_m", "new_v"])


def test_is_deterministic() -> None:
    first, second = (
        [(one.steps, one.digest) for one in candidates(schedule_of("attention"))] for _ in range(2)
    )
    assert first == second


def two_sums(x: Any, y: Any) -> Any:
    a = jaxcc.name(jax.lax.psum(x, "tp"), "a")
    return a + jaxcc.name(jax.lax.psum(y, "tp"), "b")


def two_sums_schedule(shape: tuple[int, ...] = (8,)) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(4), in_layouts=(jaxcc.Local, jaxcc.Local))(two_sums)
    aval = jax.ShapeDtypeStruct(shape, "float32")
    return typed.schedule(aval, aval)


def test_the_order_of_independent_steps_makes_no_second_program() -> None:
    s = two_sums_schedule()
    one, other = s.split("a").split("b"), s.split("b").split("a")
    assert digest(one.program) == digest(other.program) != digest(s.program)
    splits = [
        {step.arguments["name"] for step in one.steps}
        for one in candidates(s)
        if verbs(one) == ("split",)
    ]
    assert sorted(map(sorted, splits)) == [["a"], ["a", "b"], ["b"]]


def test_one_kernel_may_hold_two_sums() -> None:
    found = candidates(two_sums_schedule())
    fused = [one for one in found if any(op.body for op in one.program.ops)]
    both = [
        one
        for one in fused
        for op in one.program.ops
        if sum(part.kind == "reduce_scatter" for part in op.body) == 2
    ]
    assert both
    for one in both:
        one.schedule()


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_bound_keeps_the_way_to_the_end(limit: int) -> None:
    s = two_sums_schedule((8, 4, 12))
    found = candidates(s, limit=limit)
    assert len(found) == limit
    assert found[0].steps == ()
    if limit == 5:
        assert verbs(found[-1])[-1] in ("reorder", "fuse")
    assert len(candidates(s, depth=1)) < len(candidates(s))


def test_what_cannot_be_scattered_goes_to_a_root_or_is_fused_whole() -> None:
    def scaled(x: Any, w: Any) -> Any:
        most = jaxcc.name(jax.lax.pmax(x, "tp"), "most")
        return jaxcc.name(w * most, "out")

    typed = jaxcc.typed(mesh=mesh_of(4), in_layouts=(jaxcc.Local, Replicated))(scaled)
    aval = jax.ShapeDtypeStruct((8,), "float32")
    found = [one.schedule() for one in candidates(typed.schedule(aval, aval))]
    assert [[step.verb for step in one.steps] for one in found] == [
        [],
        ["split"],
        ["fuse"],
        ["split", "reorder"],
    ]
    assert [op.kind for op in found[-1].program.ops] == ["reduce", "mul", "broadcast"]
    indivisible = candidates(two_sums_schedule((7,)))
    policies = {
        step.arguments.get("policy")
        for one in indivisible
        for step in one.steps
        if step.verb == "split"
    }
    assert policies == {"reduce-broadcast"}


def test_sums_that_cannot_be_scattered_are_fused_whole() -> None:
    found = candidates(two_sums_schedule((7,)))
    fused = [op for one in found for op in one.program.ops if op.kind == "fused"]
    assert any(len([p for p in op.body if p.kind == "all_reduce"]) == 2 for op in fused)
    assert all(one.schedule().program.ops for one in found)


def test_what_can_be_scattered_does_not_go_to_a_root() -> None:
    for name in NAMES:
        found = candidates(schedule_of(name), slice=WORKLOADS[name].state)
        assert not any(op.kind == "broadcast" for one in found for op in one.program.ops)


def test_single_numbers_are_left_alone() -> None:
    assert [one.steps for one in candidates(two_sums_schedule(()))] == [()]


def test_goes_on_from_a_schedule_and_tells_how_far_it_is() -> None:
    heard: list[str] = []
    s = schedule_of("sgd").split("total")
    found = candidates(s, progress=heard.append)
    assert all(one.steps[:1] == s.steps for one in found)
    assert heard[-1] == f"{len(found)} programs"


def test_a_candidate_that_changes_the_result_is_refused() -> None:
    good = candidates(schedule_of("sgd"))[-1]
    step = jaxcc.schedule.Step("as_slice", {"name": "lr"})
    with pytest.raises(ScheduleError):
        Candidate(good.source, (*good.steps, step), good.program, "").schedule()
