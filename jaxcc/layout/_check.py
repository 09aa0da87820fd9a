"""`jaxcc.check`: whether a per-rank program computes the same on one rank and on n."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import jax

from jaxcc.layout._annotations import check_result_shapes
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._failures import explained, user_line
from jaxcc.layout._layouts import LayoutMap, Local, Partial, Sliced, flatten_layouts
from jaxcc.layout._report import LayoutReport
from jaxcc.layout._trace import Trace, argument_names, trace
from jaxcc.layout._walk import WalkResult, walk

_tree: Any = jax.tree


def check(
    f: Callable[..., Any],
    *avals: Any,
    mesh: Any,
    in_layouts: Any,
    out_layouts: Any = None,
    check_vma: bool = True,
    grad: int | tuple[int, ...] | None = None,
    grads: Literal["summed", "pending"] = "summed",
) -> LayoutReport:
    """Checks that `f` computes the same on a group of one and on the groups of `mesh`; needs no
    devices.

    Args:
      f: the per-rank function of positional arguments.
      *avals: its arguments; every leaf has the *whole* array's `.shape` and `.dtype`.
      mesh: a Mesh, an AbstractMesh, or anything whose `.shape` maps axis names to sizes.
      in_layouts: a pytree prefix of the arguments (a tuple with an entry for each).
      out_layouts: a pytree prefix of the result; None infers the layouts and reports them.
      check_vma: the flag of `jax.shard_map` that the program will run with.
      grad, grads: not in this release; grad=None is the only value that is accepted.

    Returns:
      The program with the layout of each value.

    Raises:
      LayoutError: with everything that is wrong with the program.
    """
    if grad is not None:
        raise LayoutError(
            "LAYOUT_UNSUPPORTED",
            f"check(grad={grad!r}, grads={grads!r}) is not in this release",
            fixes=("check a function that calls jax.value_and_grad inside",),
        )
    sizes = mesh_sizes(mesh)
    axes = tuple(sizes)
    parameters = argument_names(f, [0] * len(avals))
    layouts = [
        _positive(layout, leaf)
        for layout, leaf in zip(
            flatten_layouts(in_layouts, tuple(avals), axes, "in_layouts", parameters),
            jax.tree.leaves(tuple(avals)),
            strict=True,
        )
    ]
    names = argument_names(f, avals)
    for layout, name in zip(layouts, names, strict=True):
        _one_pending(layout, name)
    groups = _groups(sizes)
    traces = [
        trace(explained(f, avals, layouts, sizes), avals, layouts, sizes, check_vma=check_vma)
    ]
    traces += [_trace_at(f, avals, layouts, group, check_vma) for group in groups[1:]]
    alone = _trace_at(f, avals, layouts, dict.fromkeys(sizes, 1), check_vma)
    check_result_shapes(f, avals, [tuple(var.aval.shape) for var in alone.outvars])
    outs = _declared(out_layouts, traces[0], alone, axes)
    result: WalkResult | None = None
    for traced in traces:
        found = walk(traced, alone, layouts, names, outs)
        if found.findings:
            raise LayoutError.of(found.findings)
        if result is None:
            result = found
            outs = [out for out in found.out_layouts if out is not None]
    for local, projected in _without_local(layouts, outs or [], sizes):
        # With the Local axes at size 1 nothing is Local, and the other axes can be held to the full
        # promise.
        held = _trace_at(f, avals, layouts, projected, check_vma)
        plain = [_replicated_over(local, layout) for layout in layouts]
        local_outs = None if outs is None else [_replicated_over(local, out) for out in outs]
        found = walk(held, alone, plain, names, local_outs)
        if found.findings:
            raise LayoutError.of(found.findings)
    assert result is not None
    return LayoutReport(
        sizes=tuple(groups),
        in_layouts=tuple(layouts),
        out_layouts=tuple(out for out in result.out_layouts if out is not None),
        lines=result.lines,
        check_vma=check_vma,
        in_names=tuple(names),
        notes=_notes(layouts),
    )


def mesh_sizes(mesh: Any) -> dict[str, int]:
    """Ranks along each axis of a mesh."""
    shape: Any = getattr(mesh, "shape", mesh)
    if not isinstance(shape, Mapping) or not shape:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"mesh has to be a jax Mesh or AbstractMesh with an axis, not {mesh!r}",
        )
    sizes = cast(Mapping[str, int], shape)
    return {str(axis): int(n) for axis, n in sizes.items()}


def _positive(layout: LayoutMap, leaf: Any) -> LayoutMap:
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


def _one_pending(layout: LayoutMap, name: str) -> None:
    ops = {one.op for one in layout.values() if isinstance(one, Partial)}
    if len(ops) > 1:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name} is {layout!r}: pending reductions of two kinds have no order",
        )


def _groups(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The mesh's own sizes, and their smallest prime factors."""
    smallest = {axis: _smallest_factor(n) for axis, n in sizes.items()}
    return [dict(sizes)] if smallest == dict(sizes) else [dict(sizes), smallest]


