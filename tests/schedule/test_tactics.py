"""Tactics: sequences, attempts and repetitions of verbs."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Schedule, ScheduleError
from jaxcc.schedule import Tactic, attempt, repeat, sequence


def three(x: Any, y: Any, z: Any) -> Any:
    a = jaxcc.name(lax.psum(x, "tp"), "a")
    b = jaxcc.name(lax.psum(y, "tp"), "b")
    return a, b, lax.psum(z, "tp")


def made(n: int = 2) -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Local, Local))(three)
    return typed.schedule(*[jax.ShapeDtypeStruct((4, 3), np.float32)] * 3)


def split_first(s: Schedule) -> Schedule:
    """Splits whichever all-reduce is first; nothing to do if there is none."""
    found = [op.name for op in s.program.ops if op.kind == "all_reduce"]
    return s.split(found[0]) if found else s


def split_named(*names: str) -> Tactic:
    return sequence(*(lambda s, name=name: s.split(name) for name in names))


def verbs_of(s: Schedule) -> list[str]:
    return [step.arguments["name"] for step in s.steps]


def test_a_sequence_applies_each_in_order() -> None:
    assert verbs_of(split_named("b", "a")(made())) == ["b", "a"]
    s = made()
    assert sequence()(s) is s
    with pytest.raises(ScheduleError, match="SCHEDULE_NOT_FOUND"):
        split_named("a", "nothing")(s)


def test_an_attempt_does_all_or_nothing() -> None:
    s = made()
    assert attempt(split_named("a", "nothing"))(s) is s
    assert verbs_of(attempt(split_named("a"))(s)) == ["a"]
    assert verbs_of(sequence(attempt(split_named("nothing")), split_named("b"))(s)) == ["b"]


def test_an_attempt_raises_other_errors() -> None:
    def faulty(s: Schedule) -> Schedule:
        raise ZeroDivisionError

    for tactic in (attempt(faulty), repeat(faulty), sequence(faulty)):
        with pytest.raises(ZeroDivisionError):
            tactic(made())


def test_a_repetition_ends_where_nothing_changes_or_a_verb_refuses() -> None:
    assert verbs_of(repeat(split_first)(made())) == ["a", "b", "psum_2"]
    assert verbs_of(repeat(split_named("a"))(made())) == ["a"]
    s = made()
    assert repeat(split_named("nothing"))(s).steps == ()


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_repetition_is_bounded(limit: int) -> None:
    assert len(repeat(split_first, limit=limit)(made()).steps) == limit


@pytest.mark.parametrize("limit", [-1, 1.0, None, True])
def test_a_limit_is_a_count(limit: Any) -> None:
    with pytest.raises(ScheduleError, match="SCHEDULE_ARGUMENT.*limit is"):
        repeat(split_first, limit=limit)


def test_a_tactic_that_returns_no_schedule_is_named() -> None:
    def forgets(s: Schedule) -> Any:
        s.split("a")

    inner = sequence(forgets)
    for tactic in (inner, attempt(forgets), repeat(forgets), attempt(inner), repeat(inner)):
        with pytest.raises(ScheduleError, match="SCHEDULE_TACTIC.*forgets returned None"):
            tactic(made())


@pytest.mark.parametrize("n", [1, 2, 4])
def test_what_tactics_make_computes_the_same(n: int) -> None:
    rng = np.random.default_rng(n)
    args = [rng.normal(size=(n, 4, 3)).astype(np.float32) for _ in range(3)]
    tactic = repeat(sequence(split_first, attempt(lambda s: s.split("nothing"))))
    for got, x in zip(tactic(made(n)).compile("xla")(*args), args, strict=True):
        close(got, x.astype(np.float64).sum(0))
