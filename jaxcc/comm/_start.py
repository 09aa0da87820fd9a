"""Collectives in two parts: what lies between may overlap, where the backend can."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxcc.comm._all_gather import all_gather, all_gather_v
from jaxcc.comm._all_reduce import all_reduce
from jaxcc.comm._all_to_all import all_to_all, all_to_all_v
from jaxcc.comm._broadcast import broadcast
from jaxcc.comm._gather import gather, gather_v
from jaxcc.comm._ppermute import ppermute
from jaxcc.comm._reduce import reduce
from jaxcc.comm._reduce_scatter import reduce_scatter, reduce_scatter_v
from jaxcc.comm._scatter import scatter, scatter_v
from jaxcc.layout import BackendError


@functools.partial(jax.tree_util.register_dataclass, data_fields=["result"], meta_fields=[])
@dataclass(frozen=True)
class Started:
    """A collective that has been started; `done` gives its result. It may be carried by loops and
    functions, as it is a pytree."""

    result: Any


def done(started: Started) -> Any:
    """The result of what a function `*_start` gave.

    Raises:
      BackendError: BACKEND_ARGUMENT for anything else.
    """
    if not isinstance(started, Started):
        raise BackendError(
            "BACKEND_ARGUMENT",
            f"done is given {type(started).__name__}, no collective that was started",
            fixes=("pass what a function such as jaxcc.comm.all_reduce_start returned",),
        )
    return started.result


def _starting(collective: Callable[..., Any]) -> Callable[..., Started]:
    def start(*args: Any, **options: Any) -> Started:
        return Started(collective(*args, **options))

    name = collective.__name__
    start.__name__ = start.__qualname__ = f"{name}_start"
    start.__doc__ = f"""`{name}` in two parts: pass what this returns to `done`, for its result.

    Work between the two that does not need the result may overlap with it on a backend that runs
    collectives beside other work; `explain` says what the chosen one does.

    Args and errors: those of `{name}`.
    """
    return start


all_gather_start = _starting(all_gather)
all_gather_v_start = _starting(all_gather_v)
all_reduce_start = _starting(all_reduce)
all_to_all_start = _starting(all_to_all)
all_to_all_v_start = _starting(all_to_all_v)
broadcast_start = _starting(broadcast)
gather_start = _starting(gather)
gather_v_start = _starting(gather_v)
ppermute_start = _starting(ppermute)
reduce_scatter_start = _starting(reduce_scatter)
reduce_scatter_v_start = _starting(reduce_scatter_v)
reduce_start = _starting(reduce)
scatter_start = _starting(scatter)
scatter_v_start = _starting(scatter_v)
