"""What one array is, over each axis of a mesh: `Replicated`, `Sliced`, `Partial` or `Local`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, final

import jax
from jax.sharding import PartitionSpec

from jaxcc.layout._dtypes import type_name
from jaxcc.layout._errors import LayoutError

# JAX has types for some of its parameters only.
_tree: Any = jax.tree
_tree_util: Any = jax.tree_util

ReduceOp = Literal["sum", "max", "min", "prod"]
REDUCE_OPS: tuple[ReduceOp, ...] = ("sum", "max", "min", "prod")


class Layout:
    """What an array is over one mesh axis of n ranks: one of the four classes below."""

    __slots__ = ()


@final
@dataclass(frozen=True)
class Sliced(Layout):
    """Rank r holds the r-th of n equal blocks along dimension `dim`."""

    __module__ = "jaxcc"

    dim: int

    def __post_init__(self) -> None:
        # bool is an int; Sliced(True) is a mistake, not dimension 1.
        if isinstance(cast(Any, self.dim), bool) or not isinstance(cast(Any, self.dim), int):
            raise LayoutError(
                "LAYOUT_ARGUMENT", f"Sliced takes a dimension number, not {self.dim!r}"
            )

    def __repr__(self) -> str:
        return f"Sliced({self.dim})"


@final
@dataclass(frozen=True)
class Partial(Layout):
    """The value is `op` over the ranks' values: what a product over a sliced contraction leaves."""

    __module__ = "jaxcc"

    op: ReduceOp = "sum"

    def __post_init__(self) -> None:
        if self.op not in REDUCE_OPS:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"Partial takes one of {', '.join(REDUCE_OPS)}, not {self.op!r}",
            )

    def __repr__(self) -> str:
        return f"Partial({self.op})"


@final
@dataclass(frozen=True)
class _Replicated(Layout):
    def __call__(self) -> _Replicated:
        """Itself, so that parentheses as in `Partial()` do no harm."""
        return self

    def __repr__(self) -> str:
        return "Replicated"


@final
@dataclass(frozen=True)
class _Local(Layout):
    def __call__(self) -> _Local:
        """Itself, so that parentheses as in `Partial()` do no harm."""
        return self

    def __repr__(self) -> str:
        return "Local"


Replicated = _Replicated()
"""Every rank holds the same value."""

Local = _Local()
"""Ranks hold unrelated values of one shape: a rank's own batch, gradient or key."""


@final
@dataclass(frozen=True, eq=False)
class LayoutMap(Mapping[str, Layout]):
    """A layout for each axis of a mesh; an axis that is not named is Replicated.

    Two axes that slice one dimension do so in the order written, the first one major. Maps are
    equal if they say the same of every array.
    """

    items_: tuple[tuple[str, Layout], ...]

    def __getitem__(self, axis: str) -> Layout:
        return dict(self.items_).get(axis, Replicated)

    def __contains__(self, axis: object) -> bool:
        return any(axis == name for name, _ in self.items_)

    def __iter__(self) -> Iterator[str]:
        return iter(axis for axis, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayoutMap) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash(self._meaning())

    def _meaning(self) -> frozenset[tuple[Any, ...]]:
        """The axes on each dimension, and those with a leading one; order counts only in these."""
        groups: dict[int | None, tuple[Any, ...]] = {}
        for axis, one in self.items_:
            if one != Replicated:
                dim = one.dim if isinstance(one, Sliced) else None
                groups[dim] = (*groups.get(dim, ()), (axis, one))
        return frozenset(groups.values())

    def __repr__(self) -> str:
        return "on(" + ", ".join(f"{axis}={layout!r}" for axis, layout in self.items_) + ")"

    def describe(self) -> str:
        """How messages and listings show it: `Sliced(0)@tp`, with several axes joined by a
        space."""
        shown = [f"{layout!r}@{axis}" for axis, layout in self.items_ if layout != Replicated]
        return " ".join(shown) or "Replicated"

    def axes_with(self, kind: type[Layout]) -> tuple[str, ...]:
        """The axes, in order, whose layout is a `kind`."""
        return tuple(axis for axis, layout in self.items_ if isinstance(layout, kind))

    def stacked_axes(self) -> tuple[str, ...]:
        """The axes over which a global array needs a leading dimension: Local and Partial ones."""
        return tuple(a for a, layout in self.items_ if isinstance(layout, (Partial, _Local)))


def on(**layouts: Layout) -> LayoutMap:
    """A layout per mesh axis, for example `on(dp=Sliced(0), tp=Partial())`."""
    for axis, layout in layouts.items():
        if not isinstance(cast(Any, layout), Layout):
            raise LayoutError("LAYOUT_ARGUMENT", f"on({axis}=...) takes a layout, not {layout!r}")
    return LayoutMap(tuple(layouts.items()))


def as_map(layout: Layout | LayoutMap, axes: Sequence[str]) -> LayoutMap:
    """The layout as a map over `axes`; a bare layout means the mesh's only axis."""
    if isinstance(layout, LayoutMap):
        unknown = [axis for axis in layout if axis not in axes]
        if unknown:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{layout!r} names the axis '{unknown[0]}', but the mesh has {', '.join(axes)}",
            )
        missing = tuple((axis, Replicated) for axis in axes if axis not in layout)
        return LayoutMap(layout.items_ + missing)
    if isinstance(cast(Any, layout), Layout):
        if layout == Replicated:
            return LayoutMap(tuple((axis, Replicated) for axis in axes))
        if len(axes) != 1:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"a bare {layout!r} needs a mesh with one axis, but this one has {', '.join(axes)}",
                fixes=("write " + " or ".join(f"on({axis}={layout!r})" for axis in axes),),
            )
        return LayoutMap(((axes[0], layout),))
    raise _no_layout(layout, "a layout", axes)


