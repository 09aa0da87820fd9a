"""What a rank of test_faults.py does: `jaxcc run -n N fault_rank.py FAULT VICTIM SEED`.

All ranks run one random program of collectives, over and over, until one of them meets its fault.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import jax
import jax.numpy as jnp
import numpy as np
from collectives import NUMPY, random_array, random_call
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import comm
from jaxcc.layout import BackendError

RANK, RANKS = jax.process_index(), jax.process_count()
FAULT, VICTIM, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
NOTE = Path(os.environ["NOTE"])
"""Where it stands when the victim was struck."""
LIMIT_S = 1.5
ROUNDS = 6
"""Of the program, where the group survives."""
OWN_CODE = 40
"""The exit code of rank 0 after a fault, and so on."""

# What strikes the victim at a moment that it knows nothing of; if early, while the group is made.
STRIKES = {
    "early": "kill -KILL {pid}",
    "killed": "kill -KILL {pid}",
    "stopped": f"kill -STOP {{pid}}; sleep {LIMIT_S + 1.5}; kill -CONT {{pid}}",
    "paused": "kill -STOP {pid}; sleep {pause}; kill -CONT {pid}",
}

Step = Callable[[int], None]


def main() -> None:
    rng = np.random.default_rng(SEED)
    delay, pause, turn = rng.random(), rng.random() * 0.7, int(rng.integers(60))
    mesh = mesh_of(jax.devices())
    if FAULT == "early":
        strike(delay * 3, pause)
        try:
            steps = program(mesh, rng)
        except BackendError as error:
            after_the_fault(str(error), [], time.time())
    else:
        limit_waits(mesh)
        steps = program(mesh, rng)
        for step in steps:
            step(0)
        multihost_utils.sync_global_devices("begin")
        strike(delay / 2, pause)
    is_fatal = FAULT in ("early", "killed", "stopped", "left")
    for number in range(1 << 40 if is_fatal else ROUNDS * len(steps)):
        if RANK == VICTIM and number == turn:
            if FAULT == "late":
                time.sleep(pause)
            if FAULT == "left":
                NOTE.write_text(str(time.time()))
                return
        try:
            steps[number % len(steps)](number)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            after_the_fault(str(error), steps, time.time())


def strike(delay: float, pause: float) -> None:
    """Has the victim struck in so many seconds."""
    if RANK == VICTIM and FAULT in STRIKES:
        blow = STRIKES[FAULT].format(pid=os.getpid(), pause=pause)
        now = f"date +%s.%N > {NOTE}.new; mv {NOTE}.new {NOTE}"
        subprocess.Popen(["sh", "-c", f"sleep {delay}; {now}; {blow}"])


def mesh_of(devices: list[Any]) -> Mesh:
    return Mesh(np.array(devices), ("r",), axis_types=(AxisType.Auto,))


def limit_waits(mesh: Mesh) -> None:
    """Lets the group be made with a short limit, which has not to bound how ranks start."""
    multihost_utils.sync_global_devices("limit")
    usual = os.environ["JAXCC_TIMEOUT_S"]
    os.environ["JAXCC_TIMEOUT_S"] = str(LIMIT_S) if FAULT == "stopped" else usual
    collective_step(mesh, "all_reduce", (1,), {}, "float32")
    os.environ["JAXCC_TIMEOUT_S"] = usual


def program(mesh: Mesh, rng: np.random.Generator) -> list[Step]:
    """Collectives of a few bytes to a MiB, and an optimizer's step, in random order."""
    calls: list[tuple[str, tuple[int, ...], dict[str, Any]]] = []
    for name in rng.choice(list(NUMPY), 3, replace=False).tolist():
        calls.append((name, *random_call(name, RANKS, rng)))
    for size in (1 << 14, 1 << 18):
        rows = (size // RANKS * RANKS,)
        calls.append(("all_reduce", rows, {"op": str(rng.choice(["sum", "max"]))}))
        name = str(rng.choice(["all_to_all", "reduce_scatter", "broadcast"]))
        calls.append((name, rows, {}))
    dtypes = rng.choice(["float32", "int32", "bfloat16"], len(calls))
    steps = [
        collective_step(mesh, *call, str(dtype)) for call, dtype in zip(calls, dtypes, strict=True)
    ]
    steps.append(optimizer_step(mesh))
    return [steps[i] for i in rng.permutation(len(steps))]


def collective_step(
    mesh: Mesh, name: str, shape: tuple[int, ...], parameters: dict[str, Any], dtype: str
) -> Step:
    call = compiled(
        mesh,
        lambda v: getattr(comm, name)(v, "r", backend="host", mesh=mesh, **parameters),
        jax.ShapeDtypeStruct(shape, dtype),
    )

    def step(number: int) -> None:
        x = random_array(np.random.default_rng([SEED, number]), (RANKS, *shape), dtype)
        exact = jnp.issubdtype(x.dtype, jnp.integer)
        wanted = NUMPY[name](x if exact else x.astype(np.float64), **parameters)
        (got,) = call(x)
        error = 0.1 if dtype == "bfloat16" else 1e-5
        check(got, wanted[mesh_rank(mesh)], 0 if exact else error)

    return step


def optimizer_step(mesh: Mesh) -> Step:
    """One of a fused optimizer: the mean of all ranks' gradients goes off the parameters."""
    shapes = [(90, 257), (7,)]
    tx = jaxcc.optim.sgd(0.5, axis_name="r", mesh=mesh)

    def descend(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        params, grads = list(arrays[:2]), list(arrays[2:])
        new, _ = tx.step(grads, tx.init(params), params)
        return tuple(new)

    call = compiled(mesh, descend, *(jax.ShapeDtypeStruct(s, "float32") for s in shapes * 2))

    def step(number: int) -> None:
        rng = np.random.default_rng([SEED, number])
        params = [np.stack([rng.normal(size=s).astype(np.float32)] * RANKS) for s in shapes]
        grads = [rng.normal(size=(RANKS, *s)).astype(np.float32) for s in shapes]
        got = call(*params, *grads)
        for new, old, grad in zip(got, params, grads, strict=True):
            check(new, old[0].astype(np.float64) - 0.5 * grad.mean(0, dtype=np.float64), 1e-5)

    return step


def compiled(mesh: Mesh, f: Callable, *parts: jax.ShapeDtypeStruct) -> Callable:
    """`f` of the ranks' parts, which lie along dimension 0 of arrays; this rank's results."""
    over = NamedSharding(mesh, P("r"))

    def per_rank(*given: jax.Array) -> Any:
        return jax.tree.map(lambda y: y[None], jax.tree.leaves(f(*(part[0] for part in given))))

    wholes = [
        jax.ShapeDtypeStruct((mesh.size, *part.shape), part.dtype, sharding=over) for part in parts
    ]
    run = (
        jax.jit(
            jax.shard_map(per_rank, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
        )
        .lower(*wholes)
        .compile()
    )

    def call(*xs: np.ndarray) -> list[np.ndarray]:
        placed = [jax.make_array_from_callback(x.shape, over, lambda i, x=x: x[i]) for x in xs]
        return [np.asarray(y.addressable_data(0))[0] for y in run(*placed)]

    return call


def mesh_rank(mesh: Mesh) -> int:
    return [device.process_index for device in mesh.devices.flat].index(RANK)


def check(got: np.ndarray, wanted: np.ndarray, error: float) -> None:
    wide = got.astype(np.float64)
    np.testing.assert_allclose(wide, wanted.astype(np.float64), rtol=error, atol=error)


def after_the_fault(message: str, steps: list[Step], at: float) -> NoReturn:
    """The error is the right one and came soon; the group is over, and this process is not."""
    code = "[BACKEND_TIMEOUT]" if FAULT == "stopped" else "[BACKEND_RANK_DIED]"
    says = {"left": "ended its program", "killed": "died during"}.get(FAULT, "")
    whom = (
        f"process {VICTIM}"
        if FAULT == "early"
        else f"rank {VICTIM} (process {VICTIM}, device 0, pid "
    )
    for text in (code, whom, says):
        assert text in message, message
    took = at - float(NOTE.read_text())
    if RANK != VICTIM:
        # Of an early one a rank is told when it has traced and compiled what it is to run.
        soon = {"early": 10.0, "stopped": LIMIT_S + 2}.get(FAULT, 2.0)
        assert took < soon, f"told after {took} s"
    for step in steps:
        try:
            step(0)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            assert code in str(error), str(error)
        else:
            raise AssertionError("a collective of a group that has ended succeeds")
    assert time.time() - at < 5
    assert "memfd:jaxcc" not in Path("/proc/self/maps").read_text()
    x = np.random.default_rng().normal(size=(64, 64)).astype(np.float32)
    np.testing.assert_allclose(
        jnp.asarray(x) @ x.T, x.astype(np.float64) @ x.T, rtol=1e-3, atol=1e-3
    )
    survivors = [device for device in jax.devices() if device.process_index != VICTIM]
    if RANK != VICTIM and len(survivors) > 1:
        go_on(mesh_of(survivors))
    print(f"rank {RANK} passed", flush=True)
    sys.exit(OWN_CODE + RANK)


def go_on(mesh: Mesh) -> None:
    """Those that are left are a group of their own."""
    call = compiled(
        mesh,
        lambda v: comm.all_reduce(v, "r", backend="host", mesh=mesh),
        jax.ShapeDtypeStruct((1000,), "float32"),
    )
    x = np.random.default_rng(SEED).normal(size=(mesh.size, 1000)).astype(np.float32)
    for _ in range(20):
        check(call(x)[0], x.sum(0, dtype=np.float64), 1e-5)


if __name__ == "__main__":
    main()
    print(f"rank {RANK} passed", flush=True)
