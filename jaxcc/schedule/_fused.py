"""The kernel call of a fused operation: which buffers, and which results reuse one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxcc.codegen import OutRole, Role
from jaxcc.layout import LayoutMap
from jaxcc.program import Op, Program
from jaxcc.schedule._kernel import TensorPlan, plan
from jaxcc.schedule._loaded import LoadedKernel
from jaxcc.schedule._reads import KernelInput


@dataclass(frozen=True)
class FusedCall:
    """A loaded kernel with its place in a program."""

    op: Op
    kernel: LoadedKernel
    aliases: tuple[Mapping[int, int], ...]
    spare: tuple[Mapping[int, int], ...]

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
    ) -> FusedCall:
        """Generates, compiles and loads the kernel of `op`, to be called under `shard_map` with
        this `check_vma`.

        Raises:
          CodegenError: it cannot be generated or compiled.
          BackendError: the mesh's devices are not CPU devices of this process.
        """
        made = plan(program, op, layouts)
        kernel = LoadedKernel.load(op.name, mesh, made, check_vma=check_vma)
        aliases = aliases_of(program, op, made.tensors, donate)
        if_free = aliases_of(program, op, made.tensors, list(program.inputs))
        spare = [_others(every, one) for every, one in zip(if_free, aliases, strict=True)]
        return cls(op, kernel, tuple(aliases), tuple(spare))

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results on one rank, inside `shard_map`."""
        values = dict(zip(self.op.value_inputs(), given, strict=True))
        tensors = [
            self.kernel.tensor(number, values, aliases=aliases, spare=spare)
            for number, (aliases, spare) in enumerate(zip(self.aliases, self.spare, strict=True))
        ]
        results = self.kernel.run(tensors)
        made: dict[str, Any] = {}
        for one, of in zip(self.kernel.plan.tensors, results, strict=True):
            made.update(zip(one.outputs, of, strict=True))
        return [made[out] for out in self.op.outputs]


def aliases_of(
    program: Program, op: Op, tensors: Sequence[TensorPlan], donate: Sequence[str]
) -> list[dict[int, int]]:
    """Operand to result, of each tensor of `op`: buffers that nobody reads afterwards take the
    results.

    An input that the caller keeps is none: XLA would have to copy it first. Nor is one the
    buffer of what is received, which others write at any time.
    """
    reads = Counter(x.value for one in tensors for x in one.inputs)
    return [_aliases(program, op, one, donate, reads) for one in tensors]


def _aliases(
    program: Program, op: Op, one: TensorPlan, donate: Sequence[str], reads: Mapping[Any, int]
) -> dict[int, int]:
    operands = [x for x in one.inputs if x.role != Role.SCALAR]
    # Reduced operands last: an updated one should take the place of what it updates.
    order = sorted(range(len(operands)), key=lambda i: operands[i].role == Role.REDUCE)
    alone = one.kernel.ranks == 1 and not one.any_size
    aliases: dict[int, int] = {}
    for result, (t, role) in enumerate(zip(one.out_types, one.out_roles, strict=True)):
        if role not in (OutRole.GATHER, OutRole.SLICE):
            continue
        for index in order:
            x = operands[index]
            fits = alone or (role == OutRole.SLICE) == (x.role == Role.SLICE)
            free = reads[x.value] == 1 and _is_free(program, op, x, t, donate)
            if index not in aliases and fits and free:
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


def _others(every: Mapping[int, int], certain: Mapping[int, int]) -> dict[int, int]:
    """The pairs of `every` whose operand and result are in none that is certain."""
    return {
        operand: result
        for operand, result in every.items()
        if operand not in certain and result not in certain.values()
    }
