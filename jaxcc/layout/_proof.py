"""Holds a per-rank program against the same one on a group of one, for several group sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxcc.layout._annotations import check_result_shapes
from jaxcc.layout._errors import Finding, LayoutError
from jaxcc.layout._failures import explained, user_line
from jaxcc.layout._groups import group_sizes, group_text
from jaxcc.layout._layouts import LayoutMap, Local, Sliced, flatten_layouts
from jaxcc.layout._repair import Repair, with_tried_fixes
from jaxcc.layout._trace import Trace, trace
from jaxcc.layout._walk import WalkResult, walk

_tree: Any = jax.tree


@dataclass(frozen=True)
class Program:
    """A per-rank function with its arguments.

    Attributes:
      f: the function.
      avals: its arguments, whole shapes.
      layouts: for each leaf of the arguments.
      names: what messages call each leaf.
      sizes: ranks along each axis.
      check_vma: the flag of `shard_map` that it will run with.
      axis_names: the axes of which the function is one rank; None for all.
      out_names: what messages call the results; by default `result 0` and so on.
    """

    f: Callable[..., Any]
    avals: tuple[Any, ...]
    layouts: tuple[LayoutMap, ...]
    names: tuple[str, ...]
    sizes: Mapping[str, int]
    check_vma: bool
    axis_names: frozenset[str] | None = None
    out_names: tuple[str, ...] = ()

    def trace(self) -> Trace:
        """The trace for the mesh itself."""
        return self.explained_trace(self.sizes)

    def trace_for(self, group: Mapping[str, int]) -> Trace:
        """The trace for other sizes."""
        changed = [axis for axis, n in self.sizes.items() if group[axis] != n]
        return _trace_at(self, group, changed)

    def explained_trace(self, group: Mapping[str, int]) -> Trace:
        """The trace for any sizes; errors say what is wrong in the user's words."""
        return trace(
            explained(self.f, self.avals, self.layouts, group),
            self.avals,
            self.layouts,
            group,
            check_vma=self.check_vma,
            axis_names=self.axis_names,
        )


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
    groups, traces, alone, outs = traced(program, out_layouts)
    result: WalkResult | None = None
    for at_n in traces:
        try:
            found = _walked(program, at_n, alone, outs)
        except LayoutError as error:
            raise _axis_by_axis(program, error, alone, outs) from None
        if result is None:
            result = found
            outs = [out for out in found.out_layouts if out is not None]
    assert result is not None and outs is not None
    for local, projected in _without_local(program.layouts, outs, program.sizes):
        # With the Local axes at size 1 nothing is Local, and the other axes can be held to the full
        # promise.
        held = program.trace_for(projected)
        plain = [_replicated_over(local, layout) for layout in program.layouts]
        others = [_replicated_over(local, out) for out in outs]
        found = walk(held, alone, plain, program.names, others, program.out_names)
        if found.findings:
            raise LayoutError.of(found.findings)
    types = [
        _whole_type(var.aval, out, program.sizes)
        for var, out in zip(traces[0].outvars, outs, strict=True)
    ]
    return Proof(tuple(groups), alone, result, tuple(outs), tuple(types))


def _whole_type(part: Any, layout: LayoutMap, sizes: Mapping[str, int]) -> jax.ShapeDtypeStruct:
    shape = list(part.shape)
    for axis, one in layout.items_:
        if isinstance(one, Sliced):
            shape[one.dim] *= sizes[axis]
    return jax.ShapeDtypeStruct(tuple(shape), part.dtype)


def _walked(
    program: Program, at_n: Trace, alone: Trace, outs: Sequence[LayoutMap] | None
) -> WalkResult:
    """The walk of a program that is accepted; else the error shows the fixes that mend it."""

    def walked(repairs: tuple[Repair, ...] = ()) -> WalkResult:
        return walk(at_n, alone, program.layouts, program.names, outs, program.out_names, repairs)

    found = walked()
    if found.findings:
        raise LayoutError.of(
            with_tried_fixes(found.findings, lambda repairs: walked(repairs).findings)
        )
    return found


def _axis_by_axis(
    program: Program, error: LayoutError, alone: Trace, outs: Sequence[LayoutMap] | None
) -> LayoutError:
    """The error; where a factor may be that of several axes, what is wrong over each by itself."""
    several = [axis for axis, n in program.sizes.items() if n > 1]
    sizes = {program.sizes[axis] for axis in several}
    scaled = any(finding.code == "LAYOUT_SCALE" for finding in error.findings)
    if not scaled or len(sizes) == len(several):
        return error
    found: dict[Finding, None] = {}
    for axis in several:
        group = {other: n if other == axis else 1 for other, n in program.sizes.items()}
        try:
            _walked(program, program.trace_for(group), alone, outs)
        except LayoutError as one:
            found.update(dict.fromkeys(one.findings))
    return LayoutError.of(tuple(found)) if found else error


