"""The order of blocking collectives within one program.

XLA runs what does not depend on each other's data in any order. Two collectives that wait for all
ranks must not be run so: each rank may then wait in another one. An order buffer, result of one and
operand of the next, is the dependence that they lack.
"""

from __future__ import annotations

import threading

import jax

from jaxcc import _compat
from jaxcc.runtime._fused import new_order


class TraceOrders(threading.local):
    """Chains the calls of one trace: the body of a shard_map, jit or loop, what is under `vmap` or
    a derivative in it, and its backward pass.

    A call in a nested function starts a chain of its own, which the calls around it precede or
    follow only as their data require.
    """

    # Traces that are left for another (a function's, a loop's body) and returned to nest no deeper.
    _DEPTH = 8

    def __init__(self) -> None:
        self._latest: list[tuple[object, jax.Array]] = []

    def take(self, after: jax.Array | None = None) -> jax.Array:
        here = _compat.trace_state()
        found = [order for state, order in self._latest if state == here]
        if after is not None:
            found.append(after)
        # Their values do not matter, only that this one depends on all of them.
        return sum(found[1:], start=found[0]) if found else new_order()

    def put(self, order: jax.Array | None) -> None:
        assert order is not None
        # JAX's leak checker looks for kept traced values; such debugging runs go without the order.
        if jax.config.jax_check_tracer_leaks:  # pyright: ignore[reportAttributeAccessIssue]
            return
        here = _compat.trace_state()
        others = [entry for entry in self._latest if entry[0] != here]
        kept = _compat.outside_transforms(order)
        self._latest = [*others[1 - self._DEPTH :], (here, kept)]


ORDERS = TraceOrders()
"""The chain of all calls of our kernels: collectives, schedules and optimizers of one program."""
