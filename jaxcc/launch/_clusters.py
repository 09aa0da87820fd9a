"""What the program that started this process says of its rank: mpirun, srun, or the user.

Each reader looks at its launcher's variables, and answers None where that did not start several
processes. Adding a launcher adds a reader.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from jaxcc.launch._job import LAUNCHER
from jaxcc.layout import BackendError

Environment = Mapping[str, str]

_LOOPBACK = "127.0.0.1"
# Ports that nobody registers; JAX takes the same.
_FIRST_PORT, _PORTS = 61440, 4096


@dataclass(frozen=True)
class Place:
    """This process among others.

    Attributes:
      launcher: who says so, for messages.
      rank: its number.
      ranks: how many there are.
      coordinator: address at which rank 0 listens; None if only MPI can tell.
      local_rank: its number among those of its machine, None if not said.
    """

    launcher: str
    rank: int
    ranks: int
    coordinator: str | None
    local_rank: int | None = None


def find_place(environment: Environment) -> Place | None:
    """The place of this process, or None if nobody says.

    Raises:
      BackendError: BACKEND_SETTING if variables are missing, or are not what they should be.
    """
    for read in (_told, _open_mpi, _hydra, _slurm, _pmi):
        place = read(environment)
        if place is not None:
            if not 0 <= place.rank < place.ranks:
                raise BackendError(
                    "BACKEND_SETTING",
                    f"{place.launcher} says that this is rank {place.rank} of {place.ranks}",
                    fixes=("number ranks from 0 on",),
                )
            return place
    return None


def is_address(text: object) -> bool:
    """Whether it is a host's name and a port."""
    found = re.fullmatch(r".+:(\d{1,5})", text) if isinstance(text, str) else None
    return found is not None and 0 < int(found[1]) < 1 << 16


def _told(environment: Environment) -> Place | None:
    """JAXCC_COORDINATOR, set by the user."""
    address = environment.get("JAXCC_COORDINATOR")
    if address is None:
        _refuse_half(environment)
        return None
    if not is_address(address):
        raise BackendError(
            "BACKEND_SETTING",
            f"JAXCC_COORDINATOR is {address!r}, not HOST:PORT",
            fixes=("set it to the address at which rank 0 listens, such as localhost:4000",),
        )
    rank, ranks = (_number(environment, name) for name in ("JAXCC_RANK", "JAXCC_RANKS"))
    return Place("JAXCC_COORDINATOR", rank, ranks, address)


def _refuse_half(environment: Environment) -> None:
    """A rank without an address would run alone, and its user think that it does not."""
    told = [name for name in ("JAXCC_RANK", "JAXCC_RANKS") if name in environment]
    if told and LAUNCHER not in environment:
        raise BackendError(
            "BACKEND_SETTING",
            f"{' and '.join(told)} {'are' if told[1:] else 'is'} set, but not JAXCC_COORDINATOR",
            because="nothing says where rank 0 listens",
            fixes=(
                "set JAXCC_COORDINATOR=HOST:PORT, the same for all ranks",
                "unset them to run alone",
            ),
        )


def _open_mpi(environment: Environment) -> Place | None:
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    rank, ranks, local, here = (
        _number(environment, f"OMPI_COMM_WORLD_{name}")
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_orte_hnp_uri", "")
    address = _address(environment, _LOOPBACK, job) if here == ranks else None
    return Place("Open MPI's mpirun", rank, ranks, address, local)


def _hydra(environment: Environment) -> Place | None:
    """MPICH's mpirun, and those made from it."""
    if not {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"} <= environment.keys():
        return None
    rank, ranks, local, here = (
        _number(environment, name)
        for name in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    )
    # It gives a job no name; its ranks of one machine have one parent.
    address = _address(environment, _LOOPBACK, str(os.getppid())) if here == ranks else None
    return Place("MPICH's mpirun", rank, ranks, address, local)


def _slurm(environment: Environment) -> Place | None:
    """A step that srun started; a batch script is a job's, but has no tasks of a step."""
    if "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_PROCID" not in environment:
        return None
    rank, ranks, local = (
        _number(environment, name)
        for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    )
    if ranks == 1:
        return None
    one_machine = environment.get("SLURM_STEP_NUM_NODES") == "1"
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    host = _LOOPBACK if one_machine else _first_host(nodes)
    job = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
    return Place("srun", rank, ranks, _address(environment, host, job), local)


def _pmi(environment: Environment) -> Place | None:
    """Any other launcher that speaks PMI or PMIx."""
    if {"PMI_RANK", "PMI_SIZE"} <= environment.keys():
        rank, ranks = (_number(environment, name) for name in ("PMI_RANK", "PMI_SIZE"))
        return Place("a PMI launcher", rank, ranks, None)
    return None


def _address(environment: Environment, host: str, job: str) -> str:
    """Where rank 0 listens: all processes of a job come to the same."""
    port = _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
    return f"{host}:{environment.get('JAX_COORDINATOR_PORT', port)}"


def _first_host(nodes: str) -> str:
    """Of Slurm's list, such as "node[007-015,020],login1"."""
    found = re.match(r"(?P<name>[^,\[]+)(\[(?P<number>\d+))?", nodes)
    if found is None:
        raise BackendError("BACKEND_SETTING", f"SLURM_STEP_NODELIST is {nodes!r}: no machine")
    return found["name"] + (found["number"] or "")


def _number(environment: Environment, name: str) -> int:
    text = environment.get(name)
    if text is None:
        raise BackendError(
            "BACKEND_SETTING",
            f"{name} is not set, but others that go with it are",
            fixes=("set it, too", "unset the others to run alone"),
        )
    if not (text.isascii() and text.isdecimal()):
        raise BackendError(
            "BACKEND_SETTING",
            f"{name} is {text!r}, not a number",
            fixes=("set it to one from 0 on",),
        )
    return int(text)
