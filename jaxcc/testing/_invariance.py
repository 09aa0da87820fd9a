"""`assert_rank_invariant`: the promise, tested by running."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from jaxcc.layout import (
    LayoutMap,
    Local,
    Partial,
    Trace,
    check,
    difference,
    flatten_layouts,
    group_text,
)
from jaxcc.testing._runs import Group, Runs, runs_of


def assert_rank_invariant(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    check_vma: bool = True,
    axis_names: Collection[str] | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Asserts that `f` computes the same on n ranks and on a group of one, by running it.

    It runs on one device, whatever the mesh, for the mesh's own sizes and for their smallest prime
    factors. Every rank's copy of every result is compared. A Local argument is whatever each rank
    has, here the elements of its array in an order of the rank's own; then results are held against
    a group of one along the other axes, and along its axis against their layouts alone.

    Args:
      f: a typed function, or a per-rank function with `mesh` and `in_layouts`.
      *args: whole arrays.
      mesh: as for `jaxcc.check`; by default the typed function's.
      in_layouts: as for `jaxcc.check`.
      out_layouts: the same for the result; None takes what `jaxcc.check` infers.
      check_vma: the flag of `jax.shard_map` that a function which is not typed runs with.
      axis_names: as for `jaxcc.check`.
      sizes: other groups to run, for instance `[{"tp": 2}, {"tp": 8}]`; an axis that is not named
        has the mesh's size.
      seeds: of the random parts of Partial and Local arguments; without these one run suffices.
      rtol: relative tolerance; by default that of the narrowest floating type in the program: 1e-9
        for float64, 1e-5 for float32, 1e-2 for float16 and 5e-2 for bfloat16. Integers are exact.
      atol: absolute tolerance; by default equal to `rtol`.

    Raises:
      AssertionError: a result differs; says which, on which rank of which group, and by how much.
      LayoutError: the program cannot be traced, or `jaxcc.check` refuses it.
    """
    runs = runs_of(f, args, mesh, in_layouts, out_layouts, check_vma, axis_names)
    alone = runs.trace(runs.one)
    expected = [y.reshape(y.shape[len(runs.sizes) :]) for y in runs.runner(alone)(0)[0]]
    outs = _out_layouts(runs, alone, expected)
    for group, traced, run, limits in runs.on_groups(alone, sizes, rtol, atol):
        if traced.out_tree != alone.out_tree:
            raise AssertionError(
                f"{runs.name} returns {traced.out_tree} on {group_text(group)}, and "
                f"{alone.out_tree} on one rank"
            )
        for seed in runs.seeds(seeds):
            found = run(seed)[0]
            whole = [None] * len(found) if runs.local_over(group) else expected
            _compare(runs, group, found, whole, outs, limits, seed)


def _out_layouts(runs: Runs, alone: Trace, expected: Sequence[Any]) -> list[tuple[str, LayoutMap]]:
    """What messages call each leaf of the result, and its layout."""
    axes = tuple(runs.sizes)
    layouts = runs.out_layouts
    if layouts is None:
        report = check(
            runs.f,
            *runs.args,
            mesh=runs.sizes,
            in_layouts=jax.tree.unflatten(jax.tree.structure(runs.args), runs.in_layouts),
            check_vma=runs.check_vma,
            axis_names=runs.axis_names,
        )
        layouts = list(report.out_layouts)
    result = jax.tree.unflatten(alone.out_tree, expected)
    flat = isinstance(layouts, list) and len(layouts) == len(expected)
    given: Any = jax.tree.unflatten(alone.out_tree, layouts) if flat else layouts
    names = [f"result{jax.tree_util.keystr(p)}" for p, _ in jax.tree.leaves_with_path(result)]
    return list(zip(names, flatten_layouts(given, result, axes, "out_layouts"), strict=True))


def _compare(
    runs: Runs,
    group: Group,
    found: Sequence[Any],
    whole: Sequence[Any],
    outs: Sequence[tuple[str, LayoutMap]],
    limits: Mapping[str, float],
    seed: int,
) -> None:
    for got, one, (name, layout) in zip(found, whole, outs, strict=True):
        off = difference(got, one, layout, group, **limits)
        if off is None:
            continue
        of = " and pending, so reduced here" if layout.axes_with(Partial) else ""
        claim = "not equal on all ranks" if _own_only(one, layout, group) else "not as on one rank"
        raise AssertionError(
            f"{name} of {runs.name} on {group_text(group)} is {claim}: it is "
            f"{layout.describe()}{of}; {off}\n"
            f"  {got.dtype}, rtol={limits['rtol']:g}, atol={limits['atol']:g}, seed {seed}"
        )


def _own_only(one: Any, layout: LayoutMap, group: Group) -> bool:
    return one is None or any(group[axis] > 1 for axis in layout.axes_with(type(Local)))
