"""Runs a plan on one rank: kernels, what XLA computes between them, reductions over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxcc import runtime
from jaxcc.layout import being_checked
from jaxcc.optim._kernel import ClassProgram, PhaseKernel
from jaxcc.optim._plan import Plan, Work
from jaxcc.optim._slices import (
    COLLECTIVES,
    block_size,
    local_reduction,
    own_block,
    reduction,
)
from jaxcc.optim._values import (
    FILL,
    LITERAL,
    MEAN,
    OUTSIDE,
    REDUCE,
    SLOT,
    Value,
    evaluate,
)

Calls = Callable[[Sequence[Sequence[Work]]], PhaseKernel | None]


class Execution:
    """One run, inside `shard_map`. `arrays` has what is known of each value.

    Gradients, parameters and other whole arrays are whole, all else of a parameter are slices.
    """

    def __init__(self, arrays: Mapping[Value, Any], sizes: Sequence[Any], axis: str) -> None:
        self._arrays = dict(arrays)
        self._whole: dict[Value, Any] = {}
        self._like = sizes
        self._axis = axis

    def run(self, plan: Plan, calls: Calls) -> None:
        """Everything; `calls` gives the kernel for the works of a phase, in classes of those that
        are alike; None where there is none.
        """
        for number, phase in enumerate(plan.phases):
            self._share(plan, number)
            self._kernels(phase.kernels, calls)
            for work in phase.local:
                self._keep(work, work.slices, self._on_blocks(work))
            self._reduce(phase.reductions)
        self._share(plan, len(plan.phases))
        for v, work in plan.whole.items():
            (flat,) = self._on_whole(work)
            self._whole[v] = flat.reshape(self._like[work.leaf].shape)

    def result(self, v: Value, leaf: int) -> Any:
        """A value that all ranks get all of, in the shape of parameter `leaf`."""
        if v in self._whole:
            return self._whole[v]
        return jnp.broadcast_to(self._arrays[v], self._like[leaf].shape)

    def slot(self, v: Value, leaf: int) -> Any:
        """This rank's slice of a value for parameter `leaf`."""
        if v.sliced and v.leaf is not None:
            return self._arrays[v]
        return own_block(self.result(v, leaf), self._axis)

    def shared(self, v: Value) -> Any:
        """A value that all ranks hold alike."""
        return jnp.asarray(self._arrays[v], v.dtype)

    def _share(self, plan: Plan, phase: int) -> None:
        for v in plan.shared:
            if v.phase <= phase and v not in self._arrays:
                given = [self._arrays[x] for x in v.inputs] if v.kind != REDUCE else []
                if v.kind == LITERAL:
                    self._arrays[v] = v.data
                elif v.kind == FILL:
                    number = jnp.asarray(given[0], v.dtype)
                    self._arrays[v] = lax.broadcast_in_dim(number, v.shape, ())
                elif v.kind == OUTSIDE:
                    results = v.data.function(*given)
                    self._arrays[v] = results[v.index]

    def _kernels(self, classes: Sequence[Sequence[Work]], calls: Calls) -> None:
        works: list[tuple[int, Work]] = []
        for number, alike in enumerate(classes):
            for work in alike:
                if self._like[work.leaf].size:
                    works.append((number, work))
                else:
                    self._empty(work)
        if not works:
            return
        kernel = calls(classes)
        if kernel is None:
            for number, work in works:
                results = ClassProgram(classes[number], self._axis).unfused(
                    [self._arrays[v] for v in work.sources],
                    [self._arrays[v] for v in work.numbers],
                    self._like[work.leaf],
                )
                self._take(work, results)
            return
        tensors: list[runtime.Tensor] = []
        for number, work in works:
            program = kernel.programs[number]
            sources = zip(program.inputs, work.sources, strict=True)
            numbers = zip(program.numbers, work.numbers, strict=True)
            values = {name: self._arrays[v] for name, v in sources}
            values |= {name: self._number(v) for name, v in numbers}
            tensors.append(kernel.tensor(number, values, self._like[work.leaf]))
        made = kernel.run([number for number, _ in works], tensors)
        for (_, work), results in zip(works, made, strict=True):
            self._take(work, results)

    def _number(self, v: Value) -> Any:
        """A number as an array, the same object for all tensors that read it."""
        self._arrays[v] = self.shared(v)
        return self._arrays[v]

    def _take(self, work: Work, results: Sequence[Any]) -> None:
        if work.gather is not None:
            self._whole[work.gather] = results[0]
            results = results[1:]
        self._keep(work, (*work.slices, *work.totals), results)

    def _keep(self, work: Work, values: Sequence[Value], results: Sequence[Any]) -> None:
        self._arrays.update(zip(values, results, strict=True))

    def _empty(self, work: Work) -> None:
        """Takes the results for a parameter without elements."""
        like = self._like[work.leaf]
        nothing = [own_block(jnp.zeros((0,), v.dtype), self._axis) for v in work.slices]
        whole = [] if work.gather is None else [jnp.zeros(like.shape, work.gather.dtype)]
        numbers = [
            local_reduction(v.data, jnp.zeros((0,), v.dtype), 0, self._axis) for v in work.totals
        ]
        self._take(work, [*whole, *nothing, *numbers])

    def _on_blocks(self, work: Work) -> list[Any]:
        known = {
            v: self._arrays[v] if role == SLOT else own_block(self._arrays[v], self._axis)
            for v, role in zip(work.sources, work.roles, strict=True)
        }
        known |= {v: self._arrays[v] for v in work.numbers}
        size = self._like[work.leaf].size
        return evaluate(work.targets, known, (block_size(size, lax.axis_size(self._axis)),))

    def _on_whole(self, work: Work) -> list[Any]:
        assert MEAN not in work.roles and SLOT not in work.roles
        known = {v: self._arrays[v].reshape(-1) for v in work.sources}
        known |= {v: self._arrays[v] for v in work.numbers}
        return evaluate(work.targets, known, (self._like[work.leaf].size,))

    def _reduce(self, reductions: Mapping[Value, Work]) -> None:
        """All numbers of one dtype by one exchange; the checker sees an all-reduce each."""
        if not reductions:
            return
        parts: dict[Any, list[tuple[Value, Any]]] = {}
        for v, work in reductions.items():
            (block,) = self._on_blocks(work)
            size = self._like[work.leaf].size
            part = local_reduction(v.data, block, size, self._axis)
            wire = jnp.int32 if v.dtype == bool else v.dtype
            if being_checked() and v.data in COLLECTIVES:
                self._arrays[v] = COLLECTIVES[v.data](part.astype(wire), self._axis).astype(v.dtype)
                continue
            parts.setdefault(wire, []).append((v, part.astype(wire)))
        for pairs in parts.values():
            stack = jnp.stack([x for _, x in pairs])
            rows = lax.all_gather(stack, self._axis, to="invarying")
            for n, (v, _) in enumerate(pairs):
                self._arrays[v] = reduction(v.data, rows[:, n].astype(v.dtype))
