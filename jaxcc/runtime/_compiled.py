"""What becomes of the calls of our kernels when their program is compiled.

XLA runs what does not depend on each other's data in any order. Two collectives that wait for all
ranks must not be run so: each rank may then wait in another one, or two alike give each other's
results. An order buffer, result of one and operand of the next, is the dependence that they lack.
A call is traced with a buffer of its own; now all are led from call to call: those in loops and
nested functions, in derivatives, and in several `shard_map`s. XLA's own collectives, and MPI's,
have their places between them: XLA has a thread for each rank, which one of ours and one of its own
would otherwise both wait on.

And where nobody reads an operand afterwards, a result may take its buffer: ranks then keep half as
much memory in their caches, and take no new one from the operating system.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat
from jaxcc.layout import BackendError

TARGETS = frozenset({"jaxcc_fused", "jaxcc_move"})
"""What XLA calls our kernels. The first operand and the first result of each is the order buffer;
its attribute `SPARE` is for this module alone."""

SPARE = "spare"
"""Pairs of an operand and a result that may take its buffer, if nobody reads that afterwards."""


def new_order() -> jax.Array:
    """An order buffer: u32[1], of no meaning."""
    return jnp.zeros((1,), jnp.uint32)


def compiled(name: str, jaxpr: Any, donated: frozenset[int]) -> Any:
    """A program with the order buffer led through all calls of our kernels.

    Each is also told its place in the program, for messages, and so that processes that run other
    programs than each other see it.

    Args:
      name: of the program.
      jaxpr: the program.
      donated: numbers of its operands that nobody reads afterwards.

    Raises:
      BackendError: BACKEND_ORDER if a call is where that cannot be done.
    """

    def placed(eqn: Any, number: int, free: frozenset[int]) -> Any:
        attributes = dict(eqn.params["attributes"])
        attributes["op"] += f" (collective {number} in {name})"
        aliases = dict(eqn.params["input_output_aliases"])
        for operand, result in attributes.pop(SPARE, ()):
            if operand in free:
                aliases[operand] = result
        params = {"attributes": tuple(attributes.items())}
        params["input_output_aliases"] = tuple(aliases.items())
        return eqn.replace(params=eqn.params | params)

    links = _compat.Links(new_order, _is_ours, placed, _is_foreign, _after, _since)
    try:
        return _compat.chained(jaxpr, donated, links)
    except _compat.UnchainedError as error:
        raise BackendError(
            "BACKEND_ORDER",
            f"{error} cannot be kept in one order with the host backend's collectives",
            because="XLA would run it beside one of them, and ranks then wait for one another",
            fixes=(
                "use backend='xla' for all of them",
                "move it out of what it is in; of keys, send jax.random.key_data",
            ),
        ) from None


def _is_ours(eqn: Any) -> bool:
    return eqn.primitive.name == "ffi_call" and eqn.params["target_name"] in TARGETS


# What has axes and does not meet other ranks.
_ALONE = frozenset({"axis_index", "pcast", "preduced", "pvary", "vary_unreduced_cast"})


def _is_foreign(eqn: Any) -> bool:
    """Whether it is a collective that is not ours: of XLA, several of them in one, or of MPI; or a
    program that was exported, which may have some.
    """
    op = _compat.op_name(eqn)
    named = any(isinstance(axis, str) for axis in _compat.axis_names(eqn))
    return (named and op not in _ALONE) or op == "call_exported" or op.endswith("_mpi")


def _after(order: jax.Array, *xs: jax.Array) -> Any:
    aliases = {number + 1: number for number in range(len(xs))}
    return _nothing([jax.ShapeDtypeStruct.like(x) for x in xs], aliases)(order, *xs)


def _since(order: jax.Array, *xs: jax.Array) -> Any:
    return _nothing([jax.ShapeDtypeStruct.like(order)], {0: 0})(order, *xs)


def _nothing(types: list[jax.ShapeDtypeStruct], aliases: dict[int, int]) -> Any:
    """A call that hands on buffers, when all its operands are there."""
    return jax.ffi.ffi_call("jaxcc_nothing", types, input_output_aliases=aliases)
