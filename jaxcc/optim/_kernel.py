"""One kernel for all parameters of a phase, with one program for those that are computed alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as label

from jaxcc import runtime
from jaxcc.layout import LayoutMap, Local, Replicated, Sliced, as_map, check
from jaxcc.optim._plan import Work
from jaxcc.optim._slices import (
    block_size,
    gathered,
    own_block,
    reduced_block,
    reduction,
    total,
)
from jaxcc.optim._state import AnyMesh
from jaxcc.optim._values import MEAN, PARAM, SLOT, evaluate
from jaxcc.program import COLLECTIVES, Program, own_slice
from jaxcc.schedule import (
    KernelPlan,
    LoadedKernel,
    Schedule,
    Source,
    TensorPlan,
    aliases_of,
    plan_for_any_size,
)

_PREFIX = {MEAN: "g", PARAM: "w", SLOT: "s"}
_RESULT = "result"


class ClassProgram:
    """The program of works with one text, for one flat tensor each.

    Attributes:
      inputs: names of the sources.
      numbers: names of the numbers.
      own: of those, the ones that differ from tensor to tensor.
      gathers: whether the first target is gathered; it is then called `result`.
      kept: names of the slices that result.
      totals: names of the numbers that result.
    """

    def __init__(self, works: Sequence[Work], axis: str) -> None:
        first = works[0]
        self.inputs = tuple(f"{_PREFIX[role]}{n}" for n, role in enumerate(first.roles))
        self.numbers = tuple(f"n{n}" for n in range(len(first.numbers)))
        self.own = tuple(
            name
            for n, name in enumerate(self.numbers)
            if any(work.numbers[n] is not first.numbers[n] for work in works)
        )
        self.gathers = first.gather is not None
        self.kept = tuple(f"new{n}" for n in range(len(first.slices)))
        self.totals = tuple(f"total{n}" for n in range(len(first.totals)))
        self._first = first
        self._axis = axis

    @property
    def _results(self) -> tuple[str, ...]:
        """Names of all that results, in the order of the works' targets."""
        return (*((_RESULT,) if self.gathers else ()), *self.kept, *self.totals)

    def planned(self, mesh: AnyMesh) -> tuple[TensorPlan, Mapping[int, int]]:
        """What a kernel does with each tensor, and which operands' buffers take results.

        Raises:
          CodegenError: it cannot be generated.
        """
        schedule = self.schedule(mesh)
        program = schedule.program
        (op,) = (op for op in program.ops if op.body)
        free = [n for n, free in zip(self.inputs, self._first.free, strict=True) if free]
        made = plan_for_any_size(program, op, schedule.layouts, self.own)
        (aliases,) = aliases_of(program, op, (made,), free)
        return made, aliases

    def schedule(self, mesh: AnyMesh) -> Schedule:
        """The scheduled program for a flat tensor of 8 elements for each rank."""
        schedule = Schedule(self._source(mesh.shape[self._axis]))
        results = self._results
        if MEAN in self._first.roles:
            schedule = schedule.split("total")
        for name in results:
            while (gather := _gather_before(schedule.program, name)) is not None:
                schedule = schedule.reorder(gather, after=name)
        schedule = schedule.as_slice(*self.kept)
        moves = [op.name for op in schedule.program.ops if op.kind in COLLECTIVES]
        return schedule.fuse(*moves, *results, name="update")

    def unfused(self, arrays: Sequence[Any], numbers: Sequence[Any], like: Any) -> list[Any]:
        """The results for one tensor by XLA's collectives.

        Args:
          arrays: for each source the whole array, or this rank's flat slice.
          numbers: for each.
          like: the shape of the tensor.
        """
        first = self._first
        blocks: list[Any] = []
        for v, role, x in zip(first.sources, first.roles, arrays, strict=True):
            if role == MEAN:
                blocks.append(self._mean(reduced_block(x, self._axis), v.dtype))
            else:
                blocks.append(x if role == SLOT else own_block(x, self._axis))
        shape = (block_size(like.size, lax.axis_size(self._axis)),)
        results, reduced = self._apply(blocks, numbers, shape)
        if self.gathers:
            results[0] = gathered(results[0], self._axis, like.size).reshape(like.shape)
        totals = [
            total(v.data, x, like.size, self._axis)
            for v, x in zip(first.totals, reduced, strict=True)
        ]
        return [*results, *totals]

    def _mean(self, total: Any, dtype: Any) -> Any:
        return total.astype(dtype) / lax.axis_size(self._axis)

    def _apply(
        self, arrays: Sequence[Any], numbers: Sequence[Any], shape: tuple[int, ...]
    ) -> tuple[list[Any], list[Any]]:
        """What results, and the arrays that totals reduce."""
        work = self._first
        known = dict(zip((*work.sources, *work.numbers), (*arrays, *numbers), strict=True))
        made = evaluate(work.targets, known, shape)
        kept = len(made) - len(work.totals)
        return made[:kept], made[kept:]

    def _source(self, ranks: int) -> Source:
        mesh = jax.sharding.AbstractMesh((ranks,), (self._axis,))
        first, roles = self._first, self._first.roles
        shape = (8 * ranks,)

        def update(*given: Any) -> tuple[Any, ...]:
            arrays: list[Any] = list(given[: len(roles)])
            for n, (v, role) in enumerate(zip(first.sources, roles, strict=True)):
                if role == MEAN:
                    total = label(lax.psum(arrays[n], self._axis), "total")
                    arrays[n] = self._mean(total, v.dtype)
                elif role == SLOT:
                    arrays[n] = lax.all_gather(arrays[n], self._axis, tiled=True)
                elif first.totals:
                    # Each rank reduces its slice, of what all hold whole, too.
                    mine = own_slice(arrays[n], self._axis, 0, checked=True)
                    arrays[n] = lax.all_gather(mine, self._axis, tiled=True)
            results, reduced = self._apply(arrays, given[len(roles) :], shape)
            # What is only handed on needs an operation that the slice's gather can move past.
            results = [
                jnp.copy(x) if v in first.sources else x
                for v, x in zip(first.targets[: len(results)], results, strict=True)
            ]
            totals = [reduction(v.data, x) for v, x in zip(first.totals, reduced, strict=True)]
            return tuple(map(label, [*results, *totals], self._results))

        kinds = {MEAN: Local, PARAM: Replicated, SLOT: Sliced(0)}
        layouts: list[LayoutMap] = [as_map(kinds[role], (self._axis,)) for role in roles]
        layouts += [as_map(Replicated, (self._axis,))] * len(self.numbers)
        avals = [
            jax.ShapeDtypeStruct(shape, v.data if role == MEAN else v.dtype)
            for v, role in zip(first.sources, roles, strict=True)
        ]
        avals += [jax.ShapeDtypeStruct((), v.dtype) for v in first.numbers]
        report = check(update, *avals, mesh=mesh, in_layouts=tuple(layouts))
        return Source(
            update,
            tuple(avals),
            mesh,
            (*self.inputs, *self.numbers),
            tuple(layouts),
            tuple(report.out_layouts),
            True,
        )


