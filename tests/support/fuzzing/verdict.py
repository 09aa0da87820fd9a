"""What the checker says of a random program, held against running it."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from fuzzing.call import Array, Unsupported
from fuzzing.claims import Claims
from fuzzing.interpret import Interpreter
from fuzzing.recipe import Recipe, build
from fuzzing.types import Type, divides, to_dtype
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, LayoutMap, Local, Partial, Replicated, Sliced, check
from jaxcc.layout import _checked as checked
from jaxcc.layout import _walk as walking
from jaxcc.layout._digits import whole_dim
from jaxcc.layout._flatten import Program, Slot
from jaxcc.layout._values import described

SEEDS = 3
_SEED = "<seed>"
_REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


@dataclass
class Walked:
    """One walk of the checker: both programs, and what it came to know of their values."""

    sizes: Mapping[str, int]
    n: Program
    one: Program
    pairs: Any

    @property
    def rough(self) -> bool:
        """Whether constants are rounded to less than f32, so that their ratios are too."""
        slots = (slot for step in self.n.steps for slot in step.results)
        return any(np.dtype(slot.dtype).kind == "V" for slot in slots)


@dataclass
class Verdict:
    """What came of one program.

    Attributes:
      status: `accepted`, `refused`, `untraceable` (it fits no checker: JAX refuses it) or `crash`.
      error: why it is not accepted.
      problems: results or claims that are false.
      mistaken: results of a refused program that are not what its writer believes.
      claims: how many claims were held against values.
      unsupported: the operation that the interpreter does not have, if that ended it.
    """

    status: str
    error: str = ""
    problems: list[str] = field(default_factory=list)
    mistaken: list[str] = field(default_factory=list)
    claims: int = 0
    unsupported: str = ""


@contextlib.contextmanager
def _recorded(traces: dict[Any, Any]) -> Iterator[list[Walked]]:
    """Keeps what the walks of `check` come to know, and the traces, which are made once."""
    found: list[Walked] = []
    finish: Any = walking._finish
    trace: Any = checked.trace

    def finish_too(n: Program, one: Program, applier: Any, *rest: Any) -> Any:
        # With a repair the program is another one, whose values nobody computes.
        if not applier.repairs._repairs:
            found.append(Walked(dict(applier.sizes), n, one, applier.pairs))
        return finish(n, one, applier, *rest)

    def trace_once(f: Any, avals: Any, layouts: Any, sizes: Any, **flags: Any) -> Any:
        key = (len(avals), *sizes.items(), *flags.items())
        if key not in traces:
            traces[key] = trace(f, avals, layouts, sizes, **flags)
        return traces[key]

    walking._finish, checked.trace = finish_too, trace_once
    try:
        yield found
    finally:
        walking._finish, checked.trace = finish, trace


def judge(
    recipe: Recipe,
    sizes: Mapping[str, int],
    *,
    seed: int = 0,
    declared: bool = False,
    all_sizes: bool = False,
) -> Verdict:
    """Checks a program on a mesh, runs it, and holds every claim and result against the run.

    Args:
      recipe: the program.
      sizes: of the mesh.
      seed: of the inputs.
      declared: whether its results are declared to have the layouts that its writer believes.
      all_sizes: whether an accepted program is checked and run on 2, 3 and 4 ranks too.
    """
    traces: dict[Any, Any] = {}
    seen: set[tuple[int, ...]] = set()
    verdict = _judge_on(recipe, sizes, seed, declared, traces, seen)
    if all_sizes and verdict.status == "accepted":
        for other in other_sizes(recipe, sizes):
            more = _judge_on(recipe, other, seed, declared, traces, seen)
            verdict.problems += more.problems
            verdict.claims += more.claims
    return verdict


def _judge_on(
    recipe: Recipe,
    sizes: Mapping[str, int],
    seed: int,
    declared: bool,
    traces: dict[Any, Any],
    seen: set[tuple[int, ...]],
) -> Verdict:
    layouts = tuple(t.layout() for t in recipe.inputs)
    avals = [jax.ShapeDtypeStruct(t.shape, to_dtype(t.dtype)) for t in recipe.inputs]
    outs = [t.layout() for t in recipe.outputs] if declared else None
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    report: Any = None
    with _recorded(traces) as walks:
        try:
            report = check(
                build(recipe), *avals, mesh=mesh, in_layouts=layouts, out_layouts=outs,
                check_vma=recipe.check_vma,
            )  # fmt: skip
            verdict = Verdict("accepted")
        except LayoutError as error:
            untraceable = error.code in ("LAYOUT_TRACE", "LAYOUT_INDIVISIBLE")
            verdict = Verdict("untraceable" if untraceable else "refused", _first_line(error))
        except Exception as error:  # Whatever is no LayoutError is a fault of the checker.
            verdict = Verdict("crash", f"{type(error).__name__}: {error}")
            verdict.problems.append("".join(traceback.format_exception(error)))
    try:
        for walked in walks:
            group = tuple(walked.sizes.values())
            if group in seen:
                continue
            seen.add(group)
            _hold(recipe, walked, report, verdict, np.random.default_rng(seed))
    except Unsupported as error:
        verdict.unsupported = str(error)
    return verdict


def _first_line(error: LayoutError) -> str:
    return f"{error.code}: " + str(error).splitlines()[0]


def _hold(
    recipe: Recipe, walked: Walked, report: Any, verdict: Verdict, rng: np.random.Generator
) -> None:
    """Runs both sides on the same random inputs and notes what is false."""
    seeds = SEEDS if report is not None else 1
    wholes, parts = random_inputs(recipe, walked.sizes, rng, seeds)
    ones = (1,) * len(walked.sizes)
    alone = [x.reshape(seeds, *ones, *x.shape[1:]) for x in wholes]
    # A predicate that differs between ranks is reported; of what it decides nothing is known.
    doubted = ("while", "cond") if report is None else ()
    at_n, doubtful = Interpreter({_SEED: seeds, **walked.sizes}, doubted).run(walked.n, parts)
    sizes_1 = {_SEED: seeds, **dict.fromkeys(walked.sizes, 1)}
    at_1, doubtful_1 = Interpreter(sizes_1).run(walked.one, alone)
    one = {slot: x.reshape(seeds, *x.shape[1 + len(ones) :]) for slot, x in at_1.items()}
    where = f"on {dict(walked.sizes)}"
    for line in _claims(walked, at_n, one, doubtful, doubtful_1, verdict):
        verdict.problems.append(f"claim {where}: {line}")
    if any(t.local for t in recipe.inputs):
        return
    believed = [t.layout() for t in recipe.outputs]
    layouts: Sequence[LayoutMap] = believed if report is None else report.out_layouts
    differing = verdict.mistaken if report is None else verdict.problems
    for k, (slot, whole, layout) in enumerate(
        zip(walked.n.outputs, walked.one.outputs, layouts, strict=True)
    ):
        if slot in doubtful or whole in doubtful_1 or any(v == Local for v in layout.values()):
            continue
        for got, expected in zip(at_n[slot], one[whole], strict=True):
            problem = unlike(got, expected, layout, walked.sizes)
            if problem:
                differing.append(f"RESULT {k} {where}: {problem}")


def random_inputs(
    recipe: Recipe, sizes: Mapping[str, int], rng: np.random.Generator, seeds: int
) -> tuple[list[Array], list[Array]]:
    """Whole arrays for each argument, and all ranks' parts; the leading dimension counts seeds."""
    wholes = [[_whole(t, rng) for t in recipe.inputs] for _ in range(seeds)]
    parts = [
        np.stack([split(one[k], t.layout(), sizes, rng) for one in wholes])
        for k, t in enumerate(recipe.inputs)
    ]
    return [np.stack(column) for column in zip(*wholes, strict=True)], parts


