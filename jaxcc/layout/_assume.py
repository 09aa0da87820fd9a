"""`jaxcc.unsafe_assume`: a claim about a value that the checker takes on trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax

from jaxcc import _compat
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._layouts import Layout, LayoutMap, Partial, Sliced, class_fixes

ASSUME = "jaxcc_assume"
"""The operation's name in traces."""

# JAX has types for some of its parameters only.
_tree: Any = jax.tree
_jnp: Any = jax.numpy


def unsafe_assume(
    x: Any, layout: Layout | LayoutMap, axis_name: str | Sequence[str] | None = None
) -> Any:
    """Tells the checker that `x` has this layout; returns `x`.

    What follows is checked as if this were so, and nothing holds the claim but
    `jaxcc.testing.assert_assumptions`, which runs the program. The gradient of `x` is not claimed
    anything of.

    Args:
      x: a per-rank array, or a pytree of arrays.
      layout: what the ranks' arrays are of what a group of one has here. An axis that is not named
        is Replicated.
      axis_name: the axis that a bare layout is over, or several, the major one first; not for a
        layout made by `jaxcc.on`.
    """
    claimed = _as_map(layout, axis_name)

    def assume(leaf: Any) -> Any:
        return _assume(leaf, claimed)

    return _tree.map(assume, x)


def _as_map(layout: Any, axis_name: Any) -> LayoutMap:
    if isinstance(layout, LayoutMap):
        if axis_name is None:
            return layout
        what = f"{layout!r} names its axes, and axis_name={axis_name!r} names others"
        raise LayoutError("LAYOUT_ARGUMENT", what, fixes=("leave out axis_name",))
    if axis_name is None:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"unsafe_assume needs the axis that {layout!r} is over",
            fixes=(f'write unsafe_assume(x, {layout!r}, "tp")', f"write on(tp={layout!r})"),
        )
    if layout in (Sliced, Partial):
        what = f"unsafe_assume is given the class {layout.__name__}, not a layout"
        raise LayoutError("LAYOUT_ARGUMENT", what, fixes=class_fixes(layout))
    if not isinstance(layout, Layout):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"unsafe_assume is given {layout!r}, not a layout",
            fixes=("Sliced(dim), Replicated, Local, Partial(), or jaxcc.on(axis=...)",),
        )
    axes = cast(Any, (axis_name,) if isinstance(axis_name, str) else axis_name)
    if not isinstance(axes, (tuple, list)) or not all(map(_is_name, cast(Any, axes))):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"unsafe_assume: axis_name={axis_name!r} is no axis name, nor several",
        )
    return LayoutMap(tuple((axis, layout) for axis in cast(Sequence[str], axes)))


def _is_name(axis: object) -> bool:
    return isinstance(axis, str)


def _assume(x: Any, layout: LayoutMap) -> Any:
    x = _jnp.asarray(x)
    claims: list[tuple[str, Layout]] = []
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            if not -x.ndim <= one.dim < x.ndim:
                raise LayoutError(
                    "LAYOUT_ARGUMENT",
                    f"unsafe_assume: an array of shape {x.shape} has no dimension {one.dim}",
                )
            one = Sliced(one.dim % x.ndim)
        claims.append((axis, one))
    return _assume_p.bind(x, layout=LayoutMap(tuple(claims)))


def _batched(params: dict[str, Any], at: int) -> dict[str, Any]:
    """The claim about an array that has one dimension more, at `at`, under `jax.vmap`."""
    layout: LayoutMap = params["layout"]
    moved = tuple(
        (axis, Sliced(one.dim + (one.dim >= at)) if isinstance(one, Sliced) else one)
        for axis, one in layout.items_
    )
    return {"layout": LayoutMap(moved)}


_assume_p: Any = _compat.identity_primitive(ASSUME, _batched)
