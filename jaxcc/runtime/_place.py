"""Where a program has a rank: its mesh may order the devices of a group otherwise than the mesh
that a kernel was made for."""

from __future__ import annotations

import math

import jax
from jax import lax

from jaxcc.layout import BackendError
from jaxcc.runtime._groups import Groups


def place_of(groups: Groups, op: str) -> jax.Array:
    """The number of this rank's group times the ranks of one, plus its own: i32[].

    Raises:
      BackendError: BACKEND_AXIS or BACKEND_MESH if the axes of the groups are not bound here or
        have other sizes.
    """
    here = jax.sharding.get_abstract_mesh()
    missing = [axis for axis in groups.axes if axis not in here.manual_axes]
    if missing:
        raise BackendError(
            "BACKEND_AXIS",
            f"{op} runs over {', '.join(map(repr, missing))}, but the mesh axes here are: "
            f"{', '.join(map(repr, here.manual_axes)) or 'none'}",
            fixes=("call it inside jax.shard_map over the mesh that it was made for",),
        )
    ranks = math.prod(here.shape[axis] for axis in groups.axes)
    if ranks != groups.ranks:
        raise BackendError(
            "BACKEND_MESH",
            f"{op} was made for {groups.ranks} ranks along {', '.join(map(repr, groups.axes))}, "
            f"and there are {ranks} here",
            fixes=("make it for the mesh of the enclosing jax.shard_map: mesh=",),
        )
    others = [axis for axis in here.axis_names if axis in here.manual_axes]
    others = [axis for axis in others if axis not in groups.axes]
    return lax.axis_index((*others, *groups.axes))
