"""What a rank of test_mpi.py does: `mpirun -n 2 python mpi_rank.py PORT SCENARIO`."""

import json
import os
import sys
from collections.abc import Callable

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from mpi4py import MPI

from jaxcc import comm
from jaxcc.layout import BackendError

RANK, RANKS = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
NUMPY = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
DTYPES = ["float32", "float16", "bfloat16", "int8", "int32", "uint32", "bool", "complex64"]
REPLICATED = P()
SHAPES = [(), (0,), (3, 0), (7,), (33, 5)]


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((RANKS,), ("r",), axis_types=(AxisType.Auto,))


def stacked(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Every rank's operand, the same array in each process."""
    whole = (RANKS, *shape)
    if dtype == "bool":
        return rng.integers(0, 2, whole).astype(bool)
    if dtype.startswith("complex"):
        return (rng.normal(size=whole) + 1j * rng.normal(size=whole)).astype(dtype)
    if "int" in dtype:
        return rng.integers(0, 9, whole).astype(dtype)
    return rng.normal(size=whole).astype(jnp.dtype(dtype))


def place(x: np.ndarray) -> jax.Array:
    """`x` with its first dimension over the ranks."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh(), P("r")), lambda i: x[i])


def run(
    f: Callable, *xs: np.ndarray, check_vma: bool = True, out_specs: P = REPLICATED
) -> list[np.ndarray]:
    """`f` of each rank's part, jitted, in `jax.shard_map`; this process's part of the results."""

    def per_rank(*parts: jax.Array) -> object:
        return f(*(part[0] for part in parts))

    program = jax.shard_map(
        per_rank, mesh=mesh(), in_specs=P("r"), out_specs=out_specs, check_vma=check_vma
    )
    result = jax.jit(program)(*map(place, xs))
    return [np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(result)]


def expect(actual: np.ndarray, wanted: np.ndarray, dtype: jnp.dtype) -> None:
    """Equality up to one rounding of `dtype`."""
    assert actual.dtype == dtype and actual.shape == wanted.shape, (actual.dtype, actual.shape)
    exact = not jnp.issubdtype(dtype, jnp.inexact)
    tolerance = 0 if exact else 4 * float(jnp.finfo(dtype).eps)
    wide = jnp.promote_types(dtype, np.float32)
    np.testing.assert_allclose(actual.astype(wide), wanted, rtol=tolerance, atol=tolerance)


def values() -> None:
    """Every op, dtype and shape, under both modes of check_vma, against NumPy in f64."""
    rng = np.random.default_rng(1)
    cases = [
        (op, stacked(rng, shape, dtype))
        for op in NUMPY
        for dtype in DTYPES
        for shape in SHAPES
        if not (dtype == "complex64" and op in ("max", "min"))
    ]
    for check_vma in (True, False):
        results = run(
            lambda *xs: [
                comm.all_reduce(x, "r", op=op, backend="mpi")
                for (op, _), x in zip(cases, xs, strict=True)
            ],
            *(x for _, x in cases),
            check_vma=check_vma,
        )
        for (op, x), actual in zip(cases, results, strict=True):
            counted = x.dtype == bool and op in ("sum", "prod")
            dtype = jnp.dtype(np.int32) if counted else x.dtype
            wide = np.complex128 if x.dtype == np.complex64 else np.float64
            expect(actual, NUMPY[op](x.astype(wide), axis=0), dtype)


def gradients() -> None:
    """The gradient of a program of two sums is that of the same program with psum."""
    rng = np.random.default_rng(2)
    x = stacked(rng, (5, 3), "float32")

    def loss(reduce: Callable, x: jax.Array) -> jax.Array:
        return reduce(jnp.sum(jnp.sin(reduce(x**2))) * jnp.sum(x))

    for check_vma in (True, False):
        for wrap in (lambda f: f, jax.vmap):

            def both(x: jax.Array, wrap: Callable = wrap) -> list[jax.Array]:
                ours = wrap(
                    jax.grad(lambda v: loss(lambda y: comm.all_reduce(y, "r", backend="mpi"), v))
                )
                lax = wrap(jax.grad(lambda v: loss(lambda y: jax.lax.psum(y, "r"), v)))
                return [ours(x)[None], lax(x)[None]]

            ours, lax = run(both, x, check_vma=check_vma, out_specs=P("r"))
            np.testing.assert_allclose(ours, lax, rtol=2e-5, atol=1e-5)
            assert np.abs(ours).max() > 0.1


def program() -> None:
    """Independent calls keep their order; calls work in scan, in cond and beside lax.psum."""
    rng = np.random.default_rng(3)
    x = stacked(rng, (1 << 18,), "float32")

    def body(x: jax.Array) -> list[jax.Array]:
        independent = [
            # Ranks come to the calls at different times.
            comm.all_reduce(_work(x * k, (jax.lax.axis_index("r") + k) % 2), "r", backend="mpi")
            for k in range(16)
        ]
        total = jax.lax.psum(x, "r")
        looped, _ = jax.lax.scan(
            lambda carry, k: (carry + comm.all_reduce(x * k, "r", backend="mpi"), None),
            jnp.zeros_like(total),
            jnp.arange(3.0),
        )
        chosen = jax.lax.cond(
            total[0] != 0, lambda v: comm.all_reduce(v, "r", backend="mpi"), lambda v: total, x
        )
        return [*(y[:8] for y in independent), looped, chosen]

    *independent, looped, chosen = run(body, x)
    total = x.astype(np.float64).sum(0)
    for k, actual in enumerate(independent):
        np.testing.assert_allclose(actual, k * total[:8], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(looped, 3 * total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chosen, total, rtol=1e-5, atol=1e-5)


def _work(x: jax.Array, much: jax.Array) -> jax.Array:
    return x + 0 * jax.lax.fori_loop(0, 20 * much, lambda _, y: jnp.sin(y), x)


def disagree() -> None:
    """With JAXCC_CHECK=1, ranks whose shapes differ are told so on both, before any data moves."""
    x = np.ones((RANKS, 4 + RANK), np.float32)
    _refused("BACKEND_DISAGREE", "float32[5]", lambda v: comm.all_reduce(v, "r", backend="mpi"), x)


def absent() -> None:
    """With JAXCC_CHECK=1, a rank that does not come is waited for a bounded time."""
    if RANK == 0:
        x = np.ones((RANKS, 4), np.float32)
        _refused(
            "BACKEND_TIMEOUT", "all_reduce", lambda v: comm.all_reduce(v, "r", backend="mpi"), x
        )
    else:
        # The communicator is made by all ranks together.
        comm.explain("all_reduce", jnp.ones(4), "r", backend="mpi", mesh=mesh())


def no_gradient() -> None:
    """Only sums have a gradient."""
    x = np.ones((RANKS, 4), np.float32)
    _refused(
        "BACKEND_NO_GRADIENT",
        "all_reduce(max)",
        jax.grad(lambda v: comm.all_reduce(v.sum(), "r", op="max", backend="mpi")),
        x,
    )


def auto() -> None:
    """Between processes of one machine the shipped table prefers host; one's own may name MPI."""
    assert comm.explain("all_reduce", jnp.ones(4), "r", mesh=mesh()).backend == "host"
    rows = [{"max_bytes": None, "backend": "mpi", "us": 1.0}]
    text = json.dumps({"schema": 1, "tables": {"all_reduce": {"float": {"2": rows}}}})
    table = comm.Table.parse(text, "own.json")
    x = np.ones((RANKS, 4), np.float32)
    for chosen, target in ((None, "jaxcc_fused"), (table, "allreduce_mpi")):
        jaxpr = jax.make_jaxpr(
            jax.shard_map(
                lambda v, table=chosen: comm.all_reduce(v[0], "r", mesh=mesh(), table=table),
                mesh=mesh(),
                in_specs=P("r"),
                out_specs=P(),
            )
        )(x)
        assert target in str(jaxpr), jaxpr


def _refused(code: str, part: str, f: Callable, x: np.ndarray) -> None:
    try:
        run(f, x, out_specs=P("r"))
    except BackendError as error:
        assert error.code == code and part in str(error), error
    else:
        raise AssertionError(f"no {code}")


if __name__ == "__main__":
    port, scenario = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", RANKS, RANK)
    globals()[scenario]()
    print(f"rank {RANK} passed {scenario}", flush=True)
