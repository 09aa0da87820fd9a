"""The program that is checked, and its traces on a group of one and on groups of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxcc.layout._annotations import check_result_shapes
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._failures import explained, user_line
from jaxcc.layout._groups import group_sizes, group_text
from jaxcc.layout._layouts import LayoutMap, Sliced, flatten_layouts
from jaxcc.layout._trace import Trace, result_names, trace

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
      out_names: what messages call the results; by default their places in what `f` returns.
    """

    f: Callable[..., Any]
    avals: tuple[Any, ...]
    layouts: tuple[LayoutMap, ...]
    names: tuple[str, ...]
    sizes: Mapping[str, int]
    check_vma: bool
    axis_names: frozenset[str] | None = None
    out_names: tuple[str, ...] = ()

    def results(self, trace: Trace) -> tuple[str, ...]:
        """What messages call the results."""
        return self.out_names or tuple(result_names(trace.out_tree))

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
            explained(self.f, self.avals, self.layouts, group, self.names),
            self.avals,
            self.layouts,
            group,
            check_vma=self.check_vma,
            axis_names=self.axis_names,
        )


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
