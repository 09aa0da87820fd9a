"""A kernel that is compiled and loaded, for tensors of several kinds, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat, codegen, runtime
from jaxcc.codegen import OutRole, Role
from jaxcc.layout import ScheduleError
from jaxcc.program import Constant
from jaxcc.schedule._kernel import KernelPlan, TensorPlan
from jaxcc.schedule._reads import KernelInput


@dataclass(frozen=True)
class LoadedKernel:
    """One kernel for all tensors of `plan`, whose texts it has once each.

    Attributes:
      name: in error messages.
      key: of the loaded kernel.
      plan: what it computes.
      kinds: which of the kernel's programs each of the plan's tensors is for.
      groups: which devices run it.
      check_vma: the flag of the enclosing `shard_map`.
    """

    name: str
    key: str
    plan: KernelPlan
    kinds: tuple[int, ...]
    groups: runtime.Groups
    check_vma: bool

    @classmethod
    def load(
        cls, name: str, mesh: Any, plan: KernelPlan, *, check_vma: bool = True
    ) -> LoadedKernel:
        """Compiles and loads the kernel.

        Raises:
          CodegenError: it cannot be compiled.
          BackendError: the mesh's devices are not CPU devices of processes that share memory.
        """
        groups = runtime.groups_of(mesh, (*plan.across, *plan.axes))
        kernels = list(dict.fromkeys(one.kernel for one in plan.tensors))
        key, path = codegen.compile_kernel(codegen.Source(tuple(kernels)))
        runtime.load_kernel(key, str(path))
        kinds = tuple(kernels.index(one.kernel) for one in plan.tensors)
        return cls(name, key, plan, kinds, groups, check_vma)

    def tensor(
        self,
        number: int,
        values: Mapping[str, Any],
        *,
        aliases: Mapping[int, int],
        spare: Mapping[int, int] | None = None,
        shape: tuple[int, ...] | None = None,
        block: int | None = None,
    ) -> runtime.Tensor:
        """A tensor for tensor `number` of the plan.

        Args:
          values: its operands by name: whole ones and slices.
          aliases: index of an operand -> index of the result that takes its buffer.
          spare: the same, where nobody reads that operand afterwards.
          shape: the whole shape, of a plan for any size: its whole operands have any shape, which
            they keep (XLA does not alias through a reshape), and its slices are flat.
          block: elements of a row that a rank owns; None if ceil(extent / ranks).

        Raises:
          ScheduleError: an operand has another size or dtype than the kernel was made for.
        """
        one = self.plan.tensors[number]
        outer, extent = (one.outer, one.extent) if shape is None else (1, math.prod(shape))
        block = -(-extent // self.plan.ranks) if block is None else block
        reads = [_read(x, values) for x in one.inputs]
        for given, x in zip(one.inputs, reads, strict=True):
            self._check_operand(one, given, x, extent, block)
        varying = set[str]().union(*map(_compat.varying_axes, reads))
        scalars = sum(x.role == Role.SCALAR for x in one.inputs)
        return runtime.Tensor(
            tuple(reads[scalars:]),
            tuple(self._results(one, varying, shape, block)),
            outer,
            extent,
            aliases,
            tuple(reads[:scalars]),
            self.kinds[number],
            block,
            spare or {},
        )

    def run(self, tensors: Sequence[runtime.Tensor]) -> list[tuple[jax.Array, ...]]:
        """Each tensor's results; inside `shard_map`."""
        kernels = {
            kind: one.kernel for kind, one in zip(self.kinds, self.plan.tensors, strict=True)
        }
        return runtime.fused_call(
            self.key,
            self.groups,
            tensors,
            op=self.name,
            kinds=[
                runtime.Kind(len(k.operand_inputs), len(k.outputs), k.totals, k.row, _reach(k))
                for _, k in sorted(kernels.items())
            ],
            teams=runtime.Teams(self.plan.ranks, self.plan.targets),
        )

    def _check_operand(
        self, one: TensorPlan, given: KernelInput, x: Any, extent: int, block: int
    ) -> None:
        """The kernel trusts its operands' sizes and dtypes: nobody looks after this."""
        if given.type.shape == ():
            size = 1
        elif one.any_size:
            size = block if given.role == Role.SLICE else extent
        else:
            size = math.prod(given.type.shape)
            if given.role == Role.SLICE:
                size = -(-size // self.plan.ranks)
        if (x.size, x.dtype) != (size, given.type.dtype):
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"{self.name}: operand '{given.value}' has {x.size} elements of {x.dtype}, "
                f"not {size} of {given.type.dtype}",
            )

    def _results(
        self, one: TensorPlan, varying: set[str], shape: tuple[int, ...] | None, block: int
    ) -> list[jax.ShapeDtypeStruct]:
        """The results' types: gathered ones and totals are equal on all ranks that divide the
        tensor, and vary as operands do elsewhere.
        """
        found: list[jax.ShapeDtypeStruct] = []
        for t, role in zip(one.out_types, one.out_roles, strict=True):
            if shape is not None and role != OutRole.TOTAL:
                t = jax.ShapeDtypeStruct(shape if role.whole else (block,), t.dtype)
            if self.check_vma:
                axes = varying.union(self.plan.across if role.sent else ())
                alike = role.whole or role == OutRole.TOTAL
                axes = axes.difference(self.plan.axes) if alike else axes.union(self.plan.axes)
                t = _compat.varying_type(t, tuple(sorted(axes)))
            found.append(t)
        return found


_RESULTS = {
    OutRole.GATHER: runtime.Reach.TEAM,
    OutRole.SLICE: runtime.Reach.OWNER,
    OutRole.TOTAL: runtime.Reach.TOTAL,
    OutRole.SEND: runtime.Reach.RECEIVER,
    OutRole.SEND_GATHER: runtime.Reach.RECEIVERS,
}


def _reach(kernel: codegen.Kernel) -> tuple[runtime.Reach, ...]:
    """Whose its operands and results are."""
    read = (
        runtime.Reach.TEAM if kernel.inputs[n] == Role.REDUCE else runtime.Reach.OWNER
        for n in kernel.operand_inputs
    )
    return (*read, *(_RESULTS[role] for role in kernel.outputs))


def _read(one: KernelInput, values: Mapping[str, Any]) -> Any:
    x = one.value.value if isinstance(one.value, Constant) else values[one.value]
    return jnp.asarray(x) if one.word is None else jax.random.key_data(x)[one.word]
