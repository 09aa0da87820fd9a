"""Families of steps that move elements, cut them out or put them together."""

from __future__ import annotations

from fuzzing.families import number
from fuzzing.writer import Family, Writer


def transpose(w: Writer) -> bool:
    k = w.value(possible=lambda t: t.ndim > 1)
    if k is None:
        return False
    t = w.types[k]
    order = list(range(t.ndim))
    rest = list(order)
    order = [rest.pop(w.choices.below(len(rest))) for _ in range(t.ndim)]
    made = t.moved([t.shape[d] for d in order], {d: k for k, d in enumerate(order)})
    return w.add(made, "transpose", [k], tuple(order))


def split_dim(w: Writer) -> bool:
    k = w.value(possible=lambda t: 0 < t.ndim < 4 and any(s > 3 for s in t.shape))
    if k is None:
        return False
    t = w.types[k]
    dim = w.choices.below(t.ndim)
    inner = w.any_of((2, 3))
    if t.shape[dim] % inner or t.shape[dim] == inner:
        return False
    shape = (*t.shape[:dim], t.shape[dim] // inner, inner, *t.shape[dim + 1 :])
    made = t.moved(shape, {d: d if d <= dim else d + 1 for d in range(t.ndim)})
    return w.add(made, "split_dim", [k], dim, inner)


def merge(w: Writer) -> bool:
    k = w.value(possible=lambda t: t.ndim > 1)
    if k is None:
        return False
    t = w.types[k]
    dim = w.choices.below(t.ndim - 1)
    if t.axes_of(dim + 1) and not w.careless:
        return False
    shape = (*t.shape[:dim], t.shape[dim] * t.shape[dim + 1], *t.shape[dim + 2 :])
    made = t.moved(shape, {d: d if d <= dim else d - 1 for d in range(t.ndim)})
    return w.add(made, "merge", [k], dim)


def ones(w: Writer) -> bool:
    """A dimension of size 1 more or less."""
    k = w.value(possible=lambda t: t.ndim < 4)
    if k is None:
        return False
    t = w.types[k]
    single = [d for d, size in enumerate(t.shape) if size == 1]
    if single:
        return w.add(t.without([single[0]]), "squeeze", [k], single[0])
    dim = w.choices.below(t.ndim + 1)
    shape = (*t.shape[:dim], 1, *t.shape[dim:])
    places = {d: d if d < dim else d + 1 for d in range(t.ndim)}
    return w.add(t.moved(shape, places), "expand", [k], dim)


def broadcast(w: Writer) -> bool:
    k = w.value(possible=lambda t: t.ndim < 3)
    if k is None:
        return False
    t = w.types[k]
    dim, size = w.choices.below(t.ndim + 1), w.any_of((2, 3, 12))
    shape = (*t.shape[:dim], size, *t.shape[dim:])
    places = {d: d if d < dim else d + 1 for d in range(t.ndim)}
    return w.add(t.moved(shape, places), "broadcast", [k], dim, size)


def cut(w: Writer) -> bool:
    """A slice, one index or one of several equal parts of a dimension held whole."""
    k = w.value(possible=lambda t: t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None or t.shape[dim] < 2:
        return False
    size = t.shape[dim]
    kind = w.choices.below(3)
    if kind == 0 and size % 2 == 0:
        return w.add(t.resized(dim, size // 2), "split", [k], dim, 2, w.choices.below(2))
    if kind == 1:
        return w.add(t.without([dim]), "index", [k], dim, w.any_of((0, 1, -1)))
    low, stride = w.any_of((0, 1)), w.any_of((1, 1, 2))
    high = size - w.choices.below(size // 2)
    return w.add(
        t.resized(dim, len(range(low, high, stride))), "slice", [k], dim, low, high, stride
    )


def join(w: Writer) -> bool:
    """Concatenates along a dimension held whole, or stacks."""
    a = w.value()
    if a is None:
        return False
    t = w.types[a]
    b = w.value(
        lambda o: o == t and o.ops <= {"sum"}, lambda o: (o.shape, o.dtype) == (t.shape, t.dtype)
    )
    if b is None or t.ops - {"sum"}:
        return False
    if w.chance(40) and t.ndim < 4:
        dim = w.choices.below(t.ndim + 1)
        places = {d: d if d < dim else d + 1 for d in range(t.ndim)}
        made = t.moved((*t.shape[:dim], 2, *t.shape[dim:]), places)
        return w.add(made, "stack", [a, b], dim)
    if not t.ndim:
        return False
    dim = w.dim(t)
    return dim is not None and w.add(t.resized(dim, 2 * t.shape[dim]), "concat", [a, b], dim)


def widen(w: Writer) -> bool:
    """Pads or tiles a dimension held whole."""
    k = w.value(lambda t: t.whole, lambda t: t.is_float and t.ndim > 0)
    if k is None:
        return False
    t = w.types[k]
    dim = w.dim(t)
    if dim is None:
        return False
    if w.chance(30):
        return w.add(t.resized(dim, 2 * t.shape[dim]), "tile", [k], dim, 2)
    low, high = w.choices.below(3), w.choices.below(3)
    made = t.resized(dim, t.shape[dim] + low + high)
    return bool(low + high) and w.add(made, "pad", [k], dim, low, high, number(w))


def triangle(w: Writer) -> bool:
    k = w.value(
        lambda t: t.whole and not t.axes_of(t.ndim - 1) and not t.axes_of(t.ndim - 2),
        lambda t: t.is_float and t.ndim > 1,
    )
    return k is not None and w.add(w.types[k], w.any_of(("tril", "eye_like")), [k])


SHAPES: list[tuple[Family, int]] = [
    (transpose, 2), (split_dim, 1), (merge, 1), (ones, 1), (broadcast, 1), (cut, 3), (join, 3),
    (widen, 2), (triangle, 1),
]  # fmt: skip
