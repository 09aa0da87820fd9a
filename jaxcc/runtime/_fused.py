"""Calls a fused kernel from a traced program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc.layout import BackendError
from jaxcc.runtime._groups import Groups
from jaxcc.runtime._native import has_kernel, register


@dataclass(frozen=True)
class Tensor:
    """One tensor of a fused call, as one rank holds its parts.

    There are `outer` rows of `extent` elements; of each, rank r owns the r-th block of
    ceil(extent / ranks) elements.

    Attributes:
      operands: whole arrays (outer * extent elements), this rank's slices (outer * block
        elements), or arrays that the kernel broadcasts.
      results: shape, dtype and varying axes of each result, whole or a slice.
      outer: rows.
      extent: elements in a row.
      aliases: index of an operand -> index of the result that takes its buffer.
    """

    operands: tuple[jax.Array, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    outer: int
    extent: int
    aliases: Mapping[int, int] = field(default_factory=dict[int, int])


def new_order() -> jax.Array:
    """The order buffer that a program gives to its first fused call: u32[1]."""
    return jnp.zeros((1,), jnp.uint32)


def fused_call(
    kernel: str,
    groups: Groups,
    scalars: Sequence[jax.Array],
    tensors: Sequence[Tensor],
    order: jax.Array,
    *,
    op: str,
    totals: int = 0,
    row: int = 1,
) -> tuple[jax.Array, list[tuple[jax.Array, ...]]]:
    """Runs a kernel on the buffers of all ranks of each group, inside `jax.shard_map`.

    Each rank waits for the others up to JAXCC_TIMEOUT_S (300) seconds; then the program fails with
    an error that names the ranks that did not come.

    Args:
      kernel: key of a kernel that is built in or loaded.
      groups: who runs it together.
      scalars: 0-d arrays that the kernel reads for all tensors.
      tensors: each with the same number of operands and of results.
      order: what `new_order` or the program's previous fused call gave. It keeps ranks from
        coming to independent calls in different orders, which would never end.
      op: name of the operation in error messages.
      totals: how many of a tensor's results are numbers that all its elements make.
      row: elements that the kernel needs together; of each row of `extent`, a rank's block is a
        multiple of it.

    Returns:
      The order buffer for the next call, and each tensor's results.

    Raises:
      BackendError: BACKEND_NOT_BUILT without the C++ part, BACKEND_KERNEL if the kernel is not
        loaded, BACKEND_ARGUMENT if the tensors differ in kind.
    """
    if not has_kernel(kernel):
        raise BackendError("BACKEND_KERNEL", f"{op}: no kernel {kernel!r} is loaded")
    kinds = {(len(tensor.operands), len(tensor.results)) for tensor in tensors}
    if len(kinds) != 1:
        raise BackendError(
            "BACKEND_ARGUMENT",
            f"{op}: a fused call needs tensors with equally many operands and results, not {kinds}",
        )
    ((operands, results),) = kinds
    register()
    aliases = {0: 0}
    for index, tensor in enumerate(tensors):
        for operand, result in tensor.aliases.items():
            first = 1 + len(scalars) + index * operands
            aliases[first + operand] = 1 + index * results + result
    call = jax.ffi.ffi_call(
        "jaxcc_fused",
        (jax.ShapeDtypeStruct.like(order), *(out for tensor in tensors for out in tensor.results)),
        input_output_aliases=aliases,
    )
    order, *flat = call(
        order,
        *scalars,
        *(operand for tensor in tensors for operand in tensor.operands),
        kernel=kernel,
        op=op,
        devices=np.asarray(groups.devices, np.int64),
        ranks=np.int64(groups.ranks),
        scalars=np.int64(len(scalars)),
        operands=np.int64(operands),
        results=np.int64(results),
        totals=np.int64(totals),
        row=np.int64(row),
        geometry=np.asarray([(t.outer, t.extent) for t in tensors], np.int64).reshape(-1),
    )
    return order, [tuple(flat[i * results : (i + 1) * results]) for i in range(len(tensors))]
