"""Families of steps with a body: loops, branches, calls and derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzing.families import POINTWISE
from fuzzing.families_moving import SHAPES
from fuzzing.families_parallel import COLLECTIVES
from fuzzing.families_reducing import REDUCTIONS
from fuzzing.types import Type
from fuzzing.writer import Family, Writer

Pool = Sequence[tuple[Family, int]]
ANY: Pool = [*POINTWISE, *REDUCTIONS, *SHAPES, *COLLECTIVES]


def _closed_over(w: Writer) -> list[int]:
    """Values that a body reads besides its own arguments."""
    return [k for k in (w.value() for _ in range(2)) if k is not None]


def _carry(w: Writer) -> int | None:
    return w.value(lambda t: t.whole and not t.local, lambda t: t.is_float)


def loop(w: Writer) -> bool:
    """A value carried through a fixed number of steps."""
    k = _carry(w)
    if k is None:
        return False
    t, others = w.types[k], _closed_over(w)
    body, made = w.body([t, *(w.types[o] for o in others)], t, ANY)
    if made != t:
        return False
    kind = w.any_of(("scan", "fori", "while"))
    extra = (w.any_of((0.0, 40.0)),) if kind == "while" else ()
    if extra and extra[0] and (t.sliced or t.partial) and not w.careless:
        extra = (0.0,)
    return w.add(t, kind, [k, *others], body, w.any_of((2, 3)), *extra)


def loop_over(w: Writer) -> bool:
    """A value carried along the rows of another."""
    k = _carry(w)
    rows = w.value(
        lambda t: t.whole and not t.axes_of(0) and not t.local, lambda t: t.is_float and t.ndim > 0
    )
    if k is None or rows is None or w.types[rows].shape[0] > 12:
        return False
    t, r, others = w.types[k], w.types[rows], _closed_over(w)
    body, made = w.body([t, r.without([0]), *(w.types[o] for o in others)], t, ANY)
    if made != t:
        return False
    give = w.any_of(("carry", "rows"))
    places = {d: d + 1 for d in range(t.ndim)}
    out = t if give == "carry" else t.moved((r.shape[0], *t.shape), places)
    return w.add(out, "scan_over", [k, rows, *others], body, give, w.chance(30))


def branch(w: Writer) -> bool:
    """One of two bodies, by a number that every rank holds."""
    p = w.value(
        lambda t: t.whole and not t.sliced and not t.local,
        lambda t: t.shape == () and t.dtype != "bool",
    )
    k = _carry(w)
    if p is None or k is None:
        return False
    t, others = w.types[k], _closed_over(w)
    types = [t, *(w.types[o] for o in others)]
    bodies = [w.body(types, t, ANY) for _ in range(2)]
    if any(made != t for _, made in bodies):
        return False
    kind = "switch" if w.types[p].dtype == "int32" and w.chance(50) else "cond"
    return w.add(t, kind, [p, k, *others], *(body for body, _ in bodies))


def call(w: Writer) -> bool:
    """A part of the program in a function that JAX calls."""
    k = w.value()
    if k is None:
        return False
    reads = [k, *_closed_over(w)]
    body, made = w.body([w.types[r] for r in reads], None, ANY)
    kind = w.any_of(("jit", "remat", "custom_vjp"))
    if kind == "custom_vjp" and not all(w.types[r].is_float for r in reads):
        kind = "jit"
    return w.add(made, kind, reads, body, *((1.0,) if kind == "custom_vjp" else ()))


def mapped(w: Writer) -> bool:
    """A body over the leading dimension of a value, whatever slices it."""
    k = w.value(lambda t: t.whole and not t.local, lambda t: t.is_float and 1 < t.ndim)
    if k is None:
        return False
    t, others = w.types[k], _closed_over(w)
    used = set(t.axes_of(0))
    if not w.careless:
        others = [o for o in others if all(w.types[o].plain(axis) for axis in used)]
    body, made = w.body(
        [t.without([0]), *(w.types[o] for o in others)], None, [*POINTWISE, *REDUCTIONS]
    )
    if used & {axis for axis, _ in made.sliced} or used & set(dict(made.partial)):
        return False
    places = {d: d + 1 for d in range(made.ndim)}
    out = made.moved((t.shape[0], *made.shape), places)
    lead = tuple((axis, 0) for axis in t.axes_of(0))
    return w.add(replace(out, sliced=(*lead, *out.sliced)), "vmap", [k, *others], body)


def gradient(w: Writer) -> bool:
    """The gradient of the sum of a pointwise function."""
    k = _carry(w)
    if k is None:
        return False
    t, others = w.types[k], _closed_over(w)
    if w.careless:
        body, made = w.body([t, *(w.types[o] for o in others)], None, ANY)
        out = w.chance(50)
        return made.is_float and w.add(t, "grad", [k, *others], body, out)
    others = [o for o in others if w.types[o] == t]
    types: list[Type] = [t, *(w.types[o] for o in others)]
    body, made = w.body(types, t, POINTWISE)
    return made == t and w.add(t, "grad", [k, *others], body, True)


def derivative(w: Writer) -> bool:
    """The derivative of a body along a direction."""
    k = _carry(w)
    if k is None:
        return False
    t = w.types[k]
    d, others = w.value(lambda o: o == t, lambda o: (o.shape, o.dtype) == (t.shape, t.dtype)), []
    if d is None:
        return False
    body, made = w.body([t, *others], t, POINTWISE)
    return made == t and w.add(t, "jvp", [k, d], body)


NESTED: list[tuple[Family, int]] = [
    (loop, 3), (loop_over, 3), (branch, 3), (call, 3), (mapped, 2), (gradient, 3), (derivative, 1),
]  # fmt: skip
