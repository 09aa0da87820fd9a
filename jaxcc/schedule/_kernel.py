"""From a fused operation to a generated kernel: its tensors, and where their results go."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import jax

from jaxcc import _compat, codegen
from jaxcc.codegen import OutRole
from jaxcc.layout import LayoutMap
from jaxcc.program import SEND, Op, Program
from jaxcc.schedule._reads import KernelInput, Reads
from jaxcc.schedule._strands import Strand, axes_of, route_of, strands


@dataclass(frozen=True)
class TensorPlan:
    """One strand of a fused operation: what a kernel does with one of its tensors.

    Attributes:
      kernel: the generated text.
      inputs: scalars first, then the tensor's operands, in the kernel's order.
      outputs: names of what results.
      out_types, out_roles: of each.
      outer, extent: the whole tensor has `outer` rows of `extent` elements; a rank owns a block of
        each row.
      any_size: the kernel serves flat tensors of every size.
    """

    kernel: codegen.Kernel
    inputs: tuple[KernelInput, ...]
    outputs: tuple[str, ...]
    out_types: tuple[jax.ShapeDtypeStruct, ...]
    out_roles: tuple[OutRole, ...]
    outer: int
    extent: int
    any_size: bool


@dataclass(frozen=True)
class KernelPlan:
    """A fused operation as one kernel call.

    Attributes:
      axes: those that its tensors are divided along.
      across: those that it sends over.
      ranks: that a tensor is divided among.
      targets: for each group of as many ranks the one that it sends to, or -1; empty if none sends.
      tensors: in order.
    """

    axes: tuple[str, ...]
    across: tuple[str, ...]
    ranks: int
    targets: tuple[int, ...]
    tensors: tuple[TensorPlan, ...]


def plan(program: Program, op: Op, layouts: Mapping[str, LayoutMap | str]) -> KernelPlan:
    """The kernel call of `op`, a fused operation of `program`, whose values have `layouts`.

    Raises:
      CodegenError: the generator lacks a primitive or dtype, or an operand has a form that it
        cannot index.
    """
    axes, sizes, types = axes_of(op.body), program.sizes, program.types()
    ranks = math.prod(sizes[axis] for axis in axes)
    across: tuple[str, ...] = ()
    targets: tuple[int, ...] = ()
    send = next((part for part in op.body if part.kind == SEND), None)
    if send is not None:
        across, pairs = route_of(send)
        to = dict(pairs)
        targets = tuple(to.get(k, -1) for k in range(math.prod(sizes[axis] for axis in across)))
    tensors = [
        _tensor_plan(Reads(types, strand, layouts, axes, ranks))
        for strand in strands(op.body, op.outputs, types)
    ]
    return KernelPlan(axes, across, ranks, targets, tuple(tensors))


def plan_for_any_size(
    program: Program,
    op: Op,
    layouts: Mapping[str, LayoutMap | str],
    per_tensor: Collection[str] = (),
) -> TensorPlan:
    """What a kernel does with flat tensors of any size, as `op` does with one of its blocks' size.

    Args:
      program: what holds `op`, a fused operation with collectives over one axis.
      op: all of it is computed in one loop.
      layouts: of the program's values.
      per_tensor: the 0-d values that differ from tensor to tensor.

    Raises:
      CodegenError: as `plan`.
    """
    axes, strand = axes_of(op.body), Strand(op.body, op.outputs)
    ranks = math.prod(program.sizes[axis] for axis in axes)
    reads = Reads(program.types(), strand, layouts, axes, ranks, per_tensor)
    return _tensor_plan(reads, any_size=True)


def _tensor_plan(reads: Reads, any_size: bool = False) -> TensorPlan:
    # Whole shapes: a block with one row would look like a dimension to broadcast.
    with _compat.outside_all_traces():
        jaxpr = jax.make_jaxpr(reads.elementwise)(*(one.type for one in reads.inputs))
    strand, whole, dim = reads.strand, reads.whole, reads.dim
    roles = tuple(_role(out, strand) for out in strand.outputs)
    kernel = codegen.generate(
        jaxpr,
        (),
        [one.role for one in reads.inputs],
        roles,
        shape=None if any_size else whole,
        ranks=reads.ranks,
        op=strand.reduces[0].params["op"] if strand.reduces else "sum",
    )
    types = tuple(reads.types[out] for out in strand.outputs)
    outer, extent = math.prod(whole[:dim]), math.prod(whole[dim:])
    return TensorPlan(kernel, reads.inputs, strand.outputs, types, roles, outer, extent, any_size)


def _role(out: str, strand: Strand) -> OutRole:
    made = {x: op for op in strand.body for x in op.outputs}
    kinds: set[str] = set()
    op: Op | None = made[out]
    if op.kind == "all_reduce" and op not in strand.reduces:
        return OutRole.TOTAL
    while op is not None and op.kind in ("all_gather", SEND):
        kinds.add(op.kind)
        op = made.get(str(op.inputs[0]))
    whole = "all_gather" in kinds or bool(strand.reduces)
    if SEND in kinds:
        return OutRole.SEND_GATHER if whole else OutRole.SEND
    return OutRole.GATHER if whole else OutRole.SLICE