def _no_layout(given: Any, what: str, axes: Sequence[str]) -> LayoutError:
    """The error for something else in the place of a layout."""
    fixes = ("a layout is Replicated, Sliced(dim), Partial(op) or Local, or on(axis=layout, ...)",)
    if isinstance(given, type) and issubclass(given, Layout):
        fixes = class_fixes(given)
    elif isinstance(given, PartitionSpec):
        fixes = (f"write {_of_spec(given, axes)}",)
    elif given is None:
        fixes = ("write Replicated if every rank holds the same value", *fixes)
    return LayoutError("LAYOUT_ARGUMENT", f"{what} has to be a layout, not {given!r}", fixes=fixes)


def class_fixes(kind: type[Layout]) -> tuple[str, ...]:
    """What to write for the class of a layout that was given for the layout."""
    if kind is Sliced:
        return ("write Sliced(dim) with the number of the dimension, for example Sliced(0)",)
    return (f"write {kind.__name__.removeprefix('_')}()",)


def _of_spec(spec: PartitionSpec, axes: Sequence[str]) -> str:
    """The layout that says what a PartitionSpec does, as a user writes it."""
    entries = [
        (name, Sliced(dim))
        for dim, entry in enumerate(cast(Sequence[Any], spec))
        for name in (cast(Any, entry) if isinstance(entry, tuple) else (entry,))
        if isinstance(name, str)
    ]
    if not entries:
        return "Replicated"
    if len(axes) == 1 and len(entries) == 1:
        return repr(entries[0][1])
    return "on(" + ", ".join(f"{name}={layout!r}" for name, layout in entries) + ")"


_LONGEST = 300
"""Characters of a tree that a message shows."""

_NONE = object()
"""Stands for None in the place of a layout, which a pytree would drop."""


def flatten_layouts(
    layouts: Any, tree: Any, axes: Sequence[str], what: str, names: Sequence[str] = ()
) -> list[LayoutMap]:
    """A LayoutMap for each leaf of `tree` from `layouts`, a pytree prefix of it.

    Args:
      layouts: the layouts.
      tree: the values that they are for.
      axes: the mesh's.
      what: what messages call `layouts`.
      names: what messages call the members of `tree`, if it is a tuple of arguments.
    """

    def is_none(node: Any) -> bool:
        return node is None

    def marked(node: Any) -> Any:
        return _NONE if node is None else node

    try:
        full = _tree.broadcast(_tree.map(marked, layouts, is_leaf=is_none), tree)
    except ValueError:
        raise _wrong_structure(layouts, tree, what, names) from None
    out: list[LayoutMap] = []
    for path, leaf in _tree.flatten_with_path(full)[0]:
        if not isinstance(leaf, (Layout, LayoutMap)):
            place = _place(what, path, names)
            raise _no_layout(None if leaf is _NONE else leaf, place, axes)
        out.append(as_map(leaf, axes))
    return out


def _place(what: str, path: Sequence[Any], names: Sequence[str]) -> str:
    """What messages call the entry of `what` at a path of the values."""
    text: str = _tree_util.keystr(tuple(path[1:] if names else path))
    if names:
        return f"{what} for argument '{names[path[0].idx]}{text}'"
    return what + text


def _wrong_structure(layouts: Any, tree: Any, what: str, names: Sequence[str]) -> LayoutError:
    """The error for layouts that are no pytree prefix of the values, about the first member that
    does not fit."""
    bad, values = layouts, tree
    where = what
    if isinstance(tree, tuple):
        members = cast(tuple[Any, ...], tree)
        entries = cast(tuple[Any, ...], layouts) if isinstance(layouts, tuple) else None
        kind = type(cast(object, layouts)).__name__
        if entries is None or len(entries) != len(members):
            count = "" if entries is None else f" of {len(entries)}"
            shown = f" ({', '.join(names)})" if names else ""
            return LayoutError(
                "LAYOUT_ARGUMENT",
                f"{what} does not match the structure of the values: it is a "
                f"{kind}{count}, and they are a tuple of {len(members)}{shown}",
                fixes=("write a tuple with a layout for each, or one layout for all",),
            )
        for index, (layout, value) in enumerate(zip(entries, members, strict=True)):
            try:
                _tree.broadcast(layout, value)
            except ValueError:
                bad, values = layout, value
                where = _place(what, (_tree_util.SequenceKey(index),), names)
                break
    return LayoutError(
        "LAYOUT_ARGUMENT",
        f"{where} does not match the structure of the values: "
        f"it is {_structure(bad)}, and they are {_structure(values)}",
        fixes=("give one layout for the whole value, or one for each part of it",),
    )


class _Shown(str):
    """A leaf in the text of a tree."""

    def __repr__(self) -> str:
        return str(self)


def _structure(tree: Any) -> str:
    """A tree as it is written, with the types of arrays."""

    def shown(leaf: Any) -> str:
        typed = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        return _Shown(type_name(leaf.shape, leaf.dtype) if typed else repr(leaf))

    text = repr(_tree.map(shown, tree))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def to_spec(layout: LayoutMap, ndim: int) -> PartitionSpec:
    """The PartitionSpec of a global array with `ndim` whole dimensions.

    Local and Partial axes shard a leading dimension of size n each, before the array's own
    dimensions.
    """
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            dims[one.dim].append(axis)
    stacked = list(layout.stacked_axes())
    entries = [(axis,) for axis in stacked] + [tuple(d) if d else None for d in dims]
    return PartitionSpec(*entries)
