"""Which devices of this process run a collective together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcc.layout import BackendError

MAX_RANKS = 32


@dataclass(frozen=True)
class Groups:
    """The groups of ranks along one or more mesh axes.

    Attributes:
      devices: index in this process of every device, one group after another, in rank order.
      ranks: ranks in a group.
      axes: the mesh axes that a group runs along, the first the major one.
    """

    devices: tuple[int, ...]
    ranks: int
    axes: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.devices) // self.ranks


def groups_of(mesh: Mesh, axis_name: str | Sequence[str]) -> Groups:
    """The groups along `axis_name`; the first of several axes is the major one.

    Args:
      mesh: a mesh of devices, not an AbstractMesh.
      axis_name: one or more of the mesh's axes.

    Raises:
      BackendError: BACKEND_NOT_LOCAL if a device is not a CPU device of this process,
        BACKEND_AXIS if the mesh has no such axis, BACKEND_RANKS if a group is larger than the
        host backend takes.
    """
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not isinstance(mesh, Mesh):
        raise BackendError(
            "BACKEND_NOT_LOCAL",
            f"the host backend needs the mesh's devices, but {type(mesh).__name__} has none",
            fixes=("pass mesh=, a jax.sharding.Mesh of CPU devices",),
        )
    for name in names:
        if name not in mesh.axis_names or names.count(name) > 1:
            raise BackendError(
                "BACKEND_AXIS",
                f"{names} are not different axes of the mesh, which has {mesh.axis_names}",
            )
    process = jax.process_index()
    for device in mesh.devices.flat:
        if device.platform != "cpu" or device.process_index != process:
            raise BackendError(
                "BACKEND_NOT_LOCAL",
                f"the host backend runs on CPU devices of this process, and {device} is not one",
                fixes=("use backend='xla' or backend='mpi'",),
            )
    along = [mesh.axis_names.index(name) for name in names]
    across = [dim for dim in range(mesh.devices.ndim) if dim not in along]
    ranks = int(np.prod([mesh.devices.shape[dim] for dim in along]))
    if ranks > MAX_RANKS:
        raise BackendError(
            "BACKEND_RANKS",
            f"the host backend takes up to {MAX_RANKS} ranks in a group, not {ranks}",
        )
    ordered = mesh.devices.transpose(*across, *along).flat
    return Groups(tuple(int(device.local_hardware_id) for device in ordered), ranks, names)
