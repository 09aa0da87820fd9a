"""CoCoNet's workloads, each with every schedule of the paper, against one rank and timed.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/workloads.py adam

Workloads: sgd, adam, lamb (data parallel), attention, mlp (model parallel), pipeline (4 ranks: two
stages of two). With `--print SCHEDULE` the rewritten program is shown instead; `--size` scales it.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import jaxcc
from jaxcc import Local, Replicated, Schedule, Sliced, on

Tactic = Callable[[Schedule], Schedule]
Shape = tuple[int, ...]


def sgd(g: jax.Array, w: jax.Array, lr: jax.Array) -> jax.Array:
    total = jaxcc.name(jax.lax.psum(g, "dp"), "total")
    return jaxcc.name(w - lr * total, "new_w")


def adam(g: jax.Array, w: jax.Array, m: jax.Array, v: jax.Array, lr: jax.Array) -> Any:
    total = jaxcc.name(jax.lax.psum(g, "dp"), "total")
    m = jaxcc.name(0.9 * m + 0.1 * total, "new_m")
    v = jaxcc.name(0.999 * v + 0.001 * total * total, "new_v")
    return jaxcc.name(w - lr * m / (jnp.sqrt(v) + 1e-8), "new_w"), m, v


def lamb(g: jax.Array, w: jax.Array, m: jax.Array, v: jax.Array, lr: jax.Array) -> Any:
    total = jaxcc.name(jax.lax.psum(g, "dp"), "total")
    m = jaxcc.name(0.9 * m + 0.1 * total, "new_m")
    v = jaxcc.name(0.999 * v + 0.001 * total * total, "new_v")
    r = jaxcc.name(m / (jnp.sqrt(v) + 1e-6) + 0.01 * w, "update")
    w_norm, r_norm = jnp.sqrt(jnp.sum(w * w)), jnp.sqrt(jnp.sum(r * r))
    ratio = jaxcc.name(jnp.where(w_norm * r_norm > 0, w_norm / r_norm, 1.0), "ratio")
    return jaxcc.name(w - lr * ratio * r, "new_w"), m, v


def _dropout(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def attention(x: jax.Array, w: jax.Array, b: jax.Array, r: jax.Array, key: jax.Array) -> jax.Array:
    total = jaxcc.name(jax.lax.psum(x @ w, "tp"), "total")
    return jaxcc.name(_dropout(total + b, key) + r, "out")


def mlp(
    x: jax.Array, up: jax.Array, down: jax.Array, b: jax.Array, r: jax.Array, key: jax.Array
) -> jax.Array:
    total = jaxcc.name(jax.lax.psum(jax.nn.gelu(x @ up) @ down, "tp"), "total")
    return jaxcc.name(_dropout(total + b, key) + r, "out")


def pipeline(x: jax.Array, b: jax.Array, r: jax.Array, key: jax.Array) -> jax.Array:
    """The end of a stage's last layer: what it makes goes to the same rank of the next stage."""
    total = jaxcc.name(jax.lax.psum(x, "tp"), "total")
    done = jaxcc.name(_dropout(total + b, key) + r, "done")
    stages = jax.lax.axis_size("pp")
    to_next = [(k, (k + 1) % stages) for k in range(stages)]
    return jaxcc.name(jax.lax.ppermute(done, "pp", to_next), "sent")


def _unchanged(s: Schedule) -> Schedule:
    return s


def _on_slices(after: str, *sliced: str, dim: int = 0) -> Tactic:
    """RS-C-AG: the work runs on slices, between a reduce-scatter and an all-gather."""

    def tactic(s: Schedule) -> Schedule:
        s = s.split("total", dim=dim).reorder("total.gather", after=after)
        return s.as_slice(*sliced) if sliced else s

    return tactic


def _fused(slices: Tactic, last: str = "total.gather") -> Tactic:
    return lambda s: slices(s).fuse("total.scatter", ..., last, name="fused")


def _product(s: Schedule) -> str:
    """The name of the product that the all-reduce sums: the last one."""
    return [op.name for op in s.program.ops if op.kind == "dot_general"][-1]


def _product_overlapped(s: Schedule) -> Schedule:
    """The product runs in chunks with the fused all-reduce of what it makes."""
    return _fused(_OUT)(s).overlap(_product(s), "fused", chunks=4)


def _sends_overlapped(s: Schedule) -> Schedule:
    """A chunk is reduced while the one before it is computed and sent, and the one before that
    gathered.
    """
    s = _on_slices("sent")(s).fuse("done", "sent", name="fused")
    return s.overlap("total.scatter", "fused", "total.gather", chunks=4)


_STATE = ("m", "v", "new_m", "new_v")
_UPDATE = _on_slices("new_w", *_STATE)
_STEP = (Local, Replicated, Replicated, Replicated, Replicated)
_OUT = _on_slices("out")


def _is_local(layout: Any, axis: str) -> bool:
    return (layout[axis] if isinstance(layout, Mapping) else layout) == Local


