"""Between global arrays and the per-rank function: shard_map, placement, donation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from jaxcc import _compat
from jaxcc.layout import LayoutMap, Replicated, to_spec


def shard_mapped(
    local: Callable[..., Sequence[Any]],
    mesh: Any,
    in_layouts: Sequence[LayoutMap],
    in_ndims: Sequence[int],
    out_layouts: Sequence[LayoutMap],
    out_ndims: Sequence[int],
    *,
    check_vma: bool,
) -> Callable[..., Any]:
    """`local`, a function of per-rank leaves, as a function of global arrays.

    A Local or Partial leaf has one more leading dimension per such axis, sharded over it.
    """

    def per_rank(*leaves: Any) -> list[Any]:
        given = [
            x.reshape(x.shape[len(layout.stacked_axes()) :])
            for x, layout in zip(leaves, in_layouts, strict=True)
        ]
        results = local(*given)
        if check_vma:
            results = [
                _typed_as_equal(y, layout, mesh)
                for y, layout in zip(results, out_layouts, strict=True)
            ]
        return [
            jnp.reshape(y, (1,) * len(layout.stacked_axes()) + jnp.shape(y))
            for y, layout in zip(results, out_layouts, strict=True)
        ]

    return jax.shard_map(
        per_rank,
        mesh=mesh,
        in_specs=tuple(map(to_spec, in_layouts, in_ndims)),
        out_specs=list(map(to_spec, out_layouts, out_ndims)),
        check_vma=check_vma,
    )


def _typed_as_equal(y: Any, layout: LayoutMap, mesh: Any) -> Any:
    """Tells JAX that what is sliced among one rank is Replicated there, and that arrays without
    elements are equal.
    """
    varying = _compat.varying_axes(y)
    equal = {axis for axis in varying if layout[axis] == Replicated}
    if equal and y.size == 0:
        (y,) = _compat.unify_varying([jnp.empty(y.shape, y.dtype)], tuple(varying - equal))
        return y
    alone = tuple(axis for axis in equal if mesh.shape[axis] == 1)
    return jax.lax.all_gather(y, alone, to="invarying")[0] if alone else y


def sharding_of(layout: LayoutMap, ndim: int, mesh: Any) -> NamedSharding:
    """How a global array with `ndim` whole dimensions lies on the mesh."""
    return NamedSharding(mesh, to_spec(layout, ndim))


def place(x: Any, sharding: NamedSharding) -> Any:
    """The global array `x` with this sharding; nothing moves if it has it already."""
    if _compat.is_tracer(x):
        explicit = AxisType.Explicit in sharding.mesh.axis_types
        return jax.reshard(x, sharding) if explicit else x
    # device_put would find out too, but takes longer than a small program.
    return x if getattr(x, "sharding", None) == sharding else jax.device_put(x, sharding)
