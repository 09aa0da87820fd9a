"""Functions on CPU devices of one process, each a rank."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import quick
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P


def mesh_of(*sizes: int) -> Mesh:
    names = tuple("rs"[: len(sizes)])
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def run(f: Callable, *xs: Any, mesh: Mesh, check_vma: bool = True) -> Any:
    """`f` of each rank's part (dimension 0 is over ranks); every rank's results, stacked."""

    def per_rank(*parts: jax.Array) -> Any:
        results = f(*(part[0] for part in parts))
        return jax.tree.map(lambda y: jnp.asarray(y)[None], results)

    axes = P(mesh.axis_names)
    return quick.jit(
        jax.shard_map(per_rank, mesh=mesh, in_specs=axes, out_specs=axes, check_vma=check_vma)
    )(*xs)
