"""Measures this machine's profile, within seconds."""

from __future__ import annotations

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
_REPEATS = 5


def profile_this_machine(
    devices: Any = None, *, progress: Callable[[str], None] | None = None
) -> Profile:
    """The profile of this process' devices: sums of 1 KiB and 4 MiB by XLA and by a kernel, a copy
    of 16 MiB on each rank at once, steps of a program, and a product.

    Args:
      devices: all of the process', if not given.
      progress: hears what is measured.
    """
    tell = progress or (lambda _: None)
    chosen = np.asarray(devices if devices is not None else jax.devices()).ravel()
    mesh = Mesh(chosen, (_AXIS,), axis_types=(AxisType.Auto,))
    ranks = len(chosen)
    tell("copies")
    empty = _us(mesh, lambda x: x + 1, 8)
    copied = max(1e-3, _us(mesh, lambda x: x + 1, _COPIED) - empty)
    memory_gbps = 2 * 4 * _COPIED / copied / 1e3
    tell("products")
    launch = max(0.1, (_us(mesh, _chain, 64, (8, 8)) - empty) / _CHAIN)
    product = max(1e-3, _us(mesh, lambda x: x @ x, _SIDE**2, (_SIDE, _SIDE)) - empty)
    tflops = 2 * _SIDE**3 / product / 1e6
    tell("sums")
    times = [_us(mesh, lambda x: jax.lax.psum(x, _AXIS), n) - empty for n in (_SMALL, _LARGE)]
    protocol, link_gbps = _fitted("XLA", times, ranks)
    fused = _kernel(mesh, empty, link_gbps, ranks) or protocol
    return Profile(
        name="this machine",
        source=f"measured: {_store.machine()}",
        ranks_per_node=max(ranks, 1),
        intra_gbps=link_gbps,
        inter_gbps=link_gbps,
        memory_gbps=memory_gbps,
        launch_us=launch,
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
    return _best_us(lambda: compiled(x))


def _best_us(work: Callable[[], Any]) -> float:
    """The shortest of a few calls: what the machine can do when nothing else runs."""
    for _ in range(2):
        jax.block_until_ready(work())
    return min(seconds(work) for _ in range(_REPEATS)) * 1e6


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


def _kernel(mesh: Mesh, empty: float, link_gbps: float, ranks: int) -> Protocol | None:
    """Generated kernels' sums; None where there are no kernels."""
    sizes = [-(-n // ranks) * ranks for n in (_SMALL, _LARGE)]
    try:
        times = [_kernel_us(mesh, size) - empty for size in sizes]
    except (BackendError, CodegenError):
        return None
    return _fitted("kernel", times, ranks, link_gbps)[0]


def _kernel_us(mesh: Mesh, size: int) -> float:
    aval = jax.ShapeDtypeStruct((size,), jnp.float32)
    (given,) = flatten_layouts((Local,), (aval,), (_AXIS,), "in_layouts", ["x"])
    (result,) = flatten_layouts((Replicated,), (aval,), (_AXIS,), "out_layouts", ["x"])
    source = Source(
        lambda x: jax.lax.psum(x, _AXIS), (aval,), mesh, ("x",), (given,), (result,), True
    )
    (sum_,) = (op.name for op in Schedule(source).program.ops)
    s = Schedule(source).split(sum_).fuse(f"{sum_}.scatter", f"{sum_}.gather", name="fused")
    compiled = s.compile("host")
    x = jax.device_put(np.ones((mesh.size, size), np.float32), jax.NamedSharding(mesh, P(_AXIS)))
    return _best_us(lambda: compiled(x))
