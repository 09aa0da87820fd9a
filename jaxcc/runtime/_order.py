"""The order of blocking collectives within one program.

XLA runs what does not depend on each other's data in any order. Two collectives that wait for all
ranks must not be run so: each rank may then wait in another one, or two alike give each other's
results. An order buffer, result of one and operand of the next, is the dependence that they lack.
A call is traced with a buffer of its own; when its program is compiled, all are led from call to
call: those in loops and nested functions, in derivatives, and in several `shard_map`s.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat
from jaxcc.layout import BackendError

TARGETS = frozenset({"jaxcc_fused", "jaxcc_move"})
"""What XLA calls our kernels; the first operand and the first result of each is the order buffer.
"""


def new_order() -> jax.Array:
    """An order buffer: u32[1], of no meaning."""
    return jnp.zeros((1,), jnp.uint32)


def in_one_order(name: str, jaxpr: Any) -> Any:
    """A program with the order buffer led through all calls of our kernels.

    Each is also told its place in the program, for messages, and so that processes that run other
    programs than each other see it.

    Raises:
      BackendError: BACKEND_ORDER if one is where that cannot be done.
    """

    def placed(eqn: Any, number: int) -> Any:
        attributes = dict(eqn.params["attributes"])
        attributes["op"] += f" (call {number} of {name})"
        return eqn.replace(params=eqn.params | {"attributes": tuple(attributes.items())})

    try:
        return _compat.chained(jaxpr, _is_ours, new_order, placed)
    except _compat.UnchainedError as error:
        raise BackendError(
            "BACKEND_ORDER",
            f"a collective of the host backend lies inside {error}",
            because="jaxcc cannot keep it in one order with the others there",
            fixes=("use backend='xla' there", "move it out"),
        ) from None


def _is_ours(eqn: Any) -> bool:
    return eqn.primitive.name == "ffi_call" and eqn.params["target_name"] in TARGETS