@dataclass(frozen=True)
class Workload:
    """A per-rank function, its mesh, the layouts and whole shapes of its arguments, its schedules.

    `key` says whether the last argument is a random key.
    """

    function: Callable[..., Any]
    mesh: Mapping[str, int]
    layouts: tuple[Any, ...]
    shapes: Callable[[int], list[Shape]]
    schedules: Mapping[str, Tactic]
    key: bool = False

    def arguments(self, size: int) -> list[Any]:
        rng = np.random.default_rng(0)
        made: list[Any] = []
        for shape, layout in zip(self.shapes(size), self.layouts, strict=False):
            stacked = tuple(n for axis, n in self.mesh.items() if _is_local(layout, axis))
            made.append(jnp.asarray(rng.uniform(0.1, 1, stacked + shape), jnp.float32))
        return [*made, jax.random.key(7)] if self.key else made


def _step_shapes(n: int) -> list[Shape]:
    return [(n * 1024,)] * 4 + [()]


WORKLOADS = {
    "sgd": Workload(
        sgd, {"dp": 2}, (Local, Replicated, Replicated), lambda n: [(n * 1024,)] * 2 + [()],
        {
            "ar-c": _unchanged,
            "rs-c-ag": _on_slices("new_w"),
            "fuse-rs-c-ag": _fused(_on_slices("new_w")),
        },
    ),
    "adam": Workload(
        adam, {"dp": 2}, _STEP, _step_shapes,
        {"ar-c": _unchanged, "rs-c-ag": _UPDATE, "fuse-rs-c-ag": _fused(_UPDATE)},
    ),
    "lamb": Workload(
        lamb, {"dp": 2}, _STEP, _step_shapes,
        {"ar-c": _unchanged, "rs-c-ag": _UPDATE, "fuse-rs-c": _fused(_UPDATE, "update")},
    ),
    "attention": Workload(
        attention, {"tp": 2}, (Sliced(2), Sliced(0), Replicated, Replicated, Replicated),
        lambda n: [(4, n // 4, n), (n, n), (n,), (4, n // 4, n)],
        {
            "mm-ar-c": _unchanged,
            "mm-rs-c-ag": _OUT,
            "mm-fuse-rs-c-ag": _fused(_OUT),
            "ol-mm-fuse-rs-c-ag": _product_overlapped,
        },
        key=True,
    ),
    "mlp": Workload(
        mlp, {"tp": 2}, (Replicated, Sliced(1), Sliced(0), Replicated, Replicated, Replicated),
        lambda n: [(4, n // 4, n), (n, 4 * n), (4 * n, n), (n,), (4, n // 4, n)],
        {
            "mm-ar-c": _unchanged,
            "mm-rs-c-ag": _OUT,
            "mm-fuse-rs-c-ag": _fused(_OUT),
            "ol-mm-fuse-rs-c-ag": _product_overlapped,
        },
        key=True,
    ),
    "pipeline": Workload(
        pipeline, {"pp": 2, "tp": 2},
        (on(pp=Local, tp=Local), Replicated, on(pp=Local), Replicated),
        lambda n: [(4, n // 4, n), (n,), (4, n // 4, n)],
        {
            "ar-c-p2p": _unchanged,
            "rs-c-p2p-ag": _on_slices("sent"),
            "fuse-rs-c-p2p-ag": _fused(_on_slices("sent")),
            "ol-rs-c-p2p-ag": _sends_overlapped,
        },
        key=True,
    ),
}  # fmt: skip


def schedules(workload: Workload, size: int) -> tuple[Any, list[Any], dict[str, Schedule]]:
    """The typed function, arguments for it, and its schedules by name."""
    axis_types = (AxisType.Auto,) * len(workload.mesh)
    mesh = jax.make_mesh(tuple(workload.mesh.values()), tuple(workload.mesh), axis_types=axis_types)
    typed = jaxcc.typed(mesh=mesh, in_layouts=workload.layouts)(workload.function)
    args = workload.arguments(size)
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in workload.shapes(size)]
    source = typed.schedule(*avals, *args[len(avals) :])
    return typed, args, {name: tactic(source) for name, tactic in workload.schedules.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="CoCoNet's workloads and schedules")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--size", type=int, default=256, help="of the hidden dimension, or Ki")
    parser.add_argument("--print", metavar="SCHEDULE", help="show one schedule's program")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    if options.print and options.print not in workload.schedules:
        parser.error(f"--print: {options.workload} has {', '.join(workload.schedules)}")
    ranks = math.prod(workload.mesh.values())
    if jax.device_count() < ranks:
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={ranks}"
        parser.error(f"{options.workload} needs {ranks} devices: set {flag}")
    typed, args, made = schedules(workload, options.size)
    if options.print:
        print(made[options.print])
        return
    expected = jax.tree.map(np.asarray, typed.reference(*args))
    compiled = {name: schedule.compile() for name, schedule in made.items()}
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(7):
        for name, run in compiled.items():
            jax.block_until_ready(run(*args))
            start = time.perf_counter()
            jax.block_until_ready(run(*args))
            seconds[name].append(time.perf_counter() - start)
    for name, run in compiled.items():
        got = jax.tree.map(np.asarray, run(*args))
        gaps = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), got, expected)
        gap = max(jax.tree.leaves(gaps))
        median = 1e3 * statistics.median(seconds[name])
        print(f"{name:20}{run.backend:6}{median:9.2f} ms   relative difference {gap:.1e}")


if __name__ == "__main__":
    main()
