"""What a rank of test_processes.py does: `jaxcc run -n N process_rank.py SCENARIO`."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from collectives import NUMPY, random_array, random_call
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import Local, Replicated, comm
from jaxcc.layout import BackendError

RANK, PROCESSES = jax.process_index(), jax.process_count()
DTYPES = ["float32", "float16", "bfloat16", "complex64", "bool", "int8", "uint16", "int32"]
TOLERANCE = {"float16": 0.02, "bfloat16": 0.1}


def mesh_of(devices: list[Any], **axes: int) -> Mesh:
    made = np.array(devices).reshape(tuple(axes.values()))
    return Mesh(made, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def everyone() -> Mesh:
    return mesh_of(jax.devices(), r=jax.device_count())


def run(f: Callable, mesh: Mesh, *xs: np.ndarray, check_vma: bool = True) -> list[np.ndarray]:
    """`f` of each rank's part (dimension 0 is over ranks); this process's rows of the results."""

    def per_rank(*parts: jax.Array) -> Any:
        return jax.tree.map(lambda y: jnp.asarray(y)[None], f(*(part[0] for part in parts)))

    spec = P(mesh.axis_names)
    over = NamedSharding(mesh, spec)
    placed = [jax.make_array_from_callback(x.shape, over, lambda i, x=x: x[i]) for x in xs]
    program = jax.shard_map(per_rank, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    return [local(leaf) for leaf in jax.tree.leaves(jax.jit(program)(*placed))]


def local(y: jax.Array) -> np.ndarray:
    """The rows of this process's ranks, with zeros at the others'."""
    whole = np.zeros(y.shape, y.dtype)
    for shard in y.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


def rows(mesh: Mesh) -> list[int]:
    """This process's ranks."""
    return [r for r, d in enumerate(mesh.devices.flat) if d.process_index == RANK]


def expect(got: np.ndarray, wanted: np.ndarray, mesh: Mesh) -> None:
    assert got.shape == wanted.shape
    for r in rows(mesh):
        if not jnp.issubdtype(got.dtype, jnp.inexact):
            np.testing.assert_array_equal(got[r], wanted[r].astype(got.dtype))
            continue
        wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
        error = TOLERANCE.get(got.dtype.name, 1e-5)
        np.testing.assert_allclose(
            got[r].astype(wide), wanted[r].astype(wide), rtol=error, atol=error
        )


def collectives() -> None:
    """Every collective, of random shapes and dtypes."""
    mesh, rng = everyone(), np.random.default_rng(PROCESSES)
    ranks = mesh.size
    for name in NUMPY:
        for dtype in rng.choice(DTYPES, 3, replace=False).tolist():
            if "reduce" in name and dtype == "bool":
                dtype = "int32"
            shape, parameters = random_call(name, ranks, rng)
            x = random_array(rng, (ranks, *shape), dtype)
            wide = x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
            wanted = np.asarray(NUMPY[name](wide, **parameters))
            (got,) = run(
                lambda v, name=name, parameters=parameters: getattr(comm, name)(
                    v, "r", backend="host", mesh=mesh, **parameters
                ),
                mesh,
                x,
                check_vma=False,
            )
            expect(got, wanted, mesh)


def all_reduces() -> None:
    """Every dtype and reduction, at sizes on both sides of each protocol's limits."""
    mesh, rng = everyone(), np.random.default_rng(7)
    ranks = mesh.size
    for op in ("sum", "prod", "max", "min", "mean"):
        for dtype in ("float32", "float16", "bfloat16", "int32", "uint32", "int8"):
            x = random_array(rng, (ranks, 301), dtype)
            wide = x.astype(np.float64)
            with np.errstate(all="ignore"):
                wanted = np.stack([getattr(np, op)(wide, axis=0)] * ranks)
            if op == "prod" and dtype == "int8":
                continue
            (got,) = run(lambda v, op=op: comm.all_reduce(v, "r", op=op, backend="host"), mesh, x)
            expect(got, wanted, mesh)
    for size in (0, 1, 32768, 32769, 262147, 1_500_001, 7_000_003):
        x = rng.normal(size=(ranks, size)).astype(np.float32)
        (got,) = run(lambda v: comm.all_reduce(v, "r", backend="host"), mesh, x)
        expect(got, np.stack([x.sum(0, dtype=np.float64)] * ranks), mesh)
        (loop,) = run(
            lambda v: lax.fori_loop(
                0, 5, lambda _, y: comm.all_reduce(y / 4, "r", op="max", backend="host"), v
            ),
            mesh,
            x,
            check_vma=False,
        )
        expect(loop, np.stack([np.float64(x.max(0, initial=-np.inf)) / 4**5] * ranks), mesh)


