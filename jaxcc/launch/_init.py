"""`jaxcc.init`: makes this process one rank of several, if something has started several."""

from __future__ import annotations

import importlib
import importlib.util
import math
import operator
import os
import socket
from dataclasses import replace

import jax

from jaxcc import _compat, _peers
from jaxcc._settings import timeout_s
from jaxcc.launch._clusters import Place, find_place, is_address
from jaxcc.launch._exit import finish_at_exit
from jaxcc.launch._meeting import LOOPBACK, Missed, meet
from jaxcc.layout import BackendError

_NAME_ONE = "set JAXCC_COORDINATOR=HOST:PORT, the same for all, with JAXCC_RANK and JAXCC_RANKS"


def init(
    coordinator: str | None = None, *, ranks: int | None = None, rank: int | None = None
) -> None:
    """Makes this process one rank of several: `jax.devices()` are then those of all of them.

    Without arguments it finds out who started this process: `jaxcc run`, which has done this
    already; mpirun of Open MPI or MPICH; srun, if its step has several tasks; or the user, by
    JAXCC_COORDINATOR, JAXCC_RANK and JAXCC_RANKS. Started by none of these, the process is alone
    and nothing is done, so one program serves all. A second call does nothing.

    Processes wait for one another up to JAXCC_TIMEOUT_S seconds (300). Under mpirun and srun the
    coordination service is rank 0's: when that dies, JAX ends the others.

    Args:
      coordinator: "host:port" at which rank 0 listens.
      ranks: how many processes there are.
      rank: which of them this one is.

    Raises:
      BackendError: BACKEND_STARTED if JAX has looked for devices already, BACKEND_COORDINATOR if
        ranks do not find one another, BACKEND_SETTING if variables contradict each other.
      TypeError: not all three arguments are given, or none.
      ValueError: they are not an address, an integer from 1 up, and one below that.
    """
    place = _given(coordinator, ranks, rank)
    if jax.distributed.is_initialized():
        return
    place = place or find_place(os.environ)
    if place is None or place.ranks == 1:
        return
    if _compat.backend_started():
        raise BackendError(
            "BACKEND_STARTED",
            f"{place.launcher} says that this is rank {place.rank} of {place.ranks}, but JAX has "
            "started with the devices of this process alone",
            fixes=(
                "call jaxcc.init() before the first line that asks for devices or runs "
                "something, such as jax.devices() or jnp.zeros(3)",
            ),
        )
    if place.coordinator is None:
        place = _ask_mpi(place)
    _join(place)
    _peers.announce(place.rank)
    finish_at_exit()


def _given(coordinator: str | None, ranks: int | None, rank: int | None) -> Place | None:
    if coordinator is None and ranks is None and rank is None:
        return None
    if coordinator is None or ranks is None or rank is None:
        raise TypeError("jaxcc.init takes coordinator=, ranks= and rank= together, or none of them")
    if not is_address(coordinator):
        raise ValueError(f"coordinator={coordinator!r} is not 'host:port'")
    try:
        number, count = operator.index(rank), operator.index(ranks)
    except TypeError:
        raise ValueError(f"rank={rank!r} and ranks={ranks!r} are not integers") from None
    if not 0 <= number < count:
        raise ValueError(f"rank={rank} is not one of {ranks} ranks, counted from 0")
    return Place("the caller", number, count, coordinator)


def _ask_mpi(place: Place) -> Place:
    """The place with an address that rank 0 of MPI's world tells the others."""
    if importlib.util.find_spec("mpi4py") is None:
        raise BackendError(
            "BACKEND_COORDINATOR",
            f"{place.launcher} does not say where rank 0 runs",
            fixes=("install mpi4py, and MPI is asked", _NAME_ONE),
        )
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    if (world.size, world.rank) != (place.ranks, place.rank):
        raise BackendError(
            "BACKEND_COORDINATOR",
            f"{place.launcher} says that this is rank {place.rank} of {place.ranks}, mpi4py that "
            f"it is {world.rank} of {world.size}",
            because="mpi4py uses another MPI library than the one whose launcher this is",
            fixes=("install mpi4py for the MPI that starts the program", _NAME_ONE),
        )
    address = None
    if place.rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"{socket.gethostname()}:{free.getsockname()[1]}"
    return replace(place, coordinator=world.bcast(address, root=0))


def _join(place: Place) -> None:
    assert place.coordinator is not None
    limit = timeout_s()
    try:
        meet(place.coordinator, place.ranks, place.rank, limit)
    except Missed as missed:
        raise BackendError(
            "BACKEND_COORDINATOR",
            f"rank {place.rank} of {place.ranks} did not meet the others at {place.coordinator}",
            because=str(missed),
            fixes=(
                f"start all ranks, within JAXCC_TIMEOUT_S, {limit:g} seconds",
                _NAME_ONE,
            ),
        ) from None
    jax.distributed.initialize(
        place.coordinator,
        place.ranks,
        place.rank,
        local_device_ids=None if place.local_rank is None else [place.local_rank],
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(limit),
        # By default it listens on all networks.
        coordinator_bind_address=(
            place.coordinator if place.coordinator.rpartition(":")[0] in LOOPBACK else None
        ),
    )