def _whole(t: Type, rng: np.random.Generator) -> Array:
    if t.dtype == "bool":
        return rng.integers(0, 2, t.shape).astype(bool)
    if t.dtype == "int32":
        return rng.integers(0, 12, t.shape).astype(np.int32)
    return rng.uniform(0.3, 2.0, t.shape) * rng.choice([-1.0, 1.0], t.shape)


def split(
    whole: Array, layout: LayoutMap, sizes: Mapping[str, int], rng: np.random.Generator
) -> Array:
    """Every rank's part, with a leading dimension for each axis."""
    axes = list(sizes)
    lead = len(axes)
    parts = whole.reshape((1,) * lead + whole.shape)
    for axis, one in layout.items():
        if isinstance(one, Partial):
            parts = _terms(parts, axes.index(axis), one.op, sizes[axis], rng)
    varied = [n for n in parts.shape[:lead]]
    parts = np.broadcast_to(parts, (*sizes.values(), *whole.shape))
    for axis, one in layout.items():
        at, n = axes.index(axis), sizes[axis]
        if isinstance(one, Sliced):
            blocks = np.stack(np.split(np.moveaxis(parts, at, 0), n, lead + one.dim))
            # blocks[b, r]: block b of what rank r has, of which r keeps its own.
            parts = np.moveaxis(np.stack([blocks[r, r] for r in range(n)]), 0, at)
        if one != Replicated:
            varied[at] = n
    if any(one == Local and sizes[axis] > 1 for axis, one in layout.items()):
        noise = np.broadcast_to(rng.uniform(0.5, 1.5, (*varied, *parts.shape[lead:])), parts.shape)
        own = parts * noise if parts.dtype.kind == "f" else parts * (noise > 1)
        parts = own.astype(parts.dtype)
    return parts