def steps() -> None:
    """A fused optimizer's steps between processes have the bits that they have in one, and are
    optax's."""
    count = jax.local_device_count()
    own = mesh_of(jax.local_devices(), r=count)
    # As many ranks, one of each process.
    across = mesh_of([d for d in jax.devices() if d.id % 2048 == 0][:count], r=count)
    rng = np.random.default_rng(3)
    shapes = {"a": (7, 3), "b": (5,), "scalar": (), "big": (90, 257), "long": (70_001,)}
    params = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    grads = {k: rng.normal(size=(count, *s)).astype(np.float32) for k, s in shapes.items()}
    mean = {k: jnp.asarray(g.mean(0)) for k, g in grads.items()}
    for name in ("adamw", "lamb", "sgd"):
        reference: Any = getattr(optax, name)(1e-2)
        wanted: Any = jax.tree.map(jnp.asarray, params)
        state: Any = reference.init(wanted)
        for _ in range(3):
            updates, state = reference.update(mean, state, wanted)
            wanted = optax.apply_updates(wanted, updates)
        results = []
        for mesh in (own, across):
            tx: Any = getattr(jaxcc.optim, name)(1e-2, axis_name="r", mesh=mesh)

            def train(params: Any, grads: Any, tx: Any = tx) -> Any:
                state = tx.init(params)
                for _ in range(3):
                    params, state = tx.step(jax.tree.map(lambda g: g[0], grads), state, params)
                return params

            def over(spec: P, tree: Any, mesh: Mesh = mesh) -> Any:
                return {
                    k: jax.make_array_from_callback(
                        x.shape, NamedSharding(mesh, spec), lambda i, x=x: x[i]
                    )
                    for k, x in tree.items()
                }

            program = jax.shard_map(train, mesh=mesh, in_specs=(P(), P("r")), out_specs=P())
            new = jax.jit(program)(over(P(), params), over(P("r"), grads))
            results.append({k: np.asarray(x.addressable_data(0)) for k, x in new.items()})
        for k in shapes:
            np.testing.assert_array_equal(results[0][k], results[1][k])
            np.testing.assert_allclose(results[1][k], wanted[k], rtol=1e-4, atol=1e-5)


def pipeline() -> None:
    """A schedule whose kernel sends to the next process what its two ranks reduced."""
    mesh = mesh_of(jax.devices(), stage=PROCESSES, tp=jax.local_device_count())
    turned = mesh_of(
        np.array(jax.devices()).reshape(PROCESSES, -1).T.ravel().tolist(),
        stage=jax.local_device_count(),
        tp=PROCESSES,
    )
    rng = np.random.default_rng(5)
    for mesh_here in (mesh, turned):
        stages, tp = mesh_here.devices.shape

        def step(x: Any, b: Any) -> Any:
            count = lax.axis_size("stage")
            pairs = [(k, (k + 1) % count) for k in range(count)]
            total = jaxcc.name(lax.psum(x, "tp"), "total")
            made = jaxcc.name(jnp.tanh(total) + b, "made")
            return jaxcc.name(lax.ppermute(made, "stage", pairs), "sent")

        typed = jaxcc.typed(
            mesh=mesh_here,
            in_layouts=(jaxcc.on(stage=Local, tp=Local), Replicated),
            out_layouts=jaxcc.on(stage=Local, tp=Replicated),
        )(step)
        shape = (64, 96)
        avals = [jax.ShapeDtypeStruct(shape, np.float32)] * 2
        schedule = typed.schedule(*avals)
        schedule = schedule.split("total").reorder("total.gather", after="sent")
        schedule = schedule.fuse("total.scatter", ..., "total.gather", name="fused")
        fused = schedule.compile("host").local
        x = rng.normal(size=(stages, tp, *shape)).astype(np.float32)
        b = rng.normal(size=shape).astype(np.float32)
        spec = NamedSharding(mesh_here, P("stage", "tp"))
        placed = jax.make_array_from_callback(x.shape, spec, lambda i, x=x: x[i])
        program = jax.shard_map(
            lambda x, b, fused=fused: fused(x[0, 0], b)[None, None],
            mesh=mesh_here,
            in_specs=(P("stage", "tp"), P()),
            out_specs=P("stage", "tp"),
            check_vma=False,
        )
        got = jax.jit(program)(placed, b)
        made = np.tanh(x.sum(1, dtype=np.float64)) + b
        wanted = np.broadcast_to(np.roll(made, 1, axis=0)[:, None], x.shape)
        for shard in got.addressable_shards:
            np.testing.assert_allclose(shard.data, wanted[shard.index], rtol=1e-5, atol=1e-5)


