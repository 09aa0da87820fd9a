"""Families of steps that reduce dimensions, or read them as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzing.steps import CUMULATIVE
from fuzzing.types import Type
from fuzzing.writer import Family, Writer


def _dims(w: Writer, t: Type) -> tuple[int, ...]:
    one = w.choices.below(t.ndim)
    return (one,) if w.chance(75) else tuple(range(t.ndim))


def _kept(t: Type, dims: Sequence[int], keep: bool) -> Type:
    if not keep:
        return t.without(dims)
    out = replace(t, sliced=tuple(pair for pair in t.sliced if pair[1] not in dims))
    for dim in dims:
        out = out.resized(dim, 1)
    return out


def reduction(w: Writer) -> bool:
    """A sum, maximum or minimum: over what an axis slices it is left pending."""
    name = w.any_of(("sum", "sum", "max", "min"))
    k = w.value(lambda t: t.ops <= {name}, lambda t: t.dtype != "bool" and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dims, keep = _dims(w, t), w.chance(30)
    made = _kept(t, dims, keep)
    for axis, dim in t.sliced:
        if dim in dims and not w.careless:
            made = made.pending(axis, name)
    return w.add(made, "reduce", [k], name, dims, keep)


def whole_reduction(w: Writer) -> bool:
    """A reduction of dimensions that every rank holds whole."""
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None:
        return False
    name = w.any_of(("mean", "var", "logsumexp", "prod", "std", "argmax", "argmin", "mean"))
    keep = w.chance(30) and name not in ("argmax", "argmin")
    made = _kept(t, (dim,), keep)
    if name in ("argmax", "argmin"):
        made = replace(made, dtype="int32")
    return w.add(made, "reduce", [k], name, (dim,), keep)


def logical_reduction(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.dtype == "bool" and t.ndim > 0)
    if k is None:
        return False
    dim = w.dim(w.types[k])
    if dim is None:
        return False
    return w.add(w.types[k].without([dim]), "reduce", [k], w.any_of(("any", "all")), (dim,), False)


def mean_over(w: Writer) -> bool:
    """The mean over a sliced dimension, as people write it."""
    k = w.value(lambda t: t.whole, lambda t: t.is_float and bool(t.sliced))
    if k is None:
        return False
    t = w.types[k]
    dim = w.any_of([d for _, d in t.sliced])
    axes = t.axes_of(dim)
    form = w.any_of(("pmean", "divided", "counted", "summed"))
    return w.add(t.without([dim]), "mean_over", [k], (dim,), axes, form)


def cumulative(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    return dim is not None and w.add(
        t, "cumulative", [k], w.any_of(sorted(CUMULATIVE)), dim, w.chance(30)
    )


def ordered(w: Writer) -> bool:
    """Sorting, flipping, softmax and normalization along a dimension held whole."""
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None:
        return False
    kind = w.any_of(("sort", "flip", "softmax", "normalize", "argsort", "softmax"))
    return w.add(replace(t, dtype="int32") if kind == "argsort" else t, kind, [k], dim)


def sort_pair(w: Writer) -> bool:
    a = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if a is None:
        return False
    t = w.types[a]
    b, dim = w.value(lambda o: o == t, lambda o: o.shape == t.shape), w.dim(t)
    return b is not None and dim is not None and w.add(w.types[b], "sort_pair", [a, b], dim)


def top_k(w: Writer) -> bool:
    k = w.value(
        lambda t: t.whole and not t.axes_of(t.ndim - 1), lambda t: t.is_float and t.ndim > 0
    )
    if k is None or w.types[k].shape[-1] < 6:
        return False
    which = w.choices.below(2)
    made = w.types[k].resized(w.types[k].ndim - 1, 3)
    return w.add(replace(made, dtype="int32") if which else made, "top_k", [k], 3, which)


def split_softmax(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.is_float and bool(t.sliced))
    if k is None:
        return False
    dim = w.any_of([d for _, d in w.types[k].sliced])
    return w.add(w.types[k], "split_softmax", [k], dim, w.types[k].axes_of(dim))


# Contraction --------------------------------------------------------------------------------------


def dot(w: Writer) -> bool:
    """A contraction; what both operands' contracted dimension has sliced leaves a pending sum."""
    a = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.is_float and t.ndim > 0)
    b = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.is_float and t.ndim > 0)
    if a is None or b is None:
        return False
    x, y = w.types[a], w.types[b]
    pairs = [
        (i, j)
        for i in range(x.ndim)
        for j in range(y.ndim)
        if x.shape[i] == y.shape[j] and (w.careless or x.axes_of(i) == y.axes_of(j))
    ]
    if not pairs or x.dtype != y.dtype:
        return False
    contract = w.any_of(pairs)
    batch = [p for p in pairs if p[0] != contract[0] and p[1] != contract[1]]
    batch = [w.any_of(batch)] if batch and x.ndim > 1 and y.ndim > 1 and w.chance(40) else []
    made = _contracted(x, y, contract, batch, careless=w.careless)
    if made is None:
        return False
    contracts = ((contract[0],), (contract[1],))
    batches = (tuple(p[0] for p in batch), tuple(p[1] for p in batch))
    return w.add(made, w.any_of(("dot", "bare_dot")), [a, b], contracts, batches)


def _contracted(
    x: Type, y: Type, contract: tuple[int, int], batch: Sequence[tuple[int, int]], *, careless: bool
) -> Type | None:
    """The result's type; None if the layouts do not fit."""
    shared = {p[0]: p[1] for p in (contract, *batch)}
    free_x = [d for d in range(x.ndim) if d not in shared]
    free_y = [d for d in range(y.ndim) if d not in shared.values()]
    order = [*(p[0] for p in batch), *free_x]
    at_x = {d: k for k, d in enumerate(order)}
    at_y = {d: len(order) + k for k, d in enumerate(free_y)}
    shape = (*(x.shape[d] for d in order), *(y.shape[d] for d in free_y))
    sliced = [(axis, at_x[d]) for axis, d in x.sliced if d in at_x]
    sliced += [(axis, at_y[d]) for axis, d in y.sliced if d in at_y]
    partial = {**dict(x.partial), **dict(y.partial)}
    partial |= {axis: "sum" for axis, d in x.sliced if d == contract[0]}
    if not careless:
        if len({axis for axis, _ in sliced}) != len(sliced):
            return None
        used = [axis for axis, _ in (*sliced, *x.partial, *y.partial)]
        used += [axis for axis, d in x.sliced if d == contract[0]]
        if len(set(used)) != len(used) or x.local or y.local:
            return None
    seen: dict[str, int] = {}
    for axis, d in sliced:
        if axis not in partial:
            seen.setdefault(axis, d)
    local = tuple(sorted({*x.local, *y.local}))
    return Type(shape, x.dtype, tuple(seen.items()), tuple(sorted(partial.items())), local)


REDUCTIONS: list[tuple[Family, int]] = [
    (reduction, 4), (whole_reduction, 3), (logical_reduction, 1), (cumulative, 2), (ordered, 2),
    (sort_pair, 1), (top_k, 1), (dot, 6), (mean_over, 2), (split_softmax, 1),
]  # fmt: skip
