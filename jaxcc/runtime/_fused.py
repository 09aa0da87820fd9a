"""Calls a fused kernel from a traced program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import jax
import numpy as np

from jaxcc.layout import BackendError
from jaxcc.runtime._channels import open_channels
from jaxcc.runtime._compiled import SPARE, new_order
from jaxcc.runtime._groups import Groups
from jaxcc.runtime._native import has_kernel, register
from jaxcc.runtime._place import place_of


class Reach(IntEnum):
    """Whose a buffer is, as ffi/protocol/staging.h numbers them.

    OWNER: read or written by the owner of a part alone.
    TEAM: an operand that the whole team reads, or a result that all of it gets.
    RECEIVER: a result for the rank in the owner's place of the team that receives it.
    RECEIVERS: a result for all ranks of that team.
    TOTAL: a number for all ranks.
    """

    OWNER = 0
    TEAM = 1
    RECEIVER = 2
    RECEIVERS = 3
    TOTAL = 4


@dataclass(frozen=True)
class Kind:
    """What tensors of one kind have in common, for which a kernel has one program.

    Attributes:
      operands: how many each has.
      results: how many.
      totals: how many of the results are numbers that all elements make.
      row: elements that the kernel needs together; of each row of `extent`, a rank's block is a
        multiple of it.
      reach: of each operand, then of each result; by default all are the team's.
    """

    operands: int
    results: int
    totals: int = 0
    row: int = 1
    reach: tuple[Reach, ...] = ()

    def __post_init__(self) -> None:
        if not self.reach:
            every = (Reach.TEAM,) * (self.operands + self.results)
            object.__setattr__(self, "reach", every)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a fused call, as one rank holds its parts.

    There are `outer` rows of `extent` elements; of each, rank r of a team owns the r-th block, the
    last ranks perhaps a shorter one or none.

    Attributes:
      operands: whole arrays (outer * extent elements), this rank's slices (outer * block
        elements), or arrays that the kernel broadcasts.
      results: shape, dtype and varying axes of each result, whole or a slice.
      outer: rows.
      extent: elements in a row.
      aliases: index of an operand -> index of the result that takes its buffer.
      scalars: 0-d arrays that the kernel reads for it, and perhaps for other tensors.
      kind: which of the kernel's programs it is for.
      block: elements of a block; None if ceil(extent / ranks).
      spare: as `aliases`, of operands whose buffers are free only if nobody reads them after the
        call; whether anybody does is seen when the program is compiled.
    """

    operands: tuple[jax.Array, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    outer: int
    extent: int
    aliases: Mapping[int, int] = field(default_factory=dict[int, int])
    scalars: tuple[jax.Array, ...] = ()
    kind: int = 0
    block: int | None = None
    spare: Mapping[int, int] = field(default_factory=dict[int, int])

    def division(self, ranks: int) -> tuple[int, int, int]:
        """Its rows, the elements in one, and those in a rank's block."""
        block = -(-self.extent // ranks) if self.block is None else self.block
        return self.outer, self.extent, block


@dataclass(frozen=True)
class Teams:
    """How a group is divided: tensors among the ranks of a team, `ranks` of them; the teams lie one
    after another.

    Attributes:
      ranks: in a team.
      targets: for each team the one that it sends to, or -1; empty if none sends.
    """

    ranks: int
    targets: tuple[int, ...] = ()


def fused_call(
    kernel: str,
    groups: Groups,
    tensors: Sequence[Tensor],
    *,
    op: str,
    kinds: Sequence[Kind] = (),
    teams: Teams | None = None,
) -> list[tuple[jax.Array, ...]]:
    """Runs a kernel on the buffers of all ranks of each group, inside `jax.shard_map`.

    Each rank waits for the others up to JAXCC_TIMEOUT_S (300) seconds; then the program fails with
    an error that names the ranks that did not come. Ranks of other processes are met while tracing.

    Args:
      kernel: key of a kernel that is built in or loaded.
      groups: who runs it together. The ranks are those of the enclosing `shard_map`, which may have
        the devices of a group in another order.
      tensors: of any shapes and sizes.
      op: name of the operation in error messages.
      kinds: those of the tensors; by default one, of tensors like the first.
      teams: how the groups are divided; None if each is one team.

    Returns:
      Each tensor's results.

    Raises:
      BackendError: BACKEND_NOT_BUILT without the C++ part, BACKEND_KERNEL if the kernel is not
        loaded, BACKEND_ARGUMENT if a tensor is not of its kind, BACKEND_AXIS or BACKEND_MESH if the
        axes of the groups are not bound here or have other sizes; of groups with ranks in other
        processes BACKEND_SHARED_MEMORY or BACKEND_TIMEOUT if they cannot meet. When it runs,
        BACKEND_MESH if the `shard_map` has other devices in a group.
    """
    if not has_kernel(kernel):
        raise BackendError("BACKEND_KERNEL", f"{op}: no kernel {kernel!r} is loaded")
    kinds = tuple(kinds) or tuple(Kind(len(t.operands), len(t.results)) for t in tensors[:1])
    for tensor in tensors:
        kind = kinds[tensor.kind]
        counts = len(tensor.operands), len(tensor.results)
        if counts != (kind.operands, kind.results):
            raise BackendError(
                "BACKEND_ARGUMENT",
                f"{op}: tensors of a kind have equally many operands and results, not "
                f"{(kind.operands, kind.results)} and {counts}",
            )
    place = place_of(groups, op)
    register()
    teams = teams or Teams(groups.ranks)
    unit_bytes = max((_unit_bytes(t, kinds[t.kind], teams) for t in tensors), default=1)
    scalars, first_scalar = _shared([tensor.scalars for tensor in tensors])
    aliases, spare = {0: 0}, dict[int, int]()
    operand, result = 2 + len(scalars), 1
    for tensor in tensors:
        aliases.update((operand + i, result + k) for i, k in tensor.aliases.items())
        spare.update((operand + i, result + k) for i, k in tensor.spare.items())
        operand, result = operand + len(tensor.operands), result + len(tensor.results)
    order = new_order()
    call = jax.ffi.ffi_call(
        "jaxcc_fused",
        (jax.ShapeDtypeStruct.like(order), *(out for tensor in tensors for out in tensor.results)),
        input_output_aliases=aliases,
        vmap_method="sequential",
    )
    geometry = [
        (*tensor.division(teams.ranks), tensor.kind, first)
        for tensor, first in zip(tensors, first_scalar, strict=True)
    ]
    _, *flat = call(
        order,
        place,
        *scalars,
        *(operand for tensor in tensors for operand in tensor.operands),
        kernel=kernel,
        op=op,
        devices=np.asarray(groups.devices, np.int64),
        ranks=np.int64(groups.ranks),
        outbox=open_channels(groups, op, unit_bytes),
        team=np.int64(teams.ranks),
        targets=np.asarray(teams.targets, np.int64),
        scalars=np.int64(len(scalars)),
        kinds=np.asarray(
            [(kind.operands, kind.results, kind.totals, kind.row) for kind in kinds], np.int64
        ).reshape(-1),
        reach=np.asarray([reach for kind in kinds for reach in kind.reach], np.int64),
        geometry=np.asarray(geometry, np.int64).reshape(-1),
        **{SPARE: tuple(spare.items())},
    )
    rest = iter(flat)
    return [tuple(next(rest) for _ in tensor.results) for tensor in tensors]


# Elements of a rank's part that kernels take together, at least: kUnit in ffi/protocol/geometry.h.
_UNIT = 1024


def _unit_bytes(tensor: Tensor, kind: Kind, teams: Teams) -> int:
    """What each rank leaves for the others of the smallest part of a tensor, or a bit more."""
    unit = -(-_UNIT // kind.row) * kind.row
    buffers = (*tensor.operands, *tensor.results)
    staged = [
        unit * buffer.dtype.itemsize + 64
        for buffer, reach in zip(buffers, kind.reach, strict=True)
        if reach not in (Reach.OWNER, Reach.TOTAL)
    ]
    return max(1, sum(staged) * (teams.ranks + bool(teams.targets)))


def _shared(blocks: Sequence[tuple[jax.Array, ...]]) -> tuple[list[jax.Array], list[int]]:
    """The scalars of all blocks, equal blocks once; and where each block begins."""
    scalars: list[jax.Array] = []
    begins: dict[tuple[int, ...], int] = {}
    for block in blocks:
        key = tuple(map(id, block))
        if key not in begins:
            begins[key] = len(scalars)
            scalars += block
    return scalars, [begins[tuple(map(id, block))] for block in blocks]