def total(size: int = 1000, op: str = "sum", name: str = "reduce") -> Callable[[], Any]:
    """An all-reduce, compiled, of every rank's number."""
    mesh = everyone()
    over = NamedSharding(mesh, P("r"))
    x = np.arange(1, mesh.size + 1, dtype=np.float32)[:, None] * np.ones(size, np.float32)
    placed = jax.make_array_from_callback(x.shape, over, lambda i: x[i])

    def reduce(v: jax.Array) -> jax.Array:
        return comm.all_reduce(v[0], "r", op=op, backend="host")

    reduce.__name__ = name
    program = jax.jit(jax.shard_map(reduce, mesh=mesh, in_specs=P("r"), out_specs=P()))
    return lambda: np.asarray(program(placed).block_until_ready().addressable_data(0))[0]


def fails(call: Callable[[], Any], *says: str) -> float:
    """Seconds until it fails, with an error that says all that."""
    start = time.monotonic()
    # A program that runs on its caller's thread fails as it is called, with the other.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
        call()
    for text in says:
        assert text in str(caught.value), str(caught.value)
    return time.monotonic() - start


def killed() -> None:
    """A killed rank is noticed at once; local work goes on; later calls fail at once."""
    call = total()
    for _ in range(3):
        assert call() == PROCESSES * (PROCESSES + 1) / 2
    if RANK == PROCESSES - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dead = f"rank {PROCESSES - 1} (process {PROCESSES - 1}, device 0, pid "
    assert fails(call, "[BACKEND_RANK_DIED]", dead, "died during all_reduce(sum)", "#4") < 1
    assert fails(call, "[BACKEND_RANK_DIED]", dead) < 0.2
    assert float(jnp.arange(5.0).sum()) == 10


def stopped() -> None:
    """A stopped rank is named at the limit; it gets the message itself when it goes on."""
    call = total()
    call()
    note = Path(os.environ["NOTE"])
    if RANK == 1:
        note.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        assert fails(call, "[BACKEND_TIMEOUT]", "waited 2.0 s") < 1
        return
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    says = ("[BACKEND_TIMEOUT]", "#2", "rank 1 (process 1", "was last in all_reduce(sum)", "#1")
    assert 2 <= fails(call, *says) < 10
    os.kill(int(note.read_text()), signal.SIGCONT)


def waiting() -> None:
    """Who waits long leaves the core to others."""
    call = total()
    call()
    if RANK == 1:
        time.sleep(2)
    before = time.process_time()
    call()
    if RANK == 0:
        assert time.process_time() - before < 0.4


def different() -> None:
    """Different programs are told so, on every rank, and the group works on."""
    same, mine = total(), total(op="max" if RANK else "sum", size=100 + RANK)
    for _ in range(3):
        same()
        fails(
            mine, "[BACKEND_MISMATCH]", "all_reduce(sum) of float32[100]", "(max) of float32[101]"
        )
    assert same() == PROCESSES * (PROCESSES + 1) / 2


def other_order() -> None:
    """Two programs that are alike, called in another order on each rank, do not swap results."""
    calls = [total(name="first"), total(name="second")]
    for call in calls[RANK:] + calls[:RANK]:
        fails(
            call, "[BACKEND_MISMATCH]", "collective 1 in jit(first)", "collective 1 in jit(second)"
        )
    for call in calls:
        assert call() == PROCESSES * (PROCESSES + 1) / 2


def disagree() -> None:
    """Processes with different tuning tables are refused by name."""
    table = Path(os.environ["NOTE"] + str(RANK))
    row = {"max_bytes": None, "backend": "host", "us": 1 + RANK}
    tables = {"all_reduce": {"float": {"2": [row]}}}
    table.write_text(json.dumps({"schema": 1, "machine": f"m{RANK}", "tables": tables}))
    os.environ["JAXCC_TABLE"] = str(table)
    for backend in ("host", "auto"):
        with pytest.raises(BackendError) as caught:
            run(
                lambda v, b=backend: comm.all_reduce(v, "r", backend=b), everyone(), np.ones((2, 3))
            )
        assert caught.value.code == "BACKEND_DISAGREE"
        for text in ("tuning table", "process 0: of m0", "process 1: of m1"):
            assert text in str(caught.value)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(f"rank {RANK} passed {sys.argv[1]}", flush=True)
