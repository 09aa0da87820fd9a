"""Families of steps that communicate, index, or reckon with the rank's number."""

from __future__ import annotations

from dataclasses import replace

from fuzzing.types import Type
from fuzzing.writer import Family, Writer

_OF = {"sum": "psum", "max": "pmax", "min": "pmin"}


def finish(w: Writer) -> bool:
    """A pending reduction finished, over one axis or all that are pending."""
    k = w.value(lambda t: bool(t.ops) and t.ops <= set(_OF), lambda t: t.dtype != "bool")
    if k is None:
        return False
    t = w.types[k]
    op = w.any_of(sorted(t.ops)) if t.ops else "sum"
    axes = [axis for axis, _ in t.partial] or list(w.sizes)
    if w.chance(50) or len(set(dict(t.partial).values())) > 1:
        axes = [w.any_of(axes)]
    if w.careless:
        axes = [w.any_of(list(w.sizes))]
    made = t
    for axis in axes:
        made = replace(made.pending(axis, None), local=tuple(a for a in made.local if a != axis))
    return w.add(made, "reducer", [k], _OF[op], tuple(axes))


def forget(w: Writer) -> bool:
    """Believes that a pending value is whole, without having finished it."""
    if not w.careless:
        return False
    k = w.value(possible=lambda t: bool(t.partial) and t.is_float)
    return k is not None and w.add(replace(w.types[k], partial=()), "unary", [k], "double")


def again(w: Writer) -> bool:
    """A reduction of what every rank holds alike: right for a maximum or a mean."""
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole and t.plain(axis), lambda t: t.is_float)
    if k is None:
        return False
    return w.add(w.types[k], "reducer", [k], w.any_of(("pmean", "pmax")), (axis,))


def gather(w: Writer) -> bool:
    """All blocks of a dimension, over its minor axis or all of its axes."""
    k = w.value(lambda t: t.whole and bool(t.sliced), lambda t: t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.any_of([d for _, d in t.sliced] or [0])
    axes = t.axes_of(dim) or (w.any_of(list(w.sizes)),)
    axes = axes if w.chance(40) else axes[-1:]
    made = t
    for axis in axes:
        made = made.unsliced(axis)
    if w.careless:
        dim = w.choices.below(t.ndim)
    if len(axes) == 1 and w.chance(30):
        return w.add(made, "gather_reshaped", [k], axes[0], dim)
    return w.add(made, "all_gather", [k], axes, dim)


def gather_sum(w: Writer) -> bool:
    """The pending sum of a value that is Local, by gathering it."""
    k = w.value(lambda t: bool(t.local) and t.whole, lambda t: t.is_float and bool(t.local))
    if k is None:
        return False
    axis = w.any_of(w.types[k].local)
    t = w.types[k]
    made = replace(t, local=tuple(a for a in t.local if a != axis))
    return t.ndim < 4 and w.add(made, "gather_sum", [k], axis)


def scatter(w: Writer) -> bool:
    """A pending sum finished, each rank with its own block."""
    k = w.value(lambda t: t.ops == {"sum"}, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    axis = w.any_of([a for a, _ in t.partial] or list(w.sizes))
    dim = w.choices.below(t.ndim)
    made = t.pending(axis, None)
    made = replace(made, sliced=(*(p for p in made.sliced if p[0] != axis), (axis, dim)))
    return w.add(made, "psum_scatter", [k], (axis,), dim)


def exchange(w: Writer) -> bool:
    """Another dimension sliced, by all_to_all."""
    k = w.value(lambda t: t.whole and bool(t.sliced), lambda t: t.ndim > 1 and bool(t.sliced))
    if k is None:
        return False
    t = w.types[k]
    axis, dim = w.any_of(t.sliced)
    if t.axes_of(dim)[-1] != axis:
        return False
    others = [d for d in range(t.ndim) if d != dim]
    to = w.any_of(others)
    made = t.unsliced(axis)
    made = replace(made, sliced=(*made.sliced, (axis, to)))
    split, concat = (to, dim) if not w.careless else (dim, to)
    return w.add(made, "all_to_all", [k], axis, split, concat)


def rotate(w: Writer) -> bool:
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole and t.plain(axis))
    return k is not None and w.add(w.types[k], "rotated", [k], axis, 1)


def there_and_back(w: Writer) -> bool:
    """Blocks that are passed on, and back again."""
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.dim_of(axis) is not None)
    return k is not None and w.add(w.types[k], "there_and_back", [k], axis, 1 + w.choices.below(2))


def rotated_sum(w: Writer) -> bool:
    """A sum over the dimension whose blocks were passed on."""
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.dim_of(axis) is not None)
    if k is None:
        return False
    t = w.types[k]
    dim = t.dim_of(axis)
    assert dim is not None
    made = t.without([dim])
    for other in t.axes_of(dim):
        made = made.pending(other, "sum")
    return w.add(made, "rotated_sum", [k], axis, dim)


