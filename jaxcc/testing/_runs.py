"""A per-rank function with whole arguments, run for groups of several sizes on one device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc import TypedFunction, _compat
from jaxcc.layout import (
    LayoutError,
    LayoutMap,
    Local,
    Trace,
    argument_names,
    explained,
    flatten_layouts,
    global_array,
    manual_axes,
    mesh_sizes,
    on_host,
    on_ranks,
    rounding,
    smallest_group,
    trace,
)

Group = Mapping[str, int]


class OnGroup(NamedTuple):
    """A group that the function is run for: its trace, a runner (a function of a seed), and the
    tolerances that results are held against."""

    group: Group
    traced: Trace
    run: Callable[[int], Any]
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Runs:
    """What is run: a per-rank function, whole arguments, and their layouts.

    Attributes:
      f: the per-rank function.
      args: whole arrays.
      sizes: ranks along each axis of the mesh.
      in_layouts: per leaf of `args`.
      out_layouts: a pytree prefix of the result, or a list with one per leaf; None if unknown.
      check_vma: the flag of `jax.shard_map`.
      axis_names: the axes of which `f` is one rank; None for all.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    sizes: Group
    in_layouts: Sequence[LayoutMap]
    out_layouts: Any
    check_vma: bool
    axis_names: Collection[str] | None = None

    @property
    def name(self) -> str:
        """What messages call the function."""
        return getattr(self.f, "__name__", "the function")

    @property
    def one(self) -> Group:
        """The group of one."""
        return dict.fromkeys(self.sizes, 1)

    @property
    def random(self) -> bool:
        """Whether ranks' parts are drawn at random: those of Partial and Local arguments are."""
        return any(layout.stacked_axes() for layout in self.in_layouts)

    def local_over(self, group: Group) -> tuple[str, ...]:
        """The axes of several ranks over which an argument is Local, so that a group of one cannot
        hold it."""
        local = {axis for layout in self.in_layouts for axis in layout.axes_with(type(Local))}
        return tuple(axis for axis, n in group.items() if n > 1 and axis in local)

    def groups(self, sizes: Sequence[Group] | None) -> list[Group]:
        """The groups to run: those given, or the mesh's own and its smallest prime factors.

        With Local arguments also those with one rank along their axes: only these can be held
        against a group of one.
        """
        chosen = [self._full(group) for group in sizes or (self.sizes, smallest_group(self.sizes))]
        for group in list(chosen):
            chosen.append({**group, **dict.fromkeys(self.local_over(group), 1)})
        unlike = [group for at, group in enumerate(chosen) if group not in chosen[:at]]
        return [group for group in unlike if group != self.one]

    def _full(self, group: Group) -> Group:
        unknown = [axis for axis in group if axis not in self.sizes]
        if unknown:
            raise LayoutError(
                "LAYOUT_AXIS",
                f"sizes= names the axis '{unknown[0]}', but the mesh has {', '.join(self.sizes)}",
            )
        return {axis: group.get(axis, n) for axis, n in self.sizes.items()}

    def trace(self, group: Group) -> Trace:
        """The function as a rank of the group sees it."""
        known = explained(self.f, self.args, self.in_layouts, group)
        return trace(
            known,
            self.args,
            self.in_layouts,
            group,
            check_vma=self.check_vma,
            axis_names=self.axis_names,
        )

    def runner(self, traced: Trace, watch: str | None = None) -> Callable[[int], Any]:
        """A function of a seed that runs `traced`; see `on_ranks`."""
        compiled = on_ranks(traced, self.in_layouts, watch)

        def run(seed: int) -> Any:
            rng = np.random.default_rng(seed)
            leaves = [
                global_array(x, layout, traced.sizes, rng)
                for x, layout in zip(jax.tree.leaves(self.args), self.in_layouts, strict=True)
            ]
            results, watched = compiled(leaves)
            return list(map(on_host, results)), [(eqn, on_host(x)) for eqn, x in watched]

        return run

    def on_groups(
        self,
        alone: Trace,
        sizes: Sequence[Group] | None,
        rtol: float | None,
        atol: float | None,
        watch: str | None = None,
    ) -> Iterator[OnGroup]:
        """The groups to run, to be held against `alone`, the trace for a group of one."""
        for group in self.groups(sizes):
            traced = self.trace(group)
            rounding = tolerance(traced, alone) if rtol is None else rtol
            limits = {"rtol": rounding, "atol": rounding if atol is None else atol}
            yield OnGroup(group, traced, self.runner(traced, watch), limits)

    def seeds(self, given: Sequence[int]) -> Sequence[int]:
        """The seeds to run with: one suffices where nothing is random."""
        return given if self.random else given[:1]


def runs_of(
    f: Any,
    args: tuple[Any, ...],
    mesh: Any,
    in_layouts: Any,
    out_layouts: Any,
    check_vma: bool,
    axis_names: Collection[str] | None = None,
) -> Runs:
    """What to run for a typed function, or for a per-rank function with `mesh` and `in_layouts`.

    Raises:
      LayoutError: something that is needed is not given, or does not fit.
    """
    if isinstance(f, TypedFunction):
        if in_layouts is not None or out_layouts is not None:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{f.__name__} is a typed function, which has layouts of its own",
                fixes=("leave out in_layouts= and out_layouts=, or pass the per-rank function",),
            )
        f = f if mesh is None else f.over(mesh)
        call = f.bind(*args)
        report = f.check(*args)
        outs = list(report.out_layouts)
        sizes = mesh_sizes(f.mesh)
        given = _arrays(call.args)
        return Runs(call.f, given, sizes, report.in_layouts, outs, report.check_vma)
    if mesh is None or in_layouts is None:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            "a function that is not typed needs mesh= and in_layouts=",
            fixes=("pass them as for jaxcc.check", "decorate the function with @jaxcc.typed"),
        )
    sizes = mesh_sizes(mesh)
    args = _arrays(args)
    names = argument_names(f, [0] * len(args))
    layouts = flatten_layouts(in_layouts, args, tuple(sizes), "in_layouts", names)
    ours = manual_axes(axis_names, sizes)
    return Runs(f, args, sizes, layouts, out_layouts, check_vma, ours)


def _arrays(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return jax.tree.map(lambda x: on_host(jnp.asarray(x)), args)


def tolerance(*traces: Trace) -> float:
    """What is taken for rounding in programs with these traces."""
    return rounding(dtype for t in traces for dtype in _dtypes(t))


def _dtypes(traced: Trace) -> Iterator[Any]:
    yield from (var.aval.dtype for var in traced.invars)
    for eqn in _compat.all_eqns(traced.eqns):
        yield from (var.aval.dtype for var in eqn.outvars if hasattr(var.aval, "dtype"))
