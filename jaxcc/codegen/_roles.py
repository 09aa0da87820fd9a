"""What the buffers of a kernel are to it."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """How an input is read.

    REDUCE: a whole array on every rank, reduced over the ranks in rank order.
    WHOLE: a whole array that all ranks hold alike, perhaps with fewer dims, or ones of size 1.
    SLICE: only the owner's block.
    SCALAR: a number, shared by all tensors.
    """

    REDUCE = "reduce"
    WHOLE = "whole"
    SLICE = "slice"
    SCALAR = "scalar"


class OutRole(Enum):
    """Where an output goes: to every rank's whole array (GATHER), to the owner's block (SLICE), or,
    if it is the reduction of an array over all dims, as one number to every rank (TOTAL).
    """

    GATHER = "gather"
    SLICE = "slice"
    TOTAL = "total"