def swap(w: Writer) -> bool:
    """Two ranks of all axes change places."""
    axes = tuple(w.sizes)
    k = w.value(lambda t: all(t.plain(axis) for axis in axes))
    return k is not None and w.add(w.types[k], "swapped", [k], axes)


def own_block(w: Writer) -> bool:
    """The rank's block of what every rank holds."""
    axis = w.any_of(list(w.sizes))
    k = w.value(
        lambda t: t.whole and t.plain(axis), lambda t: t.ndim > 0 and t.dim_of(axis) is None
    )
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None:
        return False
    made = replace(t, sliced=(*t.sliced, (axis, dim)))
    return w.add(made, "own_block", [k], (axis,), dim)


def miscount(w: Writer) -> bool:
    """A factor of the group's size that should not be there."""
    if not w.careless:
        return False
    axis = w.any_of(list(w.sizes))
    k = w.value(possible=lambda t: t.is_float and t.whole and t.dim_of(axis) is None)
    if k is None:
        return False
    kind = w.any_of(("reducer", "divide_size", "times_size"))
    return w.add(w.types[k], kind, [k], *(("psum",) if kind == "reducer" else ()), (axis,))


def add_share(w: Writer) -> bool:
    """What every rank holds, divided by the group's size, added to a pending sum."""
    axis = w.any_of(list(w.sizes))
    a = w.value(lambda t: dict(t.partial) == {axis: "sum"}, lambda t: t.is_float)
    if a is None:
        return False
    t = w.types[a]
    b = w.value(lambda o: o == t.pending(axis, None), lambda o: o == t.pending(axis, None))
    return b is not None and w.add(t, "add_share", [a, b], (axis,))


def share_of_bias(w: Writer) -> bool:
    """R divided by the group's size is a pending sum."""
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole and t.plain(axis), lambda t: t.is_float)
    return k is not None and w.add(w.types[k].pending(axis, "sum"), "divide_size", [k], (axis,))


def length(w: Writer) -> bool:
    """Divided by the length of a dimension that is whole."""
    k = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    dim = w.dim(w.types[k])
    return dim is not None and w.add(w.types[k], "divide_length", [k], dim)


# The rank's number --------------------------------------------------------------------------------


