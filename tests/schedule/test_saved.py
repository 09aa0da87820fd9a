"""Schedules as JSON: applied again, at other group sizes, and refused where they do not fit."""

import functools
import json
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import avals, close, gelu64, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, Sliced
from jaxcc.program import Program
from jaxcc.schedule import Step
from jaxcc.schedule._arguments import checked
from jaxcc.schedule._step import REWRITES


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s){code}")


def fused(s: Schedule) -> Schedule:
    s = s.split("total").reorder("total.gather", after="out")
    return s.fuse("total.scatter", ..., "total.gather", name="fused")


@pytest.mark.parametrize("backend", ["xla", "host"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_saved_steps_apply_at_every_group_size(
    tail: Callable[..., Any], n: int, backend: str
) -> None:
    made, t = tail(2), tail(n)
    steps = fused(made.function.schedule(*avals(made.args)))
    other = t.function.schedule(*avals(t.args))
    for again in (other.apply(steps.to_json()), other.apply(steps.steps)):
        assert again.steps == steps.steps
        close(again.compile(backend)(*t.args), t.expected)


def test_golden_json(tail: Callable[..., Any], golden: Callable[[str, str], None]) -> None:
    t = tail(2)
    text = fused(t.function.schedule(*avals(t.args))).to_json()
    golden("tail_json", text.rstrip("\n"))
    again = t.function.schedule(*avals(t.args)).apply(text)
    assert again.to_json() == text
    assert again.text() == fused(t.function.schedule(*avals(t.args))).text()


def test_steps_apply_to_other_shapes(tail: Callable[..., Any]) -> None:
    steps = fused(tail(2).function.schedule(*avals(tail(2).args))).steps
    t = tail(4, b=8, s=3, h=5)
    close(t.function.schedule(*avals(t.args)).apply(steps).compile("host")(*t.args), t.expected)
    t = tail(4, b=6)
    with refused("SCHEDULE_INDIVISIBLE.*4 ranks do not divide dimension 0 of 'total'"):
        t.function.schedule(*avals(t.args)).apply(steps)


def layer(x: Any, w: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(x @ w, "tp"), "total")
    return jaxcc.name(jax.nn.gelu(total + b), "out")


LAYOUTS = (Sliced(1), Sliced(0), Replicated)
SHAPES = [(4, 8), (8, 6), (6,)]


def of(f: Any, shapes: Any = SHAPES, layouts: Any = LAYOUTS, axis: str = "tp") -> Schedule:
    typed = jaxcc.typed(mesh=mesh_of(2, axis), in_layouts=layouts)(f)
    return typed.schedule(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))


@functools.cache
def saved() -> str:
    return fused(of(layer)).to_json()


def test_lines_numbers_and_captured_arrays_may_change() -> None:
    def first(captured: Any, scale: float) -> Any:
        def f(x, w):
            total = jaxcc.name(lax.psum(x @ w, "tp"), "total")
            return jaxcc.name(total * scale + captured, "out")

        return f

    def second(captured: Any, scale: float) -> Any:
        def renamed(x, w):
            y = x @ w

            total = jaxcc.name(lax.psum(y, "tp"), "total")
            scaled = total * scale
            return jaxcc.name(scaled + captured, "out")

        return renamed

    rng = np.random.default_rng(0)
    one, other, x, w = (rng.normal(size=s).astype(np.float32) for s in (6, 6, (4, 8), (8, 6)))
    text = fused(of(first(one, 2.0), SHAPES[:2], LAYOUTS[:2])).to_json()
    again = of(second(other, 3.0), SHAPES[:2], LAYOUTS[:2]).apply(text)
    for backend in ("xla", "host"):
        close(again.compile(backend)(x, w), 3 * (x.astype(np.float64) @ w) + other)


def without_bias(x: Any, w: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(x @ w, "tp"), "total")
    return jaxcc.name(jax.nn.gelu(total), "out")


def without_label(x: Any, w: Any, b: Any) -> Any:
    return jaxcc.name(jax.nn.gelu(lax.psum(x @ w, "tp") + b), "out")


def transposed(x: Any, w: Any, b: Any) -> Any:
    return layer(x, w.T, b)


def other_input(x: Any, w: Any, bias: Any) -> Any:
    return layer(x, w, bias)


def two_results(x: Any, w: Any, b: Any) -> Any:
    out = layer(x, w, b)
    return out, out


def layer_dp(x: Any, w: Any, b: Any) -> Any:
    total = jaxcc.name(lax.psum(x @ w, "dp"), "total")
    return jaxcc.name(jax.nn.gelu(total + b), "out")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (lambda: of(layer, [(4, 8), (8, 12), (12,)]), r"input 'w' is f32\[8,12\].*not f32\[8,6\]"),
        (lambda: of(layer, [(4, 8), (8, 6), (1,)]), r"input 'b' is f32\[1\]"),
        (lambda: of(without_bias), "operation 'broadcast_in_dim' is missing"),
        (lambda: of(without_label), "operation 'total' is missing: all_reduce"),
        (lambda: of(other_input), "input 'b' is missing.*input 'bias' is new"),
        (lambda: of(two_results), "its results are out Replicated, out Replicated, not out"),
        (lambda: of(layer_dp, axis="dp"), "the mesh has axes dp, not tp"),
        (
            lambda: of(lambda x, w, b: layer(x * 2, w, b)),
            "for another program than <lambda> is now: operation 'dot_general' is",
        ),
    ],
)
def test_a_program_that_has_changed_is_refused(now: Any, said: str) -> None:
    with refused(f"SCHEDULE_OTHER_PROGRAM.*{said}"):
        now().apply(saved())