def _smallest_factor(n: int) -> int:
    return next((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), n)


def _trace_at(
    f: Callable[..., Any],
    avals: Sequence[Any],
    layouts: Sequence[LayoutMap],
    group: Mapping[str, int],
    check_vma: bool,
) -> Trace:
    """The trace for a group that is not the mesh's, on which the function was traced before."""
    axis = next(iter(group))
    because = (
        "it can be traced on the mesh, but the check traces it for smaller groups too, and on the "
        "whole arrays"
    )
    fixes = (
        f"take the group's size from jax.lax.axis_size('{axis}'), not from a Python constant",
        "let the per-rank shapes of the arguments fit one another for any number of ranks",
    )
    try:
        known = explained(f, avals, layouts, group)
        return trace(known, avals, layouts, group, check_vma=check_vma)
    except LayoutError as error:
        if error.code != "LAYOUT_TRACE":
            raise
        (finding,) = error.findings
        error.findings = (replace(finding, because=because, fixes=fixes),)
        raise
    except Exception as error:
        shown = ", ".join(f"{axis}={n}" for axis, n in group.items())
        raise LayoutError(
            "LAYOUT_TRACE",
            f"the function cannot be traced for {shown}: {type(error).__name__}: {error}",
            line=user_line(error),
            because=because,
            fixes=fixes,
        ) from error


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
    return [_positive(layout, aval) for layout, aval in zip(flat, avals, strict=True)]


def _local_axes(layouts: Sequence[LayoutMap]) -> set[str]:
    return {axis for layout in layouts for axis in layout if layout[axis] == Local}


def _without_local(
    layouts: Sequence[LayoutMap], outs: Sequence[LayoutMap], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], dict[str, int]]]:
    """For each output: the axes over which it or an input is Local, and the sizes with these at 1.

    Without those that leave no axis.
    """
    given = _local_axes(layouts)
    sets = dict.fromkeys(frozenset(given | _local_axes([out])) for out in outs)
    return [
        (local, {axis: 1 if axis in local else n for axis, n in sizes.items()})
        for local in sets
        if local and any(n > 1 for axis, n in sizes.items() if axis not in local)
    ]


def _replicated_over(axes: Collection[str], layout: LayoutMap) -> LayoutMap:
    return LayoutMap(tuple((a, one) for a, one in layout.items_ if one != Local or a not in axes))


def _notes(layouts: Sequence[LayoutMap]) -> tuple[str, ...]:
    local = sorted(_local_axes(layouts))
    partial = sorted({a for layout in layouts for a in layout if isinstance(layout[a], Partial)})
    notes: list[str] = []
    if local:
        notes.append(
            f"inputs are Local over {', '.join(local)}: what comes from them is what its "
            f"layout says, "
            "and no group of one can hold it"
        )
    if partial:
        notes.append(f"Partial inputs over {', '.join(partial)} stand for their reduction")
    return tuple(notes)
