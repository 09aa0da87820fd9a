"""The call of a fused operation's kernel: which buffers, in which order, and which results reuse
one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxcc import _compat, codegen, runtime
from jaxcc.codegen import OutRole, Role
from jaxcc.layout import LayoutMap, ScheduleError
from jaxcc.program import Constant, Op, Program
from jaxcc.schedule._kernel import KernelInput, KernelPlan, plan


@dataclass(frozen=True)
class FusedCall:
    """A compiled kernel with its place in a program."""

    op: Op
    key: str
    plan: KernelPlan
    groups: runtime.Groups
    aliases: Mapping[int, int]
    check_vma: bool

    @classmethod
    def build(
        cls,
        mesh: Any,
        program: Program,
        op: Op,
        layouts: Mapping[str, LayoutMap | str],
        donate: Sequence[str],
        *,
        check_vma: bool = True,
        any_size: bool = False,
        per_tensor: Collection[str] = (),
    ) -> FusedCall:
        """Generates, compiles and loads the kernel of `op`, to be called under `shard_map` with
        this `check_vma`.

        Of the 0-d operands, `over` gets those of `per_tensor` with each tensor.

        Raises:
          CodegenError: it cannot be generated or compiled.
          BackendError: the mesh's devices are not CPU devices of this process.
        """
        groups = runtime.groups_of(mesh, op.params["axes"])
        made = plan(program, op, layouts, any_size=any_size, per_tensor=per_tensor)
        key, path = codegen.compile_kernel(made.kernel)
        runtime.load_kernel(key, str(path))
        return cls(op, key, made, groups, _aliases(program, op, made, donate), check_vma)

    def __call__(self, given: Sequence[Any], order: Any) -> tuple[Any, list[Any]]:
        """The results on one rank, and the next order buffer; inside `shard_map`."""
        values = dict(zip(self.op.value_inputs(), given, strict=True))
        shapes = [t.shape for t in self.op.types]
        tensor = self._tensor(values, shapes, self.plan.outer, self.plan.extent)
        order, (results,) = self._run(values, [tensor], order)
        return order, results

    def over(
        self,
        tensors: Sequence[Mapping[str, Any]],
        scalars: Mapping[str, Any],
        order: Any,
        shapes: Sequence[tuple[int, ...]],
    ) -> tuple[Any, list[dict[str, Any]]]:
        """One call for many tensors, of a kernel built for any size.

        Args:
          tensors: for each, its operands by name: whole ones of any shape, which keep it (XLA does
            not alias through a reshape), and slices [ceil(size / ranks)].
          scalars: 0-d operands by name.
          order: the order buffer.

        Returns:
          The next order buffer, and each tensor's results by name.
        """
        calls: list[runtime.Tensor] = []
        for values, shape in zip(tensors, shapes, strict=True):
            size = math.prod(shape)
            block = (-(-size // self.groups.ranks),)
            kinds = {OutRole.GATHER: shape, OutRole.SLICE: block, OutRole.TOTAL: ()}
            results = [kinds[role] for role in self.plan.out_roles]
            calls.append(self._tensor(values, results, 1, size))
        order, results = self._run(scalars, calls, order)
        return order, [dict(zip(self.op.outputs, one, strict=True)) for one in results]

    def _tensor(
        self, values: Mapping[str, Any], shapes: Sequence[Sequence[int]], outer: int, extent: int
    ) -> runtime.Tensor:
        inputs = [one for one in self.plan.inputs if one.role != Role.SCALAR]
        operands = [_read(one, values) for one in inputs]
        for one, x in zip(inputs, operands, strict=True):
            self._check_operand(one, x, outer, extent)
        results = [
            self._result(jax.ShapeDtypeStruct(shape, t.dtype), role, operands)
            for shape, t, role in zip(shapes, self.op.types, self.plan.out_roles, strict=True)
        ]
        return runtime.Tensor(tuple(operands), tuple(results), outer, extent, self.aliases)

    def _check_operand(self, one: KernelInput, x: Any, outer: int, extent: int) -> None:
        """The kernel trusts its operands' sizes and dtypes: nobody looks after this."""
        block = -(-extent // self.groups.ranks)
        size = outer * (block if one.role == Role.SLICE else extent)
        if one.type.shape == () or (one.role == Role.WHOLE and not self.plan.any_size):
            size = math.prod(one.type.shape)
        if (x.size, x.dtype) != (size, one.type.dtype):
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"{self.op.name}: operand '{one.value}' has {x.size} elements of {x.dtype}, "
                f"not {size} of {one.type.dtype}",
            )

    def _result(
        self, t: jax.ShapeDtypeStruct, role: OutRole, operands: Sequence[Any]
    ) -> jax.ShapeDtypeStruct:
        """The result's type: gathered ones and totals are equal on all ranks of the group, and vary
        as operands do elsewhere.
        """
        if not self.check_vma:
            return t
        mine = set(self.op.params["axes"])
        varying = set().union(*map(_compat.varying_axes, operands))
        axes = varying | mine if role == OutRole.SLICE else varying - mine
        return _compat.varying_type(t, tuple(sorted(axes)))

    def _run(
        self, values: Mapping[str, Any], tensors: list[runtime.Tensor], order: Any
    ) -> tuple[Any, list[list[Any]]]:
        inputs = [one for one in self.plan.inputs if one.role == Role.SCALAR]
        scalars = [_read(one, values) for one in inputs]
        for one, x in zip(inputs, scalars, strict=True):
            self._check_operand(one, x, 1, 1)
        order, results = runtime.fused_call(
            self.key,
            self.groups,
            scalars,
            tensors,
            order,
            op=self.op.name,
            totals=self.plan.kernel.totals,
            row=self.plan.kernel.row,
        )
        return order, [list(one) for one in results]


def _read(one: KernelInput, values: Mapping[str, Any]) -> Any:
    x = one.value.value if isinstance(one.value, Constant) else values[one.value]
    return jnp.asarray(x) if one.word is None else jax.random.key_data(x)[one.word]


def _aliases(program: Program, op: Op, made: KernelPlan, donate: Sequence[str]) -> dict[int, int]:
    """Operand to result: buffers that nobody reads afterwards take the results.

    An input that the caller keeps is never one: XLA would have to copy it first.
    """
    operands = [one for one in made.inputs if one.role != Role.SCALAR]
    # Reduced operands last: an updated one should take the place of what it updates.
    order = sorted(range(len(operands)), key=lambda i: operands[i].role == Role.REDUCE)
    aliases: dict[int, int] = {}
    for result, (t, role) in enumerate(zip(op.types, made.out_roles, strict=True)):
        for index in order:
            one = operands[index]
            fits = (role == OutRole.SLICE) == (one.role == Role.SLICE) and role != OutRole.TOTAL
            if index not in aliases and fits and _is_free(program, op, one, t, donate):
                aliases[index] = result
                break
    return aliases


def _is_free(
    program: Program, op: Op, one: KernelInput, t: jax.ShapeDtypeStruct, donate: Sequence[str]
) -> bool:
    """Whether the operand's buffer is dead after the call and holds a result of type `t`."""
    x = one.value
    if not isinstance(x, str) or x in program.outputs or program.users(x) != [op]:
        return False
    reads = sum(x in part.inputs for part in op.body)
    same = program.types()[x] == t
    return same and reads == 1 and (x not in program.inputs or x in donate)