def positions(w: Writer) -> bool:
    """Whole positions along a dimension that an axis slices, or that is whole."""
    k = w.value(possible=lambda t: t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.choices.below(t.ndim)
    axes = t.axes_of(dim)
    made = Type((t.shape[dim],), "int32", tuple((axis, 0) for axis in axes))
    if not axes or (w.careless and w.chance(50)):
        return w.add(made, "iota_like", [k], dim)
    return w.add(made, "positions", [k], dim, axes)


def masked(w: Writer) -> bool:
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.choices.below(t.ndim)
    axes = () if w.careless and w.chance(60) else t.axes_of(dim)
    others = [d for d in range(t.ndim) if d != dim and not t.axes_of(d)]
    if others and w.chance(40):
        return w.add(t, "causal", [k], dim, axes, w.any_of(others))
    fill = w.any_of((0.0, 0.0, -1.0))
    return w.add(t, "masked", [k], dim, axes, 1 + w.choices.below(t.shape[dim]), fill)


def on_rank(w: Writer) -> bool:
    """What one rank alone adds to a pending sum."""
    axis = w.any_of(list(w.sizes))
    k = w.value(lambda t: t.whole and t.plain(axis), lambda t: t.is_float)
    if k is None:
        return False
    made = w.types[k].pending(axis, "sum")
    if w.careless:
        return w.add(made, "on_rank", [k], axis, w.choices.below(2))
    if w.chance(70):
        return w.add(made, "on_rank", [k], axis, 0)
    return w.add(made, "on_last", [k], axis)


def times_rank(w: Writer) -> bool:
    if not w.careless:
        return False
    k = w.value(possible=lambda t: t.is_float)
    return k is not None and w.add(w.types[k], "times_rank", [k], w.any_of(list(w.sizes)))


# Indexed access -----------------------------------------------------------------------------------


def _ids(w: Writer) -> int | None:
    return w.value(lambda t: t.whole and not t.local, lambda t: t.dtype == "int32" and t.ndim <= 2)


def take(w: Writer) -> bool:
    """Rows of a table whose rows are whole."""
    table, ids = w.value(lambda t: t.ops <= {"sum"}, lambda t: t.ndim > 0), _ids(w)
    if table is None or ids is None:
        return False
    t, i = w.types[table], w.types[ids]
    dim = w.dim(t)
    if dim is None or t.ndim + i.ndim - 1 > 4 or (t.partial and not w.careless):
        return False
    used = {axis for axis, d in t.sliced if d != dim} | set(dict(t.partial)) | set(t.local)
    if used & {axis for axis, _ in i.sliced} and not w.careless:
        return False
    places = {d: d if d < dim else d + i.ndim - 1 for d in range(t.ndim) if d != dim}
    shape = (*t.shape[:dim], *i.shape, *t.shape[dim + 1 :])
    made = t.moved(shape, places)
    seen = dict(made.sliced)
    extra = tuple((axis, dim + d) for axis, d in i.sliced if axis not in seen)
    made = replace(made, sliced=(*made.sliced, *extra))
    return w.add(made, "take", [table, ids], dim, w.any_of(("clip", "wrap", "fill")))


def take_along(w: Writer) -> bool:
    x = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if x is None:
        return False
    t = w.types[x]
    dim = w.dim(t)
    ids = w.value(
        lambda o: o == replace(t, dtype="int32"), lambda o: (o.shape, o.dtype) == (t.shape, "int32")
    )
    return dim is not None and ids is not None and w.add(t, "take_along", [x, ids], dim)


def scatter_add(w: Writer) -> bool:
    """The gradient of a lookup: over what slices the batch it is left pending."""
    ids = _ids(w)
    if ids is None:
        return False
    i = w.types[ids]
    lead = [(axis, d) for axis, d in i.sliced]
    x = w.value(
        lambda t: (
            t.shape[: i.ndim] == i.shape
            and [p for p in t.sliced if p[1] < i.ndim] == lead
            and t.ops <= {"sum"}
        ),
        lambda t: t.is_float and t.shape[: i.ndim] == i.shape,
    )
    if x is None:
        return False
    t, size = w.types[x], w.any_of((12, 6))
    rest = {d: d - i.ndim + 1 for d in range(i.ndim, t.ndim)}
    made = t.moved((size, *t.shape[i.ndim :]), rest)
    for axis, d in t.sliced:
        if d < i.ndim:
            made = made.pending(axis, "sum")
    return w.add(made, "scatter_add", [x, ids], size)


def one_hot(w: Writer) -> bool:
    ids = _ids(w)
    if ids is None:
        return False
    t = w.types[ids]
    return w.add(replace(t, shape=(*t.shape, 12), dtype="float32"), "one_hot", [ids], 12)


def embed(w: Writer) -> bool:
    """Rows of a table whose rows are sliced: a pending sum."""
    axis = w.any_of(list(w.sizes))
    table = w.value(
        lambda t: t.whole and t.axes_of(0) == (axis,), lambda t: t.is_float and 0 < t.ndim < 3
    )
    ids = w.value(lambda t: t.whole and t.plain(axis), lambda t: t.dtype == "int32" and t.ndim <= 2)
    if table is None or ids is None:
        return False
    t, i = w.types[table], w.types[ids]
    if {a for a, _ in t.sliced} & {a for a, _ in i.sliced} or t.local or i.local:
        return False
    rest = tuple((a, d - 1 + i.ndim) for a, d in t.sliced if d)
    made = Type((*i.shape, *t.shape[1:]), t.dtype, (*i.sliced, *rest), ((axis, "sum"),))
    return w.add(made, "embed", [table, ids], axis, w.any_of(("where", "clip")))


def dynamic(w: Writer) -> bool:
    """A block at a position that is a value."""
    k = w.value(lambda t: t.whole, lambda t: t.ndim > 0)
    start = w.value(
        lambda t: t.whole and not t.local, lambda t: t.dtype == "int32" and t.shape == ()
    )
    if k is None or start is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None or t.shape[dim] < 3:
        return False
    if w.chance(50):
        return w.add(t.resized(dim, 3), "dynamic_slice", [k, start], dim, 3)
    u = w.value(
        lambda o: o == t.resized(dim, o.shape[dim]) if o.ndim == t.ndim else False,
        lambda o: (
            o.ndim == t.ndim
            and o.dtype == t.dtype
            and all(a <= b for a, b in zip(o.shape, t.shape, strict=True))
        ),
    )
    return u is not None and w.add(t, "dynamic_update", [k, u, start], dim)


COLLECTIVES: list[tuple[Family, int]] = [
    (finish, 8), (forget, 4), (again, 1), (gather, 4), (gather_sum, 1), (scatter, 3), (exchange, 3),
    (rotate, 1), (swap, 1), (there_and_back, 1), (rotated_sum, 1), (own_block, 2), (miscount, 5),
    (add_share, 1), (share_of_bias, 1), (length, 1),
]  # fmt: skip
INDEXED: list[tuple[Family, int]] = [
    (positions, 2), (masked, 2), (on_rank, 1), (times_rank, 1), (take, 3), (take_along, 1),
    (scatter_add, 2), (one_hot, 1), (embed, 2), (dynamic, 2),
]  # fmt: skip
