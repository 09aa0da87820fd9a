"""Calls a fused kernel from a traced program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc.layout import BackendError
from jaxcc.runtime._groups import Groups
from jaxcc.runtime._native import has_kernel, register
from jaxcc.runtime._place import place_of


@dataclass(frozen=True)
class Kind:
    """What tensors of one kind have in common, for which a kernel has one program.

    Attributes:
      operands: how many each has.
      results: how many.
      totals: how many of the results are numbers that all elements make.
      row: elements that the kernel needs together; of each row of `extent`, a rank's block is a
        multiple of it.
    """

    operands: int
    results: int
    totals: int = 0
    row: int = 1


@dataclass(frozen=True)
class Tensor:
    """One tensor of a fused call, as one rank holds its parts.

    There are `outer` rows of `extent` elements; of each, rank r of a team owns the r-th block of
    ceil(extent / ranks) elements.

    Attributes:
      operands: whole arrays (outer * extent elements), this rank's slices (outer * block
        elements), or arrays that the kernel broadcasts.
      results: shape, dtype and varying axes of each result, whole or a slice.
      outer: rows.
      extent: elements in a row.
      aliases: index of an operand -> index of the result that takes its buffer.
      scalars: 0-d arrays that the kernel reads for it, and perhaps for other tensors.
      kind: which of the kernel's programs it is for.
    """

    operands: tuple[jax.Array, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    outer: int
    extent: int
    aliases: Mapping[int, int] = field(default_factory=dict[int, int])
    scalars: tuple[jax.Array, ...] = ()
    kind: int = 0


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


def new_order() -> jax.Array:
    """The order buffer that a program gives to its first fused call: u32[1]."""
    return jnp.zeros((1,), jnp.uint32)


def fused_call(
    kernel: str,
    groups: Groups,
    tensors: Sequence[Tensor],
    order: jax.Array,
    *,
    op: str,
    kinds: Sequence[Kind] = (),
    teams: Teams | None = None,
) -> tuple[jax.Array, list[tuple[jax.Array, ...]]]:
    """Runs a kernel on the buffers of all ranks of each group, inside `jax.shard_map`.

    Each rank waits for the others up to JAXCC_TIMEOUT_S (300) seconds; then the program fails with
    an error that names the ranks that did not come.

    Args:
      kernel: key of a kernel that is built in or loaded.
      groups: who runs it together. The ranks are those of the enclosing `shard_map`, which may have
        the devices of a group in another order.
      tensors: of any shapes and sizes.
      order: what `new_order` or the program's previous fused call gave. It keeps ranks from
        coming to independent calls in different orders, which would never end.
      op: name of the operation in error messages.
      kinds: those of the tensors; by default one, of tensors like the first.
      teams: how the groups are divided; None if each is one team.

    Returns:
      The order buffer for the next call, and each tensor's results.

    Raises:
      BackendError: BACKEND_NOT_BUILT without the C++ part, BACKEND_KERNEL if the kernel is not
        loaded, BACKEND_ARGUMENT if a tensor is not of its kind, BACKEND_AXIS or BACKEND_MESH if the
        axes of the groups are not bound here or have other sizes. When it runs, BACKEND_MESH if the
        `shard_map` has other devices in a group.
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
    scalars, first_scalar = _shared([tensor.scalars for tensor in tensors])
    aliases = {0: 0}
    operand, result = 2 + len(scalars), 1
    for tensor in tensors:
        aliases.update((operand + i, result + k) for i, k in tensor.aliases.items())
        operand, result = operand + len(tensor.operands), result + len(tensor.results)
    call = jax.ffi.ffi_call(
        "jaxcc_fused",
        (jax.ShapeDtypeStruct.like(order), *(out for tensor in tensors for out in tensor.results)),
        input_output_aliases=aliases,
        vmap_method="sequential",
    )
    geometry = [
        (t.outer, t.extent, t.kind, first) for t, first in zip(tensors, first_scalar, strict=True)
    ]
    order, *flat = call(
        order,
        place,
        *scalars,
        *(operand for tensor in tensors for operand in tensor.operands),
        kernel=kernel,
        op=op,
        devices=np.asarray(groups.devices, np.int64),
        ranks=np.int64(groups.ranks),
        team=np.int64(teams.ranks),
        targets=np.asarray(teams.targets, np.int64),
        scalars=np.int64(len(scalars)),
        kinds=np.asarray([astuple(kind) for kind in kinds], np.int64).reshape(-1),
        geometry=np.asarray(geometry, np.int64).reshape(-1),
    )
    rest = iter(flat)
    return order, [tuple(next(rest) for _ in tensor.results) for tensor in tensors]


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
