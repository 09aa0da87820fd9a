"""Groups of ranks in several processes: what these must agree on, and the memory that they share.

Processes tell each other through the key-value store of `jax.distributed`, while they trace.
"""

from __future__ import annotations

import functools
import json
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxcc import _compat, _peers
from jaxcc._settings import timeout_s
from jaxcc._version import __version__
from jaxcc.layout import BackendError
from jaxcc.runtime._native import native

_FACTS: dict[str, Callable[[], str]] = {"jaxcc version": lambda: __version__}
PROCESS_SHIFT = 20
"""Where the number of a process stands in the name of a rank's device."""

_SPACE = "jaxcc/"
_WAITED = "DEADLINE_EXCEEDED"
# How often who waits for a process looks whether it still runs.
_LOOK_S = 0.2
_A_MOMENT_S = 0.05

# An outbox, of operands and results, stays in the caches of a rank and those that read from it. A
# smaller one means more waiting, which is long where ranks share cores with other work.
_OUTBOX = 1 << 20
_MAX_OUTBOX = 1 << 28


def must_agree(what: str, value: Callable[[], str]) -> None:
    """From now on a group is refused unless `value()` is the same in all of its processes."""
    _FACTS[what] = value


def meet_processes(processes: Iterable[int]) -> None:
    """Returns once all processes are known to share memory with this one, and to agree with it.

    Raises:
      BackendError: BACKEND_NOT_LOCAL if a process is on another machine, in another container or
        belongs to another user, BACKEND_DISAGREE, BACKEND_TIMEOUT if one has not come so far,
        BACKEND_RANK_DIED if one never will.
    """
    mine = _facts()
    for process in sorted(set(processes) - {jax.process_index()}):
        theirs = _facts_of(process)
        if theirs["place"] != mine["place"]:
            raise BackendError(
                "BACKEND_NOT_LOCAL",
                f"process {process} cannot share memory with process {jax.process_index()}",
                because="they run on different machines, in different containers or as different "
                f"users: {theirs['host']} and {mine['host']}",
                fixes=("use backend='xla' between them",),
            )
        for what, value in mine["agree"].items():
            other = theirs["agree"].get(what, "unknown")
            if other != value:
                raise BackendError(
                    "BACKEND_DISAGREE",
                    f"the processes of one group have different values of: {what}",
                    operands=(
                        f"process {jax.process_index()}: {value}",
                        f"process {process}: {other}",
                    ),
                    fixes=("start all processes from one installation, with the same settings",),
                )


def open_channels(groups: Iterable[tuple[int, ...]], op: str, unit_bytes: int = 1) -> np.int64:
    """Gives each group that has ranks in this process and in others its channel.

    The process of a group's rank 0 makes the memory and does not wait for the others; they wait.

    Args:
      groups: each group's ranks, as `Groups` names them.
      op: for messages.
      unit_bytes: what a rank leaves for the others in the smallest step of the operation.

    Returns:
      The bytes of an outbox, by which the FFI targets find the channels.

    Raises:
      BackendError: BACKEND_SHARED_MEMORY if there is none, BACKEND_TIMEOUT, BACKEND_RANK_DIED.
    """
    outbox = _outbox_for(unit_bytes)
    for members in groups:
        _open_channel(members, outbox, op)
    return np.int64(outbox)


def _open_channel(members: tuple[int, ...], outbox: int, op: str) -> None:
    here = jax.process_index()
    processes = {member >> PROCESS_SHIFT for member in members}
    if len(processes) == 1 or here not in processes:
        return
    module = native()
    if module.has_channel(list(members), outbox):
        return
    key = f"channel/{outbox}/{'.'.join(map(str, members))}"
    pids = [_peers.pid_of(member >> PROCESS_SHIFT) for member in members]
    if members[0] >> PROCESS_SHIFT == here:
        address, problem = module.create_channel(list(members), pids, outbox, here)
        if not problem:
            _store().key_value_set(_SPACE + key, address)
    else:
        address = _read(key, members[0] >> PROCESS_SHIFT, op)
        problem = module.attach_channel(list(members), pids, outbox, here, address)
    if problem:
        _check_alive(members[0] >> PROCESS_SHIFT, op)
        raise BackendError(
            "BACKEND_SHARED_MEMORY",
            f"{op}: process {here} cannot share memory with the others",
            because=problem,
            fixes=(
                "start all ranks as one user, in one container, with /proc mounted",
                f"give the container {2 * outbox * len(members) >> 10} KiB more memory",
                "use backend='xla'",
            ),
        )


def _outbox_for(unit_bytes: int) -> int:
    if unit_bytes > _MAX_OUTBOX:
        raise BackendError(
            "BACKEND_SHARED_MEMORY",
            f"a kernel would exchange {unit_bytes >> 20} MiB at once between processes",
            fixes=("reduce shorter rows in it, or fuse fewer arrays",),
        )
    return max(_OUTBOX, 1 << (unit_bytes - 1).bit_length())


def _facts() -> dict[str, Any]:
    """What this process says of itself; the others can read it from now on."""
    agree = {what: value() for what, value in _FACTS.items()}
    facts = {"place": _peers.place(), "host": socket.gethostname(), "agree": agree}
    _publish(json.dumps(facts, sort_keys=True))
    return facts


@functools.cache
def _publish(facts: str) -> None:
    _peers.announce(jax.process_index())
    _store().key_value_set(f"{_SPACE}process/{jax.process_index()}", facts, allow_overwrite=True)


@functools.cache
def _facts_of(process: int) -> dict[str, Any]:
    return json.loads(_read(f"process/{process}", process, "a group of several processes"))


def _store() -> _compat.KeyValueStore:
    store = _compat.key_value_store()
    if store is None:
        raise BackendError(
            "BACKEND_NOT_LOCAL",
            "the mesh has devices of other processes, but jax.distributed is not initialized here",
            fixes=("call jax.distributed.initialize before JAX is used",),
        )
    return store


def _check_alive(process: int, op: str) -> None:
    if _peers.has_ended(process):
        raise BackendError(
            "BACKEND_RANK_DIED",
            f"{op}: process {process} (pid {_peers.pid_of(process)}) ended before it was ready",
            fixes=("its own output says why; start all processes again",),
        ) from None


def _read(key: str, process: int, op: str) -> str:
    """What another process has stored, or will have within the limit of time."""
    store, limit = _store(), timeout_s()
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        # What it stored before it ended is there.
        ended = _peers.has_ended(process)
        try:
            wait = _A_MOMENT_S if ended else max(_A_MOMENT_S, min(left, _LOOK_S))
            return store.blocking_key_value_get(_SPACE + key, int(1000 * wait))
        except Exception as error:
            if ended:
                _check_alive(process, op)
            if left <= _LOOK_S or _WAITED not in str(error):
                raise BackendError(
                    "BACKEND_TIMEOUT",
                    f"{op}: process {process} did not come to trace it within {limit:g} s",
                    because=str(error).splitlines()[0],
                    fixes=("trace the same program in every process", "raise JAXCC_TIMEOUT_S"),
                ) from None