def _terms(parts: Array, at: int, op: str, n: int, rng: np.random.Generator) -> Array:
    """Terms along dimension `at`, where `parts` has size 1, that reduce to `parts`."""
    shape = (n, *parts.take(0, at).shape)
    integer = parts.dtype.kind in "iu"
    noise = rng.integers(-5, 6, shape) if integer else rng.uniform(-1.5, 1.5, shape)
    first = parts.take(0, at)
    if op == "sum":
        noise[-1] = first - noise[:-1].sum(0)
    else:
        owner = rng.integers(0, n, first.shape)
        other = first - np.abs(noise) if op == "max" else first + np.abs(noise)
        noise = np.where(np.arange(n).reshape(n, *[1] * first.ndim) == owner, first, other)
    return np.moveaxis(noise.astype(parts.dtype), 0, at)


def unlike(parts: Array, whole: Array, layout: LayoutMap, sizes: Mapping[str, int]) -> str:
    """How the ranks' results differ from the whole; every rank's copy is compared."""
    axes = list(sizes)
    for axis, one in layout.items():
        if isinstance(one, Partial):
            at = axes.index(axis)
            total = _REDUCE[one.op](parts, axis=at, keepdims=True)
            parts = np.broadcast_to(total, parts.shape)
    sliced = LayoutMap(tuple((a, one) for a, one in layout.items() if isinstance(one, Sliced)))
    if any(
        one not in (Replicated, Local) and not isinstance(one, (Sliced, Partial))
        for one in layout.values()
    ):
        return "an unknown layout"
    try:
        expected = split(whole, sliced, sizes, np.random.default_rng(0))
    except ValueError as error:
        return str(error)
    return _far(parts, expected)


def _far(got: Array, expected: Array) -> str:
    if got.shape != expected.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if got.dtype.kind == "f":
        size = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
        if np.allclose(got, expected, rtol=1e-4, atol=1e-5 * (1 + size), equal_nan=True):
            return ""
    elif np.array_equal(got, expected):
        return ""
    with np.errstate(invalid="ignore"):
        gap = np.abs(got.astype(float) - expected.astype(float)).max()
    return f"differs by {gap}"


# Claims -------------------------------------------------------------------------------------------


def _claims(
    walked: Walked,
    at_n: Mapping[Slot, Array],
    one: Mapping[Slot, Array],
    doubtful: set[Slot],
    doubtful_1: set[Slot],
    verdict: Verdict,
) -> Iterator[str]:
    """What the walk claims falsely of the values that it paired."""
    claims = Claims(walked.sizes, 2e-2 if walked.rough else 1e-4)
    bases: dict[Any, Slot] = {}
    for slot, whole in walked.pairs.whole.items():
        canonical = tuple(whole_dim(d, size) for d, size in enumerate(slot.shape))
        if whole.dims == canonical and slot in one:
            bases.setdefault(whole.base, slot)
    for slot, held in walked.pairs.held.items():
        relation = held.relation
        if relation is None or slot not in at_n or 0 in slot.shape or slot in doubtful:
            continue
        whole = bases.get(held.base)
        if whole is None or whole in doubtful_1 or 0 in whole.shape:
            continue
        root = bases.get(relation.tie.root) if relation.tie is not None else None
        verdict.claims += 1
        problem = claims.false(
            relation, at_n[slot], one[whole], None if root is None else one[root]
        )
        if problem:
            yield f"{described(held.origin)}: {relation}: {problem}"


def other_sizes(recipe: Recipe, sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Meshes of 1 to 4 ranks along each axis on which the program can run too."""
    found: list[dict[str, int]] = []
    for n in (2, 3, 4):
        candidate = {axis: (n if size > 1 else 1) for axis, size in sizes.items()}
        if math.prod(candidate.values()) <= 16 and candidate != dict(sizes):
            if all(divides(t, candidate) for t in recipe.inputs):
                found.append(candidate)
    return found
