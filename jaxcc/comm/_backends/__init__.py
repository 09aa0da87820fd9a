"""The backends that carry collectives, one file each."""

from jaxcc.comm._backends._backend import Backend as Backend
from jaxcc.comm._backends.host import HOST
from jaxcc.comm._backends.mpi import MPI
from jaxcc.comm._backends.xla import XLA

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (XLA, HOST, MPI)}
