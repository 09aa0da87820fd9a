"""One rank of an all-reduce: `python -m jaxcc.cli.doctor.ranks BACKEND RANK RANKS PORT`.

RANK is MPI where MPI's launcher says which. Importing this starts nothing.
"""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcc import comm
from jaxcc.cli.doctor._child import say
from jaxcc.cli.doctor._probe import FAILS, OK, Answer

_ELEMENTS = 1000
_JOIN_S = 60


def all_reduce(backend: str) -> Answer:
    """A sum over all devices, held against NumPy's.

    Raises:
      BackendError: the backend refuses it.
    """
    ranks = jax.device_count()
    mesh = jax.make_mesh((ranks,), ("r",), axis_types=(AxisType.Auto,))
    # Whole numbers, whose sum is exact in any order; the same on every rank.
    whole = np.random.default_rng(0).integers(-999, 1000, (ranks, _ELEMENTS)).astype(np.float32)
    parts = NamedSharding(mesh, P("r"))
    x = jax.make_array_from_callback(whole.shape, parts, lambda index: whole[index])

    def total(x: jax.Array) -> jax.Array:
        return comm.all_reduce(x[0], "r", backend=backend, mesh=mesh)

    sums = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("r"), out_specs=P()))(x)
    copies = [np.asarray(shard.data) for shard in sums.addressable_shards]
    facts = {"ranks": ranks, "processes": jax.process_count(), "platform": jax.default_backend()}
    if not all(np.array_equal(copy, whole.sum(0)) for copy in copies):
        return Answer(FAILS, f"the sum of {ranks} ranks is wrong", facts=facts)
    return Answer(OK, f"a sum over {ranks} ranks, right", facts=facts)


def _join(rank: str, ranks: int, port: str) -> None:
    """Makes the devices of all processes JAX's."""
    if rank == "MPI":
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    jax.distributed.initialize(
        f"127.0.0.1:{port}", ranks, int(rank), initialization_timeout=_JOIN_S
    )


def main(backend: str, rank: str, ranks: str, port: str) -> None:
    """Joins the other processes and answers."""

    def look() -> Answer:
        if int(ranks) > 1:
            _join(rank, int(ranks), port)
        return all_reduce(backend)

    say(look)


if __name__ == "__main__":
    main(*sys.argv[1:])
