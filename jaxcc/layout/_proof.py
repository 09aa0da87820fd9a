"""Holds a per-rank program against the same one on a group of one, for several group sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxcc.layout._checked import Program, traced
from jaxcc.layout._errors import Finding, LayoutError
from jaxcc.layout._factors import CHECK_VMA, Factors
from jaxcc.layout._flatten import Slot
from jaxcc.layout._groups import group_text
from jaxcc.layout._history import History, start_of
from jaxcc.layout._layouts import LayoutMap, Local, Sliced
from jaxcc.layout._libraries import advice_in_library
from jaxcc.layout._repair import Repair
from jaxcc.layout._repairs import moved
from jaxcc.layout._trace import Trace
from jaxcc.layout._tried import Trials
from jaxcc.layout._walk import WalkResult, walk


@dataclass(frozen=True)
class Proof:
    """A program that computes the same on `groups` as on a group of one, whose trace is `alone`.

    `out_types` are whole types, as the ranks' parts of the results make them.
    """

    groups: tuple[Mapping[str, int], ...]
    alone: Trace
    result: WalkResult
    outs: tuple[LayoutMap, ...]
    out_types: tuple[jax.ShapeDtypeStruct, ...]


def prove(program: Program, out_layouts: Any) -> Proof:
    """Checks the program; `out_layouts` is a pytree prefix of its result, or None to infer it.

    Raises:
      LayoutError: with everything that is wrong with the program.
    """
    walks = _Walks(program, out_layouts)
    found: list[WalkResult] = []
    for result in walks.results():
        if result.findings:
            raise LayoutError.of(walks.explained(found, result))
        found.append(result)
    outs = found[0].out_layouts
    known = tuple(out for out in outs if out is not None)
    return Proof(walks.groups, walks.alone, found[0], known, walks.whole_types(known))


def _whole_type(part: Any, layout: LayoutMap, sizes: Mapping[str, int]) -> jax.ShapeDtypeStruct:
    shape = list(part.shape)
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            shape[one.dim] *= sizes[axis]
    return jax.ShapeDtypeStruct(tuple(shape), part.dtype)


def passes(program: Program, out_layouts: Any) -> bool:
    """Whether the program is right."""
    try:
        return not any(result.findings for result in _Walks(program, out_layouts).results())
    except LayoutError:
        return False


class _Walks:
    """The walks of a program: one for each group, and those without what is Local."""

    def __init__(self, program: Program, out_layouts: Any) -> None:
        self._program = program
        self._given = out_layouts
        groups, self._traces, self.alone, self._outs = traced(program, out_layouts)
        self.groups = tuple(groups)
        self._names = program.results(self._traces[0])
        self._projected: dict[tuple[tuple[str, int], ...], Trace] = {}

    def results(
        self, repairs: Sequence[Repair] = (), made_for: WalkResult | None = None
    ) -> Iterator[WalkResult]:
        """What each walk finds, in their order, with repairs of the program that `made_for` walked.

        Raises:
          LookupError: a trace has no place for a repair.
        """
        outs: Sequence[LayoutMap | None] | None = self._outs
        for at_n in self._traces:
            found = self._walk(at_n, self._program.layouts, outs, repairs, made_for)
            yield found
            if outs is None:
                outs = found.out_layouts
        assert outs is not None
        for local, sizes in _without_local(self._program.layouts, outs, self._program.sizes):
            # With the Local axes at size 1 nothing is Local, and the other axes can be held to the
            # full promise.
            plain = [_replicated_over(local, layout) for layout in self._program.layouts]
            others = [None if out is None else _replicated_over(local, out) for out in outs]
            yield self._walk(self._trace_for(sizes), plain, others, repairs, made_for)

    def _walk(
        self,
        at_n: Trace,
        layouts: Sequence[LayoutMap],
        outs: Sequence[LayoutMap | None] | None,
        repairs: Sequence[Repair],
        made_for: WalkResult | None,
    ) -> WalkResult:
        names = self._program.names
        if made_for is None:
            return walk(at_n, self.alone, layouts, names, outs, self._names)
        there = made_for.source.steps
        return walk(
            at_n,
            self.alone,
            layouts,
            names,
            outs,
            self._names,
            lambda steps: moved(repairs, there, steps),
        )

    def whole_types(self, outs: Sequence[LayoutMap]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The results' whole types, as the ranks' parts make them."""
        parts = [var.aval for var in self._traces[0].outvars]
        sizes = self._program.sizes
        return tuple(_whole_type(x, out, sizes) for x, out in zip(parts, outs, strict=True))

    def _trace_for(self, sizes: Mapping[str, int]) -> Trace:
        key = tuple(sizes.items())
        if key not in self._projected:
            self._projected[key] = self._program.trace_for(sizes)
        return self._projected[key]

    def explained(self, before: Sequence[WalkResult], result: WalkResult) -> tuple[Finding, ...]:
        """The findings of a walk, with what mends the program, on the groups `before`, too."""
        program = self._program
        summed: list[Finding] = []

        def traced_to(walked: WalkResult, finding: Finding, repair: Repair) -> Factors:
            history = History(walked.steps(), walked.source.held, walked.source.sizes)
            line = finding.line
            factors = Factors(history, repair, walked.out_slots, program.check_vma, line)
            if factors.of_a_gradient():
                summed.append(finding)
            return factors

        trials = Trials(
            result, len(before), lambda repairs: self.results(repairs, result), traced_to
        )
        sizes = result.source.sizes
        group = group_text(sizes) if dict(sizes) != dict(program.sizes) else ""
        history = History(result.steps(), result.source.held, sizes)
        found = [
            replace(one, group=group, because=_with_gradient(one, history, result))
            for one in trials.findings()
        ]
        slots = dict(zip(self._names, result.out_slots, strict=True))
        found = [
            _untiled(one, history, slots[one.result]) if one.result in slots else one
            for one in found
        ]
        if summed and not program.check_vma:
            if passes(replace(program, check_vma=True), self._given):
                found = [
                    replace(one, fixes=(CHECK_VMA, *one.fixes)) if was in summed else one
                    for was, one in zip(result.findings, found, strict=True)
                ]
        return tuple(_by_options(one) for one in found)


