"""Measures this machine's profile, within seconds.

What is measured is each time the shortest of many calls: what the machine can do when nothing else
runs. A busy machine gets fewer calls, not more time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxcc.layout import BackendError, CodegenError, Local, Replicated, flatten_layouts
from jaxcc.schedule._schedule import Schedule
from jaxcc.schedule._source import Source
from jaxcc.schedule.tuner import _store
from jaxcc.schedule.tuner._profile import Profile, Protocol
from jaxcc.schedule.tuner._timing import seconds

_AXIS = "ranks"
_SMALL, _LARGE = 1 << 8, 1 << 20  # elements of f32 that a rank sums
_COPIED = 1 << 22
_SIDE = 512
_CHAIN = 64
# Calls that are timed: as many as fit into a share of the time, within bounds.
_SHARE_S, _FEWEST, _MOST = 0.3, 3, 300


def profile_this_machine(
    devices: Any = None, *, progress: Callable[[str], None] | None = None
) -> Profile:
    """The profile of this process' devices: sums of 1 KiB and 4 MiB by XLA and by a kernel, a copy
    of 16 MiB on each rank at once, steps of a program, and a product. It takes some 2 s, of which
    most is compiling.

    Args:
      devices: all of the process', if not given.
      progress: hears what is measured.
    """
    tell = progress or (lambda _: None)
    chosen = np.asarray(devices if devices is not None else jax.devices()).ravel()
    mesh = Mesh(chosen, (_AXIS,), axis_types=(AxisType.Auto,))
    ranks = len(chosen)
    tell("calls")
    empty = _us(mesh, lambda x: x + 1, 8)
    tell("copies")
    copied = max(1e-3, _us(mesh, lambda x: x + 1, _COPIED) - empty)
    memory_gbps = 2 * 4 * _COPIED / copied / 1e3
    tell("products")
    launch = max(0.1, (_us(mesh, _chain, 64, (8, 8)) - empty) / _CHAIN)
    product = max(1e-3, _us(mesh, lambda x: x @ x, _SIDE**2, (_SIDE, _SIDE)) - empty)
    tflops = 2 * _SIDE**3 / product / 1e6
    tell("sums")
    # A schedule's calls take longer than those of `jax.jit`.
    calls = [_scheduled(mesh, lambda x: x + 1, _SMALL, Local)]
    sizes = [-(-n // ranks) * ranks for n in (_SMALL, _LARGE)]
    calls += [_scheduled(mesh, _sum, n, Replicated) for n in sizes]
    with contextlib.suppress(BackendError, CodegenError):
        calls += [_scheduled(mesh, _sum, n, Replicated, fused=True) for n in sizes]
    call, *times = _best_us(*calls)
    protocol, link_gbps = _fitted("XLA", [us - call for us in times[:2]], ranks)
    fused = protocol
    if times[2:]:
        fused, _ = _fitted("kernel", [us - call for us in times[2:]], ranks, link_gbps)
    return Profile(
        name="this machine",
        source=f"measured: {_store.machine()}",
        ranks_per_node=max(ranks, 1),
        intra_gbps=link_gbps,
        inter_gbps=link_gbps,
        memory_gbps=memory_gbps,
        launch_us=launch,
        call_us=max(0.0, call - launch),
        tflops=(tflops, tflops),
        protocols=(protocol,),
        fused=(fused,),
    )


def _chain(x: Any) -> Any:
    """Products too small to take time."""
    for _ in range(_CHAIN):
        x = x @ x
    return x


def _us(mesh: Mesh, f: Callable[[Any], Any], size: int, shape: tuple[int, ...] = ()) -> float:
    """Microseconds of a call of `f` on `size` elements of each rank."""
    per_rank = jax.shard_map(
        lambda x: f(x.reshape(shape or (size,)))[None],
        mesh=mesh,
        in_specs=P(_AXIS),
        out_specs=P(_AXIS),
        check_vma=False,
    )
    compiled = jax.jit(per_rank)
    x = jax.device_put(
        np.full((mesh.size, size), 1e-3, np.float32), jax.NamedSharding(mesh, P(_AXIS))
    )
    (us,) = _best_us(lambda: compiled(x))
    return us


def _best_us(*works: Callable[[], Any]) -> list[float]:
    """The shortest of some calls of each, in turns, after one that compiles."""
    for work in works:
        jax.block_until_ready(work())
    until, rounds = time.perf_counter() + _SHARE_S * len(works), list[list[float]]()
    while len(rounds) < _FEWEST or (len(rounds) < _MOST and time.perf_counter() < until):
        rounds.append([seconds(work) for work in works])
    return [min(times) * 1e6 for times in zip(*rounds, strict=True)]


def _fitted(
    name: str, times: list[float], ranks: int, link_gbps: float | None = None
) -> tuple[Protocol, float]:
    """Latency and bandwidth from the times of a small and a large sum; of a given link, its
    share.
    """
    small, large = times
    moved = 2 * max(1, ranks - 1) / max(2, ranks) * 4
    base = max(0.1, small)
    gbps = moved * (_LARGE - _SMALL) / max(1e-3, large - small) / 1e3
    link = gbps if link_gbps is None else link_gbps
    return Protocol(name, "direct", base, 0, 0, gbps / link), link


def _sum(x: Any) -> Any:
    return jax.lax.psum(x, _AXIS)


def _scheduled(
    mesh: Mesh, f: Callable[[Any], Any], size: int, result: Any, *, fused: bool = False
) -> Callable[[], Any]:
    """A call of `f` as a schedule, with the sum in it as a generated kernel or not.

    Raises:
      CodegenError, BackendError: there are no kernels here.
    """
    aval = jax.ShapeDtypeStruct((size,), jnp.float32)
    (given,) = flatten_layouts((Local,), (aval,), (_AXIS,), "in_layouts", ["x"])
    (out,) = flatten_layouts((result,), (aval,), (_AXIS,), "out_layouts", ["x"])
    s = Schedule(Source(f, (aval,), mesh, ("x",), (given,), (out,), True))
    if fused:
        (name,) = (op.name for op in s.program.ops)
        s = s.split(name).fuse(f"{name}.scatter", f"{name}.gather", name="fused")
    compiled = s.compile("host" if fused else "xla")
    x = jax.device_put(np.ones((mesh.size, size), np.float32), jax.NamedSharding(mesh, P(_AXIS)))
    return lambda: compiled(x)
