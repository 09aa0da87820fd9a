"""Runs a checked function on a group of one: the oracle of the promise."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxcc import _compat
from jaxcc.layout import LayoutError, LayoutMap, Local, Partial, join, on_host, run_on_ranks
from jaxcc.program import run as run_program
from jaxcc.schedule import Source, place, shard_mapped, sharding_of

_REDUCE = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}


def run(source: Source, args: tuple[Any, ...]) -> Any:
    """The result for global arrays `args`, computed on one device and laid out as the function's
    own result.

    What a group of one cannot hold, `Local` inputs and results that differ between ranks, is
    computed for every rank, on the one device.

    Raises:
      LayoutError: LAYOUT_ARGUMENT if it is traced under the mesh of several devices.
    """
    device = np.asarray(source.mesh.devices).flat[0]
    alone = Mesh(
        np.asarray(device).reshape((1,) * len(source.sizes)),
        tuple(source.sizes),
        axis_types=(AxisType.Auto,) * len(source.sizes),
    )
    traced = any(map(_compat.is_tracer, jax.tree.leaves(args)))
    if traced and jax.sharding.get_abstract_mesh().size > 1:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            "reference is traced while a mesh of several devices is set",
            because="it runs on one device, and JAX has one mesh in a trace",
            fixes=(
                "call it outside of jax.jit, jax.grad and the like",
                "trace it outside of jax.set_mesh",
            ),
        )
    leaves = [x if traced else jax.device_put(on_host(x), device) for x in jax.tree.leaves(args)]
    local = any(layout.axes_with(type(Local)) for layout in source.in_layouts)
    local |= any(layout.stacked_axes() for layout in source.out_layouts)
    # The user may have set the mesh of many devices.
    with contextlib.nullcontext() if traced else jax.set_mesh(alone):
        outs = _all_ranks(source, leaves) if local else _group_of_one(source, leaves, alone)
    # Where the function itself puts them, so that the two can be compared.
    placed = [
        y
        if _compat.is_tracer(y)
        else place(on_host(y), sharding_of(layout, _own_ndim(y, layout), source.mesh))
        for y, layout in zip(outs, source.out_layouts, strict=True)
    ]
    return jax.tree.unflatten(source.program(source.whole).out_tree, placed)


def _own_ndim(y: Any, layout: LayoutMap) -> int:
    return np.ndim(y) - len(layout.stacked_axes())


def _group_of_one(source: Source, leaves: list[Any], alone: Mesh) -> list[Any]:
    program = source.program(source.whole, mesh=alone.abstract_mesh)
    whole = []
    for x, layout in zip(leaves, source.in_layouts, strict=True):
        for axis in layout.stacked_axes():
            one = layout[axis]
            assert isinstance(one, Partial)
            x = _REDUCE[one.op](x, axis=0)
        whole.append(jnp.reshape(x, (1,) * len(layout.stacked_axes()) + x.shape))
    mapped = shard_mapped(
        lambda *given: run_program(program, given, check_vma=source.check_vma),
        alone,
        source.in_layouts,
        [len(x.shape) for x in source.leaves()],
        source.out_layouts,
        [len(t.shape) for t in program.out_types()],
        check_vma=source.check_vma,
    )
    return jax.jit(mapped)(*whole)


def _all_ranks(source: Source, leaves: list[Any]) -> list[Any]:
    given = jax.tree.unflatten(jax.tree.structure(source.avals), leaves)
    outs = run_on_ranks(
        source.f, given, source.in_layouts, source.sizes, check_vma=source.check_vma
    )
    return [
        join(y, layout, source.sizes) for y, layout in zip(outs, source.out_layouts, strict=True)
    ]
