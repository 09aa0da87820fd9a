"""Calls a list of moves between the buffers of a group from a traced program."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxcc.runtime._channels import open_channels
from jaxcc.runtime._compiled import SPARE, new_order
from jaxcc.runtime._groups import Groups
from jaxcc.runtime._native import native, register
from jaxcc.runtime._place import place_of

ZEROS = -1
"""The source of a move that stores zeros."""
EVERYONE = -2
"""The source of a move that stores the reduction of all ranks' operands."""


@dataclass(frozen=True)
class Side:
    """Where the elements of a move lie in a buffer, from `offset` on: in runs of `run` elements,
    `stride` from one to the next."""

    offset: int
    run: int
    stride: int


@dataclass(frozen=True)
class Move:
    """`count` elements of the operand of rank `source` for the result of rank `target`."""

    source: int
    target: int
    count: int
    at: Side
    to: Side


def move_call(
    groups: Groups,
    moves: Sequence[Move],
    x: jax.Array,
    result: jax.ShapeDtypeStruct,
    *,
    op: str,
    combine: str = "",
) -> jax.Array:
    """Runs moves from the ranks' `x` to their results, inside `jax.shard_map`.

    The moves write each element of every rank's result once. Ranks wait as in `fused_call`.

    Args:
      groups: who runs it together.
      moves: the same list on every rank.
      x: an array of any dtype.
      result: shape and varying axes of the result, which has the dtype of `x`.
      op: name of the operation in error messages.
      combine: the reduction of moves from EVERYONE, one that `has_reduction` knows.

    Returns:
      The result.

    Raises:
      BackendError: what `place_of` raises; of groups with ranks in other processes
        BACKEND_SHARED_MEMORY or BACKEND_TIMEOUT if they cannot meet; when it runs, BACKEND_MESH if
        the `shard_map` has other devices in a group.
    """
    place = place_of(groups, op)
    register()
    size = x.dtype.itemsize
    order = new_order()
    call = jax.ffi.ffi_call(
        "jaxcc_move", (jax.ShapeDtypeStruct.like(order), result), input_output_aliases={0: 0}
    )
    _, y = call(
        order,
        place,
        x,
        op=op,
        devices=np.asarray(groups.devices, np.int64),
        ranks=np.int64(groups.ranks),
        outbox=open_channels(groups, op),
        combine=combine,
        bytes=np.asarray((x.size * size, result.size * size), np.int64),
        moves=np.fromiter(
            itertools.chain.from_iterable(_in_bytes(move, size) for move in moves), np.int64
        ),
        **{SPARE: ()},
    )
    return y


def _in_bytes(move: Move, size: int) -> tuple[int, ...]:
    sides = (move.at.offset, move.at.run, move.at.stride, move.to.offset, move.to.run)
    numbers = (move.count, *sides, move.to.stride)
    return move.source, move.target, *(number * size for number in numbers)


def has_reduction(key: str) -> bool:
    """Whether moves can reduce with `key`, <op>.<dtype> such as "sum.f32"."""
    return native().has_reduction(key)
