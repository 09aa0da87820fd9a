"""The processes of a program and how JAX starts in them."""

from __future__ import annotations

import math
from typing import Any, Protocol

import jax
from jax._src import distributed as _distributed
from jax._src import xla_bridge as _xla_bridge

from jaxcc._coordination import HEARTBEAT_S


def backend_started() -> bool:
    """Whether JAX has looked for devices; it does so only once."""
    return _xla_bridge.backends_are_initialized()


def start_on_cpu(count: int) -> bool:
    """Makes an imported JAX start on CPU; False if it has started without `count` devices."""
    if backend_started():
        return jax.default_backend() == "cpu" and jax.device_count() == count
    jax.config.update("jax_platforms", "cpu")
    return True


def join(coordinator: str, ranks: int, rank: int, *, devices: int, timeout_s: float) -> None:
    """Makes this process one of several, before JAX starts, each with as many devices.

    `jax.distributed.initialize` does so, too, but has rank 0 run the coordination service, which
    then dies with rank 0.
    """
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    jax.config.update("jax_num_cpu_devices", devices)
    own_gpus = ",".join(str(rank * devices + k) for k in range(devices))
    jax.config.update("jax_cuda_visible_devices", own_gpus)
    client = _jax.get_distributed_runtime_client(
        coordinator,
        rank,
        init_timeout=math.ceil(timeout_s),
        use_compression=True,
        heartbeat_timeout=HEARTBEAT_S,
    )
    client.connect()
    state = _distributed.global_state
    state.coordinator_address = coordinator
    state.num_processes, state.process_id = ranks, rank
    state.client = client

    # A program that calls it for other launchers runs as it is; JAX refuses a second call.
    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if num_processes not in (None, ranks) or process_id not in (None, rank):
            raise ValueError(
                f"jax.distributed.initialize is told of rank {process_id} of {num_processes}, "
                f"but this is rank {rank} of {ranks}"
            )

    jax.distributed.initialize = initialize


class KeyValueStore(Protocol):
    """What the processes of `jax.distributed` tell each other through."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...


def key_value_store() -> KeyValueStore | None:
    """The store of `jax.distributed`; None before it is initialized."""
    return _distributed.global_state.client  # pyright: ignore[reportReturnType]
