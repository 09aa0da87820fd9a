"""Which devices run a collective together: those of this process, or of several on one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxcc.layout import BackendError
from jaxcc.runtime._channels import PROCESS_SHIFT, meet_processes

MAX_RANKS = 32


@dataclass(frozen=True)
class Groups:
    """The groups of ranks along one or more mesh axes.

    Attributes:
      devices: of every device its process times 2**20 plus its index there, one group after
        another, in rank order.
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

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The devices of each group."""
        return (
            self.devices[first : first + self.ranks]
            for first in range(0, len(self.devices), self.ranks)
        )


def groups_of(mesh: Mesh, axis_name: str | Sequence[str]) -> Groups:
    """The groups along `axis_name`; the first of several axes is the major one.

    Args:
      mesh: a mesh of devices, not an AbstractMesh.
      axis_name: one or more of the mesh's axes.

    Raises:
      BackendError: BACKEND_NOT_LOCAL if a device is not a CPU device, or of a process that cannot
        share memory with this one, BACKEND_DISAGREE if that has another jaxcc or tuning table,
        BACKEND_TIMEOUT if it does not come to trace, BACKEND_AXIS if the mesh has no such axis,
        BACKEND_RANKS if a group is larger than the host backend takes.
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
    for device in mesh.devices.flat:
        if device.platform != "cpu":
            raise BackendError(
                "BACKEND_NOT_LOCAL",
                f"the host backend runs on CPU devices, and {device} is not one",
                fixes=("use backend='xla'",),
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
    named = _names()
    groups = Groups(tuple(named[device] for device in ordered), ranks, names)
    here = jax.process_index()
    for group in groups:
        processes = {member >> PROCESS_SHIFT for member in group}
        if here in processes and len(processes) > 1:
            meet_processes(processes)
    return groups


def _names() -> dict[Any, int]:
    """How `Groups` names each CPU device. Of another process's devices JAX does not tell the index,
    but their ids are in its order.
    """
    names: dict[Any, int] = {}
    count: Counter[int] = Counter()
    for device in sorted(jax.devices("cpu"), key=lambda device: device.id):
        process = device.process_index
        names[device] = (process << PROCESS_SHIFT) + count[process]
        count[process] += 1
    return names
