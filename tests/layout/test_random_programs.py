"""Random programs: what the checker accepts computes the same on 1, 2, 3 and 4 ranks, and all that
it claims of a value on the way is true.

`tools/fuzz.py` runs as many more as one likes.
"""

from collections.abc import Mapping

import jax
import numpy as np
import pytest
from fuzzing import campaign
from fuzzing.choices import RandomChoices
from fuzzing.generate import recipe
from fuzzing.interpret import Interpreter, held_as
from fuzzing.recipe import Recipe, build, dumps, loads, show
from fuzzing.strategies import programs
from fuzzing.types import to_dtype
from fuzzing.verdict import judge, random_inputs
from hypothesis import HealthCheck, given, settings

from jaxcc.layout._emulate import on_ranks
from jaxcc.layout._flatten import flatten
from jaxcc.layout._layouts import as_map
from jaxcc.layout._parts import join
from jaxcc.layout._trace import Trace, trace

CHUNK = 100


@pytest.mark.parametrize("chunk", range(20))
def test_accepted_programs_are_rank_invariant(chunk: int) -> None:
    tally = campaign.run(0, chunk * CHUNK, CHUNK, all_sizes=True)
    print(f"accepted {tally.counts['accepted']} of {tally.programs}; {tally.reasons}")
    assert not tally.wrong, f"{tally.wrong[0].shown}\n{tally.wrong[0].why[0]}"
    # The test proves nothing if everything is refused, or nothing is claimed.
    assert tally.counts["accepted"] >= CHUNK // 5
    assert tally.counts["claims"] >= 10 * CHUNK
    assert tally.counts["unsupported"] <= CHUNK // 20


@pytest.mark.parametrize("chunk", range(6))
def test_right_programs_are_accepted(chunk: int) -> None:
    tally = campaign.run(1, chunk * CHUNK, CHUNK, right=True)
    assert not tally.wrong, f"{tally.wrong[0].shown}\n{tally.wrong[0].why[0]}"
    shown = [f"{failure.shown}\n{failure.why[0]}" for failure in tally.refused]
    assert len(shown) <= tally.programs // 100, "\n\n".join(shown)
    assert tally.programs >= CHUNK - 5


# What a Local value decides by its sum: how many turns a loop takes, and which branch is taken.
_DECIDED = {
    "while": """{"axes": ["tp"], "inputs": [[[12], "float32", [], [], ["tp"]], [[4], "float32", \
[], [], []]], "body": {"arity": 2, "steps": [["reducer", [0], ["psum", ["tp"]]], ["while", [2], \
[{"arity": 1, "steps": [["binary", [0, 0], ["add"]]], "outputs": [1]}, 4, 40.0]]], \
"outputs": [3]}, "outputs": [[[12], "float32", [], [], []]], "check_vma": false}""",
    "cond": """{"axes": ["tp"], "inputs": [[[12], "float32", [], [], ["tp"]], [[4], "float32", \
[], [], []]], "body": {"arity": 2, "steps": [["reducer", [0], ["psum", ["tp"]]], ["index", [2], \
[0, 0]], ["index", [1], [0, 0]], ["binary", [3, 4], ["sub"]], ["cond", [5, 1], [{"arity": 1, \
"steps": [["unary", [0], ["tanh"]]], "outputs": [1]}, {"arity": 1, "steps": [["unary", [0], \
["neg"]]], "outputs": [1]}]]], "outputs": [6]}, \
"outputs": [[[4], "float32", [], [], []]], "check_vma": false}""",
}


@pytest.mark.parametrize("control", _DECIDED)
def test_what_a_local_value_decides_is_claimed_of_the_ranks_alone(control: str) -> None:
    verdicts = [
        judge(loads(_DECIDED[control]), {"tp": 2}, seed=seed, all_sizes=True) for seed in range(8)
    ]
    assert {verdict.status for verdict in verdicts} == {"accepted"}
    assert not [problem for verdict in verdicts for problem in verdict.problems]


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_hypothesis_finds_no_wrong_program(drawn: tuple[Recipe, Mapping[str, int]]) -> None:
    program, sizes = drawn
    verdict = judge(program, sizes)
    assert not verdict.problems, f"{show(program)}\n{verdict.problems[0]}"


def _traced(number: int, *, check_vma: bool) -> tuple[Recipe, Mapping[str, int], Trace] | None:
    """A random program's trace on its mesh, if JAX can trace it."""
    program, sizes = recipe(RandomChoices(f"traced/{number}"), right=number % 2 == 0)
    avals = [jax.ShapeDtypeStruct(t.shape, to_dtype(t.dtype)) for t in program.inputs]
    layouts = [as_map(t.layout(), tuple(sizes)) for t in program.inputs]
    f = build(program, check_vma=check_vma)
    try:
        return program, sizes, trace(f, avals, layouts, sizes, check_vma=check_vma)
    except (TypeError, ValueError, IndexError):
        return None


def test_programs_have_many_operations() -> None:
    ops: set[str] = set()
    for number in range(160):
        found = _traced(number, check_vma=False)
        ops |= {step.op for step in flatten(found[2]).steps} if found else set()
    assert len(ops) >= 80
    assert ops >= {"psum", "pmax", "all_gather", "reduce_scatter", "all_to_all", "ppermute"}
    assert ops >= {"scan", "while", "cond", "gather", "scatter-add", "dot_general", "axis_index"}


@pytest.mark.parametrize("number", range(16))
def test_numpy_computes_what_jax_does(number: int) -> None:
    """The oracle of the other tests against JAX's own lowering of the same trace."""
    found = _traced(number, check_vma=True)
    if found is None:
        # JAX refuses the program; the chunks above count how rarely.
        return
    program, sizes, traced = found
    _, parts = random_inputs(program, sizes, np.random.default_rng(number), seeds=1)
    given = [x[0].astype(to_dtype(t.dtype)) for x, t in zip(parts, program.inputs, strict=True)]
    flat = flatten(traced)
    values, doubtful = Interpreter(sizes).run(flat, [x.astype(held_as(x.dtype)) for x in given])
    layouts = [as_map(t.layout(), tuple(sizes)) for t in program.inputs]
    arrays = [join(x, layout, sizes) for x, layout in zip(given, layouts, strict=True)]
    results, _ = on_ranks(traced, layouts)(arrays)
    # NumPy does not round to bfloat16 on the way.
    tolerance = 0.1 if "bfloat16" in dumps(program) else 2e-3
    for slot, result in zip(flat.outputs, results, strict=True):
        if slot in doubtful:
            continue
        expected = values[slot].astype(float)
        size = 1 + np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(
            np.asarray(result).astype(float), expected, tolerance, tolerance * size
        )


def test_a_recipe_survives_being_written_down() -> None:
    for number in range(50):
        program, _ = recipe(RandomChoices(f"written/{number}"))
        assert loads(dumps(program)) == program
