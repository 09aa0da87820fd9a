"""What the buffers of a kernel are to it."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """How an input is read.

    REDUCE: a whole array on every rank, reduced over the ranks in rank order.
    WHOLE: a whole array that all ranks hold alike, perhaps with fewer dims, or ones of size 1.
    SLICE: only the owner's block.
    SCALAR: a number, which several tensors may share.
    """

    REDUCE = "reduce"
    WHOLE = "whole"
    SLICE = "slice"
    SCALAR = "scalar"


class OutRole(Enum):
    """Where an output goes: to every rank's whole array (GATHER), to the owner's block (SLICE), or,
    if it is the reduction of an array over all dims, as one number to every rank (TOTAL).

    What is sent goes to the team of ranks that receives it: to the block of the rank in the owner's
    place (SEND), or to every rank's whole array (SEND_GATHER). Where nobody sends, there are zeros.
    """

    GATHER = "gather"
    SLICE = "slice"
    TOTAL = "total"
    SEND = "send"
    SEND_GATHER = "send gather"

    @property
    def sent(self) -> bool:
        """Whether it goes to another team."""
        return self in (OutRole.SEND, OutRole.SEND_GATHER)

    @property
    def whole(self) -> bool:
        """Whether every rank of a team gets all of it, as an array."""
        return self in (OutRole.GATHER, OutRole.SEND_GATHER)
