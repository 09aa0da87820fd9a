"""Layouts of real arrays: `put` places one for a layout, `layout_of` reads its layout back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from jaxcc import _compat
from jaxcc.layout import (
    BackendError,
    LayoutError,
    LayoutMap,
    Replicated,
    Sliced,
    array_type,
    flatten_layouts,
    per_rank_shape,
)
from jaxcc.schedule import sharding_of


def put(x: Any, layout: Any, mesh: Any) -> Any:
    """A global array that lies on the devices of `mesh` as `layout` says, ready for a typed
    function.

    For a Local or Partial layout `x` has one leading dimension of the group's size per such axis,
    the ranks' values stacked: only the caller knows them.

    Args:
      x: an array, or a pytree of arrays.
      layout: a layout, or a pytree prefix of layouts.
      mesh: a `jax.sharding.Mesh`.

    Raises:
      LayoutError: `x` cannot have this layout on this mesh.
    """
    if isinstance(mesh, AbstractMesh):
        raise BackendError(
            "BACKEND_NO_DEVICES",
            "put was given an AbstractMesh, which has no devices to hold the array",
            fixes=("make the mesh with jax.make_mesh",),
        )
    if not isinstance(mesh, Mesh):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"put: mesh is {mesh!r}, not a jax.sharding.Mesh",
            fixes=('mesh = jax.make_mesh((2,), ("tp",))',),
        )
    paths, tree = jax.tree.flatten_with_path(x)
    names = ["the array" + jax.tree_util.keystr(path) for path, _ in paths]
    layouts = flatten_layouts(layout, x, tuple(mesh.shape), "layout")
    placed = [
        _placed(leaf, one, mesh, name)
        for (_, leaf), one, name in zip(paths, layouts, names, strict=True)
    ]
    return jax.tree.unflatten(tree, placed)


def _placed(x: Any, layout: LayoutMap, mesh: Mesh, name: str) -> Any:
    whole = unstacked(type_of_argument(x, lambda: name), layout, dict(mesh.shape), name)
    per_rank_shape(whole.shape, layout, mesh.shape, name)
    sharding = sharding_of(layout, whole.ndim, mesh)
    if _compat.is_tracer(x) and AxisType.Explicit not in mesh.axis_types:
        return jax.lax.with_sharding_constraint(x, sharding)
    return jax.device_put(x, sharding)


def type_of_argument(
    x: Any, name: Callable[[], str], fixes: tuple[str, ...] = ()
) -> jax.ShapeDtypeStruct:
    """The type of an array, or of what JAX makes one of; messages call it `name()`.

    Raises:
      LayoutError: it is no array.
    """
    try:
        return array_type(x)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        overflow = f": {error}" if isinstance(error, OverflowError) else ""
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name()} is {_shown(x)}, not an array or a number that JAX takes{overflow}",
            fixes=fixes,
        ) from None


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 60 else f"of type {type(x).__qualname__}"


def unstacked(
    x: jax.ShapeDtypeStruct, layout: LayoutMap, sizes: dict[str, int], name: str
) -> jax.ShapeDtypeStruct:
    """The whole type of a global array, less the leading dimension per Local or Partial axis.

    Raises:
      LayoutError: it has no such dimensions.
    """
    stacked = tuple(sizes[axis] for axis in layout.stacked_axes())
    if x.shape[: len(stacked)] != stacked:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name} is {layout.describe()}, so its global array starts with dimensions "
            f"{stacked}, one entry per rank; its shape is {x.shape}",
            fixes=("stack the ranks' values along a new first dimension",),
        )
    return jax.ShapeDtypeStruct(x.shape[len(stacked) :], x.dtype, weak_type=x.weak_type)


def layout_of(array: Any) -> LayoutMap:
    """The layout that an array's sharding states, over every axis of its mesh.

    A sharding knows Sliced and Replicated only. The leading dimension that holds the ranks' values
    of a Local or Partial array cannot be told from any other: it is `Sliced(0)` here.

    Raises:
      LayoutError: it is no jax.Array, is on no mesh, or its sharding is one that no layout says.
    """
    if not isinstance(array, jax.Array):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"layout_of takes one jax.Array, not {_shown(array)}",
            fixes=(
                "jax.tree.map(jaxcc.layout_of, tree) for each array of a pytree",
                "jaxcc.put(x, layout, mesh) gives an array a layout",
            ),
        )
    traced = _compat.is_tracer(array)
    sharding = jax.typeof(array).sharding if traced else array.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        raise _unsaid(f"the array lies on no mesh: its sharding is {sharding}")
    if traced and set(sharding.mesh.axis_types) != {AxisType.Explicit}:
        raise _unsaid("the array is being traced, and XLA will choose its sharding")
    if sharding.spec.unreduced or sharding.spec.reduced:
        raise _unsaid(f"no layout says what {sharding.spec} does")
    return _layout_of_spec(tuple(sharding.spec), tuple(sharding.mesh.shape))


def _layout_of_spec(spec: Sequence[Any], axes: Sequence[str]) -> LayoutMap:
    sliced = {
        axis: Sliced(dim)
        for dim, entry in enumerate(spec)
        for axis in (entry if isinstance(entry, tuple) else (entry,))
        if axis is not None
    }
    rest = {axis: Replicated for axis in axes if axis not in sliced}
    return LayoutMap((*sliced.items(), *rest.items()))


def _unsaid(what: str) -> LayoutError:
    return LayoutError("LAYOUT_ARGUMENT", what, fixes=("place it with jaxcc.put(x, layout, mesh)",))