def traced(
    program: Program, out_layouts: Any
) -> tuple[list[Mapping[str, int]], list[Trace], Trace, list[LayoutMap] | None]:
    """The groups to check, their traces, that of a group of one, and the declared layouts."""
    groups = group_sizes(program.sizes)
    traces = [program.trace(), *(program.trace_for(group) for group in groups[1:])]
    alone = program.trace_for(dict.fromkeys(program.sizes, 1))
    shapes = [tuple(var.aval.shape) for var in alone.outvars]
    check_result_shapes(program.f, program.avals, shapes)
    return groups, traces, alone, _declared(out_layouts, traces[0], alone, tuple(program.sizes))


def _trace_at(program: Program, group: Mapping[str, int], changed: Sequence[str]) -> Trace:
    """The trace for a group that has other sizes than the mesh along the axes `changed`; on the
    mesh the function was traced before."""
    sizes = " and ".join(f"jax.lax.axis_size('{axis}')" for axis in changed or group)
    because = (
        "it can be traced on the mesh, but the check traces it for smaller groups too, and on the "
        "whole arrays"
    )
    fixes = (
        f"take the group's size from {sizes}, not from a Python constant",
        "let the per-rank shapes of the arguments fit one another for any number of ranks",
    )
    try:
        return program.explained_trace(group)
    except LayoutError as error:
        if error.code != "LAYOUT_TRACE":
            raise
        (finding,) = error.findings
        error.findings = (replace(finding, because=because, fixes=fixes),)
        raise
    except Exception as error:
        raise LayoutError(
            "LAYOUT_TRACE",
            f"the function cannot be traced for {group_text(group)}: "
            f"{type(error).__name__}: {error}",
            line=user_line(error),
            because=because,
            fixes=fixes,
        ) from error


def positive(layout: LayoutMap, leaf: Any) -> LayoutMap:
    """Negative dimensions counted from the front; a dimension that is not there is left for `trace`
    to refuse."""
    ndim = len(leaf.shape)
    return LayoutMap(
        tuple(
            (axis, Sliced(one.dim % ndim))
            if isinstance(one, Sliced) and -ndim <= one.dim < 0
            else (axis, one)
            for axis, one in layout.items_
        )
    )


def _declared(
    out_layouts: Any, traced: Trace, alone: Trace, axes: Sequence[str]
) -> list[LayoutMap] | None:
    if traced.out_tree != alone.out_tree:
        raise LayoutError(
            "LAYOUT_STRUCTURE",
            f"the result is {traced.out_tree} on n ranks and {alone.out_tree} on one",
        )
    if out_layouts is None:
        return None
    avals = [var.aval for var in alone.outvars]
    tree: Any = _tree.unflatten(traced.out_tree, avals)
    flat = flatten_layouts(out_layouts, tree, axes, "out_layouts")
    for index, (layout, aval) in enumerate(zip(flat, avals, strict=True)):
        for one in layout.values():
            if isinstance(one, Sliced) and not -aval.ndim <= one.dim < aval.ndim:
                raise LayoutError(
                    "LAYOUT_ARGUMENT",
                    f"result {index} has shape {tuple(aval.shape)}, which has no "
                    f"dimension {one.dim}",
                )
    return [positive(layout, aval) for layout, aval in zip(flat, avals, strict=True)]


def local_axes(layouts: Sequence[LayoutMap]) -> set[str]:
    return {axis for layout in layouts for axis in layout if layout[axis] == Local}


def _without_local(
    layouts: Sequence[LayoutMap], outs: Sequence[LayoutMap], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], dict[str, int]]]:
    """For each output: the axes over which it or an input is Local, and the sizes with these at 1.

    Without those that leave no axis.
    """
    given = local_axes(layouts)
    sets = dict.fromkeys(frozenset(given | local_axes([out])) for out in outs)
    return [
        (local, {axis: 1 if axis in local else n for axis, n in sizes.items()})
        for local in sets
        if local and any(n > 1 for axis, n in sizes.items() if axis not in local)
    ]


def _replicated_over(axes: Collection[str], layout: LayoutMap) -> LayoutMap:
    return LayoutMap(tuple((a, one) for a, one in layout.items_ if one != Local or a not in axes))
