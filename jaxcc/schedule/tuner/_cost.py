"""What a program should cost on a machine: an estimate to rank schedules by, not a prediction.

Everything runs one after another on each rank: collectives by `collective_us`; a product by its
operations or its bytes, whichever take longer; pointwise chains as XLA fuses them, by the bytes
that go in and out. A fused collective reads and writes what its ranks keep, once; what it moves it
never stores in between.

Held against CoCoNet's published times over 128 V100 of 8 DGX-2 (tests/schedule/tuner/test_cost.py),
the DGX-2 profile is 2 to 14 % low for its fused Adam from 64 MiB up, and from 21 % low (at 64 MiB)
to 5 % high for an all-reduce with FusedAdam after it. There NCCL's table takes its LL128 protocol
for faster than what the baseline ran, and the fused kernel got 68 GB/s out of the ports of a node
where 82 were measured. Below 64 MiB it is low by up to 1.9 times: NCCL 2.6 counts 49 us for a tree
over 8 nodes that was measured with 112, and PyTorch waits for the device twice in each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcc.program import COLLECTIVES, ROOTED, Op, Program, operand_type
from jaxcc.schedule.tuner._collectives import Group, collective_us
from jaxcc.schedule.tuner._profile import Profile
from jaxcc.schedule.verbs._groups import dissolved
from jaxcc.schedule.verbs._pointwise import POINTWISE

# What XLA makes part of a pointwise kernel, and what it does not run at all.
_CHAINED = POINTWISE | {"own_slice", "broadcast_in_dim", "iota", "slice", "pad", "dynamic_slice"}
_FREE = frozenset({"reshape", "squeeze", "expand_dims", "axis_index", "pvary", "name"})


@dataclass(frozen=True)
class Item:
    """A part of an estimate.

    Attributes:
      name: of the operation, or of the last one of a chain.
      kind: `all_reduce`, `fused`, `pointwise`, `dot_general`, ...
      us: microseconds on every rank.
      nbytes: that a rank reads and writes, or that a collective's whole array has.
      how: the protocol, or what bounds it.
    """

    name: str
    kind: str
    us: float
    nbytes: float
    how: str


@dataclass(frozen=True)
class Estimate:
    """Microseconds that a call of a program should take.

    Attributes:
      items: its parts in order.
      call_us: of the host.
    """

    items: tuple[Item, ...]
    call_us: float = 0.0

    @property
    def total_us(self) -> float:
        """The sum."""
        return self.call_us + sum(item.us for item in self.items)

    def __str__(self) -> str:
        rows = [f"{self.call_us:12.1f} us  call"] if self.call_us else []
        rows += [f"{one.us:12.1f} us  {one.kind:15} {one.name} ({one.how})" for one in self.items]
        return "\n".join([*rows, f"{self.total_us:12.1f} us  total"])


def cost(program: Program, profile: Profile) -> Estimate:
    """What one call of the program should cost on the machine."""
    model = _Model(program, profile)
    items = [model.item(op) for op in model.program.ops if op.kind not in _FREE]
    return Estimate((*(one for one in items if one is not None), *model.chains()), profile.call_us)


def bytes_of(t: jax.ShapeDtypeStruct) -> float:
    """Bytes of an array of this type."""
    # Random keys have an extended dtype.
    dtype: Any = jax.dtypes.canonicalize_dtype(t.dtype, allow_extended_dtype=True)
    return math.prod(t.shape) * dtype.itemsize


class _Model:
    def __init__(self, program: Program, profile: Profile) -> None:
        # Groups of work run as their parts.
        program = dissolved(program, program.ops)
        self.program = program
        self.profile = profile
        self.types = program.types()
        self.strides = _strides(program.sizes)
        self.groups: dict[Any, list[Op]] = {}
        self._chain()

    def item(self, op: Op) -> Item | None:
        """The operation's own part; None of one in a chain."""
        if op.kind in COLLECTIVES | ROOTED and op.params:
            nbytes = max(self._bytes(op.inputs), sum(map(bytes_of, op.types)))
            # A reduce and a broadcast run as all-reduces of what one rank needs or has.
            kind = "all_reduce" if op.kind in ROOTED else op.kind
            us, how = self._collective(kind, nbytes, op)
            return Item(op.name, op.kind, us + self.profile.launch_us, nbytes, how)
        if op.kind == "overlapped":
            return self._overlapped(op)
        if op.body:
            return self._fused(op)
        if self._is_chained(op):
            return None
        nbytes = self._bytes(op.inputs) + sum(map(bytes_of, op.types))
        us, how = self._memory_us(nbytes), "memory"
        if op.kind == "dot_general" and (work := self._product_us(op)) > us:
            us, how = work, "arithmetic"
        return Item(op.name, op.kind, us + self.profile.launch_us, nbytes, how)

    def chains(self) -> Iterator[Item]:
        """The pointwise chains: each reads what is made elsewhere, once, and writes what is read
        elsewhere.
        """
        for ops in self.groups.values():
            names = {op.name for op in ops}
            made = {out for op in ops for out in op.outputs}
            read: dict[str, float] = {}
            for op in ops:
                for x in set(op.value_inputs()) - made:
                    # Of what it slices, a rank reads its own block.
                    size = bytes_of(op.types[0] if op.kind == "own_slice" else self.types[x])
                    read[x] = max(read.get(x, 0.0), size)
            outside = {x for op in self.program.ops if op.name not in names for x in op.inputs}
            outside.update(self.program.outputs)
            written = sum(bytes_of(self.types[out]) for out in made & outside)
            nbytes = sum(read.values()) + written
            us = self._memory_us(nbytes) + self.profile.launch_us
            yield Item(ops[-1].name, "pointwise", us, nbytes, f"memory, {len(ops)} operations")

    def _chain(self) -> None:
        """Gathers chained operations of one shape that run between the same others."""
        level, last = self._levels()
        for op in self.program.ops:
            if not self._is_chained(op):
                continue
            shape = op.types[0].shape
            if _reduces(op):
                shape = self.types[next(op.value_inputs())].shape
            # A rank computes numbers in no time, and what is broadcast where it is read.
            if shape and op.kind not in ("broadcast_in_dim", "iota"):
                at = level[op.name] if _reduces(op) else last[op.name]
                self.groups.setdefault((at, shape), []).append(op)

    def _levels(self) -> tuple[dict[str, int], dict[str, int]]:
        """For each operation how many that are not chained precede it; and, as XLA computes a
        chain where it is read, how many may.
        """
        level: dict[str, int] = {}
        made: dict[str, int] = {}
        for op in self.program.ops:
            level[op.name] = max((made.get(x, 0) for x in op.value_inputs()), default=0)
            ends = not (op.kind in _CHAINED or op.kind in _FREE)
            made.update((out, level[op.name] + ends) for out in op.outputs)
        last: dict[str, int] = {}
        for op in reversed(self.program.ops):
            users = [user for out in op.outputs for user in self.program.users(out)]
            returned = any(out in self.program.outputs for out in op.outputs)
            later = [last[u.name] if self._is_chained(u) else level[u.name] for u in users]
            last[op.name] = level[op.name] if returned or not later else min(later)
        return level, last

    @staticmethod
    def _is_chained(op: Op) -> bool:
        return op.kind in _CHAINED or _reduces(op)

    def _fused(self, op: Op) -> Item:
        made = {out for part in op.body for out in part.outputs}
        # Those of totals move a number.
        whole = [p for p in op.body if p.kind == "all_reduce" and p.inputs[0] not in made]
        scatters = [*whole, *(part for part in op.body if part.kind == "reduce_scatter")]
        gathers = [*whole, *(part for part in op.body if part.kind == "all_gather")]
        scattered = self._bytes([x for part in scatters for x in part.inputs])
        gathered = sum(bytes_of(part.types[0]) for part in gathers)
        both = min(scattered, gathered)
        us, how = self._collective("all_reduce", both, op) if both else (0.0, "memory")
        for kind, rest in (
            ("reduce_scatter", scattered - both),
            ("all_gather", gathered - both),
        ):
            if rest:
                more, name = self._collective(kind, rest, op)
                us, how = us + more, f"{how}, {name}" if both else name
        nbytes = self._kept_bytes(op)
        us += self._memory_us(nbytes) + self.profile.launch_us
        return Item(op.name, "fused", us, scattered + gathered + nbytes, how)

    def _overlapped(self, op: Op) -> Item:
        """The longest part hides the others, all but one chunk of each, where the machine computes
        while it communicates; each chunk of each part is a launch of its own.
        """
        chunks: int = op.params["chunks"]
        parts = [item for part in op.body if (item := self.item(part)) is not None]
        launches = (chunks - 1) * len(parts) * self.profile.launch_us
        us = sum(item.us for item in parts) + launches
        if self.profile.overlaps and parts:
            longest = max(item.us for item in parts)
            us = longest + (us - launches - longest) / chunks + launches
        else:
            # What is read in pieces is put together again.
            us += self._memory_us(2 * sum(map(bytes_of, op.types)))
        nbytes = sum(item.nbytes for item in parts)
        return Item(op.name, op.kind, us, nbytes, f"{chunks} chunks of {len(parts)} parts")

    def _kept_bytes(self, op: Op) -> float:
        """What a rank reads beside what is reduced, and writes beside what is gathered."""
        made = {out for part in op.body for out in part.outputs}
        gathered = {part.outputs[0] for part in op.body if part.kind == "all_gather"}
        read: dict[str, float] = {}
        for part in op.body:
            if part.kind not in ("reduce_scatter", "all_reduce"):
                for x in set(part.value_inputs()) - made:
                    read[x] = min(bytes_of(self.types[x]), bytes_of(part.types[0]))
        written = sum(bytes_of(self.types[out]) for out in op.outputs if out not in gathered)
        return sum(read.values()) + written

    def _collective(self, kind: str, nbytes: float, op: Op) -> tuple[float, str]:
        axes: tuple[str, ...] = op.params["axes"]
        ranks = math.prod(self.program.sizes[axis] for axis in axes)
        group = Group(ranks, min(self.strides[axis] for axis in axes))
        protocols = self.profile.fused if op.body else self.profile.protocols
        return collective_us(kind, nbytes, group, self.profile, protocols)

    def _product_us(self, op: Op) -> float:
        ((contracting, _), _) = op.eqn.params["dimension_numbers"]
        left = operand_type(op.inputs[0], self.types)
        work = 2.0 * math.prod(op.types[0].shape) * math.prod(left.shape[d] for d in contracting)
        wide, half = self.profile.tflops
        rate = half if np.dtype(left.dtype).itemsize <= 2 else wide
        return work / (rate * 1e6)

    def _memory_us(self, nbytes: float) -> float:
        return nbytes / (self.profile.memory_gbps * 1e3)

    def _bytes(self, operands: Any) -> float:
        return sum(bytes_of(operand_type(x, self.types)) for x in dict.fromkeys(operands))


def _reduces(op: Op) -> bool:
    """Whether XLA makes the operation the end of a chain."""
    return op.kind.startswith(("reduce_", "arg")) and op.kind not in (
        *("reduce_scatter", "reduce_precision", "reduce_window"),
    )


def _strides(sizes: Mapping[str, int]) -> dict[str, int]:
    """How far neighbours along each axis are apart: the last axis is the minor one."""
    strides, stride = dict[str, int](), 1
    for axis, size in reversed(list(sizes.items())):
        strides[axis] = stride
        stride *= size
    return strides