class PhaseKernel:
    """One kernel for all parameters that have one in a phase, those that are computed alike by one
    text.
    """

    def __init__(self, classes: Sequence[Sequence[Work]], axis: str, mesh: AnyMesh) -> None:
        """Generates, compiles and loads it.

        Raises:
          CodegenError: it cannot be generated or compiled.
          BackendError: the mesh's devices are not CPU devices of this process.
        """
        self.programs = [ClassProgram(works, axis) for works in classes]
        planned = [program.planned(mesh) for program in self.programs]
        plans = tuple(made for made, _ in planned)
        plan = KernelPlan((axis,), (), mesh.shape[axis], (), plans)
        self._kernel = LoadedKernel.load("update", mesh, plan)
        self._aliases = [aliases for _, aliases in planned]

    def tensor(self, number: int, values: Mapping[str, Any], like: Any) -> runtime.Tensor:
        """A tensor of class `number`, with the shape of `like`.

        Args:
          values: the class's inputs and numbers by name: whole arrays in the shape, flat slices.
        """
        aliases = self._aliases[number]
        block = block_size(like.size, self._kernel.plan.ranks)
        return self._kernel.tensor(number, values, aliases=aliases, shape=like.shape, block=block)

    def run(self, numbers: Sequence[int], tensors: Sequence[runtime.Tensor]) -> list[list[Any]]:
        """Of each tensor, of class `numbers[i]`, what is gathered, what is kept and the totals, in
        the order of the works' targets.
        """
        made = self._kernel.run(tensors)
        results: list[list[Any]] = []
        for number, one in zip(numbers, made, strict=True):
            program, outputs = self.programs[number], self._kernel.plan.tensors[number].outputs
            # A total is named after its all-reduce, and what is gathered after its gather.
            names = [name.removesuffix(".all_reduce") for name in outputs]
            named = dict(zip(names, one, strict=True))
            own = [named.pop(name) for name in (*program.kept, *program.totals)]
            results.append([*named.values(), *own])
        return results


def _gather_before(program: Program, name: str) -> str | None:
    """An all-gather that a value depends on."""
    before = program.reaching([name])
    return next((o.name for o in program.ops if o.kind == "all_gather" and o.name in before), None)
