"""Random programs with random legal steps: every accepted schedule computes the same."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError
from jaxcc.schedule.verbs._find import find

SHAPE = (4, 4, 8)
POINTWISE: tuple[Callable[..., Any], ...] = (
    jnp.tanh,
    jnp.abs,
    lambda x: x * 0.5 + 1,
    lambda x: jnp.where(x > 0, x, 0.1 * x),
    lambda x: lax.clamp(-1.0, x, 1.0),
)
PAIRS: tuple[Callable[..., Any], ...] = (jnp.add, jnp.multiply, jnp.maximum, jnp.subtract)
REDUCTIONS: tuple[Callable[..., Any], ...] = (jnp.sum, jnp.max, jnp.min, jnp.mean)


@dataclass(frozen=True)
class Line:
    """One line of a program: makes a value of the values that its numbers name."""

    of: tuple[int, ...]
    make: Callable[..., Any]


def line(rng: Random, known: int) -> Line:
    """A random line that reads values numbered below `known`; all have the shape SHAPE."""
    a, b = rng.randrange(known), rng.randrange(known)
    kind = rng.choice(["unary", "pair", "pair", "norm", "norm", "turn", "flat"])
    if kind == "unary":
        return Line((a,), rng.choice(POINTWISE))
    if kind == "pair":
        return Line((a, b), rng.choice(PAIRS))
    reduce = rng.choice(REDUCTIONS)
    if kind == "norm":
        axis = rng.choice([0, 1, 2, (0, 1), (1, 2), None])
        scale = rng.choice(PAIRS)
        return Line((a, b), lambda x, y: scale(x, 0.25 * reduce(y, axis=axis, keepdims=True)))
    if kind == "turn":
        # Two equal dimensions change places, and back in what reads it.
        return Line((a, b), lambda x, y: x + jnp.transpose(jnp.transpose(y, (1, 0, 2)), (1, 0, 2)))
    return Line((a,), lambda x: x - 0.1 * reduce(x.reshape(-1, 8), axis=0))


def program(rng: Random, lines: int) -> Callable[..., Any]:
    """A function of two Local and two Replicated arrays; line i is labelled `v{i}`."""
    made = [line(rng, 4 + i) for i in range(lines)]
    kept = rng.randrange(lines)

    def f(y: Any, z: Any, w: Any, bias: Any) -> Any:
        values = [jaxcc.name(lax.psum(x, "tp"), name) for x, name in ((y, "s"), (z, "t"))]
        values += [w, jnp.broadcast_to(bias, SHAPE)]
        for i, one in enumerate(made):
            value = one.make(*(values[of] for of in one.of))
            values.append(jaxcc.name(value, f"v{i}"))
        return values[-1], values[4 + kept]

    return f


def stepped(rng: Random, s: Schedule, lines: int) -> Schedule:
    """The schedule with random steps, those that are refused left out."""
    for name in ("s", "t"):
        s = tried(s, lambda s, name=name: s.split(name, dim=rng.randrange(3)))
    for _ in range(5):
        gathers = [op.name for op in s.program.ops if op.kind == "all_gather"]
        labels = [op.name for op in s.program.ops if op.name in {f"v{i}" for i in range(lines)}]
        if not gathers:
            break
        gather = rng.choice(gathers)
        behind = s.program.reached_from(find(s.program, gather, "test").outputs)
        if reached := [name for name in labels if name in behind]:
            after = rng.choice(reached)
            s = tried(s, lambda s, g=gather, a=after: s.reorder(g, after=a))
    names = [op.name for op in s.program.ops]
    for count in range(3):
        first, last = sorted(rng.sample(range(len(names)), 2))
        given = (names[first], ..., names[last])
        s = tried(s, lambda s, given=given, count=count: s.fuse(*given, name=f"group_{count}"))
    return s


def tried(s: Schedule, step: Callable[[Schedule], Schedule]) -> Schedule:
    try:
        return step(s)
    except ScheduleError as error:
        assert error.code != "SCHEDULE_CHANGES_RESULT", str(error)
        return s


@pytest.mark.parametrize("seed", range(12))
def test_every_accepted_schedule_computes_the_same(seed: int) -> None:
    rng = Random(seed)
    n, lines = (2, 4)[seed % 2], 7
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Local, Replicated, Replicated))(
        program(rng, lines)
    )
    shapes = (SHAPE, SHAPE, SHAPE, (8,))
    s = typed.schedule(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    s = stepped(rng, s, lines)
    numbers = np.random.default_rng(seed)
    given = [
        numbers.normal(size=(n, *SHAPE) if i < 2 else shape).astype(np.float32) / 2
        for i, shape in enumerate(shapes)
    ]
    expected = typed.reference(*given)
    assert s.steps
    for backend in ("xla", "auto"):
        for got, one in zip(s.compile(backend)(*given), expected, strict=True):
            close(got, one, tolerance=1e-4)
