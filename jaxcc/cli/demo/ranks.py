"""Meshes of the demo's ranks, and arrays on them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def group(size: int, axis: str) -> Mesh:
    """The first `size` CPU devices as one axis."""
    return jax.make_mesh((size,), (axis,), (AxisType.Auto,), devices=jax.devices("cpu")[:size])


def place(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    """NumPy arrays on the mesh, in buffers of their own, which a program may donate."""
    return jax.device_put(tree, NamedSharding(mesh, spec))


def largest_difference(result: Any, expected: Any) -> float:
    """The largest absolute difference in two pytrees, over every rank's copy of `result`."""

    def gap(got: jax.Array, want: Any) -> float:
        whole = np.asarray(want)
        return max(
            float(np.abs(np.asarray(shard.data, np.float64) - whole[shard.index]).max())
            for shard in got.addressable_shards
        )

    return max(jax.tree.leaves(jax.tree.map(gap, result, expected)))
