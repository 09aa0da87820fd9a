"""Which backends work here: each carries one all-reduce, and a generated kernel runs.

What a backend cannot do it says itself, when it refuses the call.
"""

from __future__ import annotations

import os
import socket
import tempfile

from jaxcc.cli.doctor._child import Child, together
from jaxcc.cli.doctor._probe import FAILS, OFF, Answer, probe
from jaxcc.cli.doctor.software import mpirun

ROOM = "backends"
_RANKS = 2
_LIMIT_S = 120
# Open MPI's: two ranks start whatever cores there are, also for root, as in a container.
_MPI = {
    "MPI4JAX_NO_WARN_JAX_VERSION": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@probe(ROOM, "xla in one process", limit_s=_LIMIT_S)
def xla() -> Answer:
    return _one_process("xla")


@probe(ROOM, "xla between processes", limit_s=_LIMIT_S)
def xla_processes() -> Answer:
    return _processes("xla")


@probe(ROOM, "xla on JAX's devices", limit_s=_LIMIT_S)
def accelerators() -> Answer:
    """On GPUs or TPUs, if that is what JAX runs on."""
    import jax

    from jaxcc.cli.doctor import ranks

    if jax.default_backend() == "cpu":
        return Answer(OFF, "JAX runs on the CPU here")
    return ranks.all_reduce("xla")


@probe(ROOM, "host in one process", limit_s=_LIMIT_S)
def host() -> Answer:
    return _one_process("host")


@probe(ROOM, "host between processes", limit_s=_LIMIT_S)
def host_processes() -> Answer:
    return _processes("host")


@probe(ROOM, "mpi", limit_s=_LIMIT_S, optional=("BACKEND_MPI_MISSING",))
def mpi() -> Answer:
    path = mpirun()
    if path is None:
        # Of what is missing beside it the backend tells.
        alone = together([_rank("mpi", 0, 1, devices=1)])
        lost = Answer(OFF, "no mpirun on PATH to start ranks with", fixes=("install an MPI",))
        return alone if alone.state == FAILS else lost
    args = ("mpi", "MPI", str(_RANKS), str(_free_port()))
    launcher = (path, "-n", str(_RANKS))
    started = Child("jaxcc.cli.doctor.ranks", *args, launcher=launcher, variables=_MPI | _cpu(1))
    return together([started])


@probe(ROOM, "C++ kernels", limit_s=_LIMIT_S)
def kernels() -> Answer:
    """Compiled anew: what the cache holds proves nothing about the compiler."""
    os.environ.update(_cpu(_RANKS))
    from jaxcc.cli.doctor import generated

    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAXCC_CACHE_DIR"] = folder
        return generated.on_host(_RANKS)


@probe(ROOM, "CUDA kernels", limit_s=_LIMIT_S, optional=("CODEGEN_NO_NVRTC",))
def cuda_kernels() -> Answer:
    os.environ.update(_cpu(1))
    from jaxcc.cli.doctor import generated

    return generated.for_cuda("sm_90")


def _one_process(backend: str) -> Answer:
    return together([_rank(backend, 0, 1, devices=_RANKS)])


def _processes(backend: str) -> Answer:
    port = _free_port()
    return together([_rank(backend, rank, _RANKS, devices=1, port=port) for rank in range(_RANKS)])


def _rank(backend: str, rank: int, count: int, *, devices: int, port: int = 0) -> Child:
    """Process `rank` of `count` that run `backend`; see `ranks`."""
    args = (backend, str(rank), str(count), str(port))
    return Child("jaxcc.cli.doctor.ranks", *args, variables=_cpu(devices))


def _cpu(devices: int) -> dict[str, str]:
    """The variables with which JAX shows this number of CPU devices."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    name = "--xla_force_host_platform_device_count"
    kept = [flag for flag in flags if not flag.startswith(name)]
    return {"XLA_FLAGS": " ".join([*kept, f"{name}={devices}"]), "JAX_PLATFORMS": "cpu"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
