#!/usr/bin/env python3
"""Collectives of more than 2**31 elements, between two ranks of one process or of two.

    python tools/check_large.py
    python -m jaxcc run -n 2 tools/check_large.py

They hold about 9 GB. Results are compared at the ends, around 2**31 and at random places.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcc import comm

RANKS = 2
SIZE = 2**31 + 4099
"""Elements of a result, or one less; no multiple of what kernels and windows take at once."""
SAMPLES = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(CHECKS), help=" ".join(CHECKS))
    names = parser.parse_args().names
    if not jax.distributed.is_initialized():
        jax.config.update("jax_num_cpu_devices", RANKS)
    mesh = jax.make_mesh((RANKS,), ("r",), axis_types=(AxisType.Auto,))
    for name in names:
        start = time.monotonic()
        CHECKS[name](mesh)
        took = time.monotonic() - start
        print(f"process {jax.process_index()}: {name} is right, after {took:.0f} s", flush=True)


def element(i: Any, rank: Any) -> Any:
    """Element i of a rank's operand: NumPy's or JAX's, of u32 and wrapped around."""
    mixed = (i ^ i >> 15) * np.uint32(2654435761) + rank * np.uint32(40503)
    return (mixed >> 25).astype(np.int8)


def run(mesh: Any, size: int, collective: Any) -> list[tuple[int, np.ndarray]]:
    """Each rank's number and result of a collective on `size` elements of each."""

    def per_rank() -> jax.Array:
        rank = lax.axis_index("r").astype(np.uint32)
        return collective(element(lax.iota(np.uint32, size), rank))

    program = jax.shard_map(per_rank, mesh=mesh, in_specs=(), out_specs=P("r"), check_vma=False)
    y = jax.jit(program)()
    ranks = list(mesh.devices.flat)
    return [(ranks.index(shard.device), np.asarray(shard.data)) for shard in y.addressable_shards]


def places(size: int) -> np.ndarray:
    rng = np.random.default_rng()
    near = [np.arange(5000), np.arange(size - 5000, size), rng.integers(0, size, SAMPLES)]
    middle = [np.arange(max(0, at - 5000), min(size, at + 5000)) for at in (size // 2, 2**31)]
    return np.concatenate([*near, *middle])


def all_reduce(mesh: Any) -> None:
    for _, got in run(mesh, SIZE, lambda v: comm.all_reduce(v, "r", backend="host", mesh=mesh)):
        at = places(SIZE)
        i = at.astype(np.uint32)
        wanted = np.sum([element(i, np.uint32(rank)) for rank in range(RANKS)], 0, np.int64)
        assert got.size == SIZE
        np.testing.assert_array_equal(got[at], wanted.astype(np.int8))


def all_gather(mesh: Any) -> None:
    part = SIZE // RANKS
    for _, got in run(mesh, part, lambda v: comm.all_gather(v, "r", backend="host", mesh=mesh)):
        at = places(part * RANKS)
        assert got.size == part * RANKS > 2**31
        wanted = element((at % part).astype(np.uint32), (at // part).astype(np.uint32))
        np.testing.assert_array_equal(got[at], wanted)


def reduce_scatter(mesh: Any) -> None:
    size = SIZE // RANKS * RANKS
    part = size // RANKS
    for rank, got in run(
        mesh, size, lambda v: comm.reduce_scatter(v, "r", backend="host", mesh=mesh)
    ):
        at = places(part)
        i = (at + rank * part).astype(np.uint32)
        wanted = np.sum([element(i, np.uint32(r)) for r in range(RANKS)], 0, np.int64)
        assert got.size == part
        np.testing.assert_array_equal(got[at], wanted.astype(np.int8))


def all_to_all(mesh: Any) -> None:
    size = SIZE // RANKS * RANKS
    part = size // RANKS
    for rank, got in run(mesh, size, lambda v: comm.all_to_all(v, "r", backend="host", mesh=mesh)):
        at = places(size)
        assert got.size == size > 2**31
        i = (at % part + rank * part).astype(np.uint32)
        np.testing.assert_array_equal(got[at], element(i, (at // part).astype(np.uint32)))


CHECKS = {f.__name__: f for f in (all_reduce, all_gather, reduce_scatter, all_to_all)}

if __name__ == "__main__":
    main()