def test_parameters_of_operations_are_part_of_the_program() -> None:
    def along(axis: int) -> Any:
        def f(x):
            return jaxcc.name(lax.psum(x, "tp"), "total").sum(axis)

        return f

    text = of(along(0), [(4, 4)], (Local,)).split("total").to_json()
    of(along(0), [(4, 4)], (Local,)).apply(text)
    with refused("SCHEDULE_OTHER_PROGRAM.*operation 'reduce_sum'"):
        of(along(1), [(4, 4)], (Local,)).apply(text)


def test_bodies_of_loops_are_part_of_the_program() -> None:
    def looped(work: Any) -> Any:
        def f(x):
            total = jaxcc.name(lax.psum(x, "tp"), "total")
            return lax.fori_loop(0, 3, lambda _, t: work(t), total)

        return f

    text = of(looped(jnp.sin), [(4,)], (Local,)).split("total").to_json()
    of(looped(jnp.sin), [(4,)], (Local,)).apply(text)
    with refused("SCHEDULE_OTHER_PROGRAM"):
        of(looped(jnp.cos), [(4,)], (Local,)).apply(text)


def test_keys_can_be_inputs() -> None:
    def f(x, key):
        total = jaxcc.name(lax.psum(x, "tp"), "total")
        return total + jax.random.normal(key, total.shape)

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))(f)
    made = typed.schedule(jax.ShapeDtypeStruct((4,), np.float32), jax.random.key(0))
    s = made.split("total")
    assert made.apply(s.to_json()).steps == s.steps


def edited(**changes: Any) -> Any:
    return lambda: json.dumps(json.loads(saved()) | changes)