def _with_gradient(finding: Finding, history: History, result: WalkResult) -> str:
    """Why, where the line of a finding is one that is differentiated."""
    for repair in finding.repairs[:1]:
        slot = start_of(history, repair, result.out_slots)
        pending = history.pending_since(slot)
        made = history.unmoved(slot) if repair.result else history.step(repair.at)
        if any(
            one is not None and one.of_gradient and one.line == finding.line
            for one in (pending, made)
        ):
            return f"{finding.because}; it is of a gradient: JAX differentiates that line"
    return finding.because


def _untiled(finding: Finding, history: History, slot: Slot) -> Finding:
    """The finding of a result in another order, with the gather that may have made it so."""
    if finding.code != "LAYOUT_RESULT" or finding.fixes:
        return finding
    advice = tuple(
        f"put the blocks together along their own dimension: tiled=True in the all_gather at "
        f"{step.line}"
        for step in history.all_before(slot)
        if step.op == "all_gather" and not step.params["tiled"]
    )
    return replace(finding, untried=(*finding.untried, *advice))


def _by_options(finding: Finding) -> Finding:
    """The finding, with the option of a library's layer that mends it."""
    advice = advice_in_library(finding)
    return finding if advice is None else replace(finding, fixes=(), untried=advice)


def local_axes(layouts: Sequence[LayoutMap]) -> set[str]:
    return {axis for layout in layouts for axis in layout if layout[axis] == Local}


def _without_local(
    layouts: Sequence[LayoutMap], outs: Sequence[LayoutMap | None], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], dict[str, int]]]:
    """For each output: the axes over which it or an input is Local, and the sizes with these at 1.

    Without those that leave no axis.
    """
    given = local_axes(layouts)
    sets = dict.fromkeys(frozenset(given | local_axes([out])) for out in outs if out)
    return [
        (local, {axis: 1 if axis in local else n for axis, n in sizes.items()})
        for local in sets
        if local and any(n > 1 for axis, n in sizes.items() if axis not in local)
    ]


def _replicated_over(axes: Collection[str], layout: LayoutMap) -> LayoutMap:
    return LayoutMap(tuple((a, one) for a, one in layout.items_ if one != Local or a not in axes))
