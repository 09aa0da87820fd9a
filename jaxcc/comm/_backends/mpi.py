"""MPI through mpi4jax, between processes that have one device each."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat
from jaxcc.comm._backends._agree import agree
from jaxcc.comm._backends._like_lax import run_like_lax
from jaxcc.comm._call import Call
from jaxcc.layout import BackendError

_INSTALL = "pip install 'jaxcc[mpi]' && pip install --no-build-isolation mpi4jax"
_MAX_COUNT = 2**31 - 1
_OPS = {
    "sum": "SUM",
    "max": "MAX",
    "min": "MIN",
    "prod": "PROD",
    "and": "BAND",
    "or": "BOR",
    "xor": "BXOR",
}


class _Mpi:
    name = "mpi"
    between = "all of it is done at the start: MPI's blocking calls carry it"

    def refuses(self, call: Call) -> BackendError | None:
        # Importing mpi4py starts MPI, so all that can be told without it comes first.
        return (
            _other(call)
            or _missing()
            or _wrong_processes(call)
            or _wrong_data(call)
            or _wrong_world(call)
        )

    def run(self, x: jax.Array, call: Call) -> jax.Array:
        agree(call, _library().comm)
        return run_like_lax(self, x, call)

    def bare(self, x: jax.Array, call: Call) -> jax.Array:
        """MPI's call."""
        return _library().all_reduce(x, call)


def _other(call: Call) -> BackendError | None:
    if call.collective == "all_reduce":
        return None
    return BackendError(
        "BACKEND_COLLECTIVE",
        f"the mpi backend has all_reduce only, not {call.collective}",
        fixes=("use backend='xla', which has all collectives",),
    )


def _missing() -> BackendError | None:
    for module in ("mpi4py", "mpi4jax"):
        if importlib.util.find_spec(module) is None:
            return BackendError(
                "BACKEND_MPI_MISSING",
                f"the mpi backend needs {module}, which is not installed",
                fixes=(_INSTALL,),
            )
    return None


def _wrong_processes(call: Call) -> BackendError | None:
    devices = jax.local_device_count()
    if devices != 1:
        return BackendError(
            "BACKEND_MPI_DEVICES",
            f"the mpi backend needs one device in each process; this one has {devices}",
            because="all devices of a process would share one communicator",
            fixes=("start one process for each rank", "use backend='host' within a process"),
        )
    return _wrong_group(call, jax.process_count(), "belong to this JAX program")


def _wrong_world(call: Call) -> BackendError | None:
    return _wrong_group(call, _library().comm.size, "run under MPI")


def _wrong_group(call: Call, processes: int, what: str) -> BackendError | None:
    if call.ranks == processes:
        return None
    return BackendError(
        "BACKEND_MPI_GROUP",
        f"the group along {call.axes} has {call.ranks} ranks, but {processes} processes {what}",
        fixes=("run over all processes: `mpirun -n N`, and jax.distributed.initialize in each",),
    )


def _wrong_data(call: Call) -> BackendError | None:
    if call.dtype.kind not in "biufc" and call.dtype_class != "half":
        return BackendError(
            "BACKEND_DTYPE",
            f"MPI has no type for {call.dtype.name}",
            fixes=("cast it to float32 or int32",),
        )
    if math.prod(call.shape) > _MAX_COUNT:
        return BackendError(
            "BACKEND_SIZE",
            f"{call} has more elements than the {_MAX_COUNT} that one MPI call counts",
            fixes=("reduce it in parts",),
        )
    return None


class _Library:
    """mpi4jax, and a communicator that only it uses: its calls run later than they are written."""

    def __init__(self) -> None:
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.mpi4jax: Any = importlib.import_module("mpi4jax")
        self.comm = self.mpi.COMM_WORLD.Dup()
        traced = jax.make_jaxpr(self._sum)(jax.ShapeDtypeStruct((), jnp.float32))
        for effect in traced.effects:
            _compat.allow_on_many_devices(type(effect))

    def _sum(self, x: jax.Array) -> jax.Array:
        return self.mpi4jax.allreduce(x, op=self.mpi.SUM, comm=self.comm)

    def all_reduce(self, x: jax.Array, call: Call) -> jax.Array:
        """MPI_Allreduce. MPI has no half types and no order on bool: they travel in wider types."""
        wider = {"half": jnp.float32, "int": jnp.uint8 if x.dtype == bool else x.dtype}
        sent = x.astype(wider.get(call.dtype_class, x.dtype))
        op = getattr(self.mpi, _OPS[call.op])
        y = self.mpi4jax.allreduce(sent, op=op, comm=self.comm)
        return y.astype(call.dtype)


@functools.cache
def _library() -> _Library:
    return _Library()


MPI = _Mpi()