def with_step(verb: Any, **arguments: Any) -> Any:
    return edited(steps=[{"verb": verb, "arguments": arguments}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "FORMAT.*not JSON"),
        ("__import__('os').abort()", "FORMAT.*not JSON"),
        ("[" * 100_000, "FORMAT.*not JSON"),
        ("1" * 10_000, "FORMAT.*not JSON"),
        ("[]", "FORMAT.*the whole is"),
        ("{}", "FORMAT.*version is None"),
        (edited(version=2), "FORMAT.*version is 2, and this jaxcc reads version 1"),
        (edited(version=True), "FORMAT.*version is True"),
        (edited(mesh=["tp"]), "FORMAT.*mesh is"),
        (edited(inputs=None), "FORMAT.*inputs is None"),
        (edited(inputs={"x": 1}), "FORMAT.*inputs holds 1"),
        (edited(results=[None]), "FORMAT.*results holds None"),
        (edited(steps={}), "FORMAT.*steps is"),
        (edited(steps=["split"]), "FORMAT.*a step is 'split'"),
        (edited(steps=[{"verb": "split"}]), "FORMAT.*arguments of 'split' is None"),
        (with_step(None), "FORMAT.*verb of a step is None"),
        (with_step("__class__"), "VERB.*no verb '__class__'; there are as_slice"),
        (with_step("compile", backend="xla"), "VERB"),
        (with_step("split"), "ARGUMENT.*split lacks its argument 'name'"),
        (with_step("split", name="total", dim="0"), "ARGUMENT.*dim is '0', not int"),
        (with_step("split", name="total", dim=True), "ARGUMENT.*dim is True"),
        (with_step("split", name="total", dim=0.0), "ARGUMENT.*dim is 0.0"),
        (with_step("split", name="total", dim=10**30), "ARGUMENT.*no dimension 10"),
        (with_step("split", name="total", dim=-1), "ARGUMENT.*no dimension -1"),
        (with_step("split", name=["total"], dim=0), "ARGUMENT.*name is"),
        (with_step("split", name="total", dim=0, program={}), "ARGUMENT.*no argument 'program'"),
        (with_step("fuse", names="total", name="f"), "ARGUMENT.*names is 'total', not a list"),
        (with_step("fuse", names=[], name="f"), "NO_COLLECTIVE"),
        (with_step("fuse", names=[None], name="f"), "ARGUMENT.*a list of str"),
        (with_step("reorder", gather="total", after="out"), "WRONG_OPERATION"),
        (with_step("as_slice", name="__class__"), "NOT_FOUND"),
    ],
)
def test_texts_that_are_refused(text: Any, said: str) -> None:
    made = text if isinstance(text, str) else text()
    with refused(f"SCHEDULE_{said}"):
        of(layer).apply(made)


def test_steps_that_are_refused() -> None:
    s = of(layer)
    with refused("SCHEDULE_ARGUMENT.*'split' is not a step"):
        s.apply(["split"])  # pyright: ignore[reportArgumentType]
    with refused("SCHEDULE_VERB"):
        s.apply([Step("nothing", {})])
    with refused("SCHEDULE_ARGUMENT.*has 3 steps already"):
        fused(s).apply(fused(s).to_json())
    assert s.apply([]).steps == ()
    assert s.split("total").apply(fused(s).steps[1:]).steps == fused(s).steps


def example(hint: Any) -> Any:
    """A value of a type as JSON has it."""
    plain = {str: "a", int: 1, bool: True, type(None): None}
    if hint in plain:
        return plain[hint]
    first = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return first
    return example(first) if get_origin(hint) in (UnionType, Union) else [example(first)]


@pytest.mark.parametrize("verb", REWRITES)
def test_every_verb_has_arguments_that_can_be_saved(verb: str) -> None:
    hints = get_type_hints(REWRITES[verb])
    arguments = {k: example(hint) for k, hint in hints.items() if hint is not Program}
    step = checked(Step(verb, json.loads(json.dumps(arguments))))
    assert checked(step) == step and set(step.arguments) == set(arguments)


def test_untiled_collectives_are_refused() -> None:
    def f(x):
        return jaxcc.name(lax.all_gather(x, "tp"), "g").reshape(4, 3) + 1

    s = of(f, [(4, 3)], (Sliced(0),))
    with refused("SCHEDULE_WRONG_OPERATION.*'g' is not tiled"):
        s.apply([Step("reorder", {"gather": "g", "after": "add"})])
    with refused("SCHEDULE_READ_WHOLE"):
        s.apply([Step("as_slice", {"name": "g"})])


def test_the_saved_result_is_the_reference() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in SHAPES)
    run = of(layer).apply(saved()).compile("host")
    close(run(x, w, b), gelu64(x.astype(np.float64) @ w + b))
