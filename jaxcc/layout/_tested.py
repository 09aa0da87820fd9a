"""Programs that take another path for every number of ranks: run, not proved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxcc import _compat
from jaxcc.layout._checked import Program, traced
from jaxcc.layout._dtypes import is_key
from jaxcc.layout._emulate import on_ranks
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._flatten import flatten
from jaxcc.layout._groups import group_text
from jaxcc.layout._layouts import LayoutMap, Sliced
from jaxcc.layout._notes import program_notes
from jaxcc.layout._parts import difference, global_array
from jaxcc.layout._proof import local_axes
from jaxcc.layout._report import LayoutReport, ReportSource, type_texts
from jaxcc.layout._trace import Trace

_SEEDS = 3
_SMALL = 8
_jax: Any = jax
_jnp: Any = jax.numpy
_np: Any = np


def tested(program: Program, out_layouts: Any) -> LayoutReport:
    """Runs the program with random arguments on one rank and on several, and compares every rank's
    copy of the results; all on one device.

    Raises:
      LayoutError: LAYOUT_TESTED if a result is not what its layout says.
    """
    if out_layouts is None:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            "a program with structure='rank-dependent' needs out_layouts",
            because="what is run and not proved cannot tell the layouts of its results",
            fixes=("pass out_layouts",),
        )
    groups, traces, alone, outs = traced(program, out_layouts)
    assert outs is not None
    compared = _without_local(alone, program.layouts, outs)
    bound = _index_bound(program)
    runs = [on_ranks(one, program.layouts) for one in (*traces, alone)]
    for seed in range(_SEEDS):
        rng = np.random.default_rng(seed)
        wholes = [_random(leaf, rng, bound) for leaf in _jax.tree.leaves(program.avals)]
        sizes = [*groups, dict.fromkeys(program.sizes, 1)]
        inputs = [
            [global_array(x, layout, size, rng) for x, layout in _each(wholes, program)]
            for size in sizes
        ]
        try:
            *found, expected = (run(one)[0] for run, one in zip(runs, inputs, strict=True))
        # Nothing of ours is left out: JAX raises it for a primitive that jax.vmap has no rule for.
        except NotImplementedError as error:
            raise LayoutError(
                "LAYOUT_UNSUPPORTED",
                f"the program cannot be run for all ranks on one device: {error}",
                because="every rank is a lane of jax.vmap, which not all of it has a rule for",
                fixes=("run it on the ranks themselves, and compare with one rank",),
            ) from error
        for parts, size in zip(found, groups, strict=True):
            whole = [one if at in compared else None for at, one in enumerate(expected)]
            _compare(parts, whole, outs, size, len(program.sizes))
    names = program.results(alone)
    return LayoutReport(
        sizes=tuple(groups),
        in_layouts=program.layouts,
        out_layouts=tuple(outs),
        check_vma=program.check_vma,
        in_names=program.names,
        in_types=type_texts(_jax.tree.leaves(program.avals)),
        out_names=names,
        out_types=type_texts([var.aval for var in alone.outvars]),
        notes=(
            f"tested with {_SEEDS} sets of random arguments, not proved",
            *program_notes(program, traces[0]),
        ),
        proved=False,
        source=ReportSource(steps=flatten(traces[0]).steps, sizes=program.sizes),
    )


def _each(wholes: Sequence[Any], program: Program) -> list[tuple[Any, LayoutMap]]:
    return list(zip(wholes, program.layouts, strict=True))


def _without_local(
    alone: Trace, layouts: Sequence[LayoutMap], outs: Sequence[LayoutMap]
) -> set[int]:
    """The results that a group of one can hold: they do not depend on what is Local."""
    reached = {v for v, one in zip(alone.invars, layouts, strict=True) if local_axes([one])}
    for eqn in alone.eqns:
        if reached.intersection(v for v in eqn.invars if not isinstance(v, _compat.Literal)):
            reached.update(eqn.outvars)
    return {
        at
        for at, (var, out) in enumerate(zip(alone.outvars, outs, strict=True))
        if not local_axes([out]) and (isinstance(var, _compat.Literal) or var not in reached)
    }


def _index_bound(program: Program) -> int:
    """Below what integers are drawn: indices have to reach every rank's block of what is sliced."""
    sizes = [
        leaf.shape[one.dim]
        for leaf, layout in zip(_jax.tree.leaves(program.avals), program.layouts, strict=True)
        for one in layout.values()
        if isinstance(one, Sliced) and not _jnp.issubdtype(leaf.dtype, _jnp.integer)
    ]
    return min((size for size in sizes if size > _SMALL), default=_SMALL)


def _random(leaf: Any, rng: np.random.Generator, bound: int) -> Any:
    """A random array of a type: integers are small, so that they may be indices."""
    if is_key(leaf):
        seeds = rng.integers(0, 2**31, leaf.shape).tolist()
        return (
            _jax.vmap(_jax.random.key)(_jnp.asarray(seeds))
            if leaf.shape
            else _jax.random.key(seeds)
        )
    if _jnp.issubdtype(leaf.dtype, _jnp.complexfloating):
        parts = rng.standard_normal((2, *leaf.shape))
        return (parts[0] + 1j * parts[1]).astype(leaf.dtype)
    if _jnp.issubdtype(leaf.dtype, _jnp.floating):
        return _np.asarray(rng.standard_normal(leaf.shape), leaf.dtype)
    return _np.asarray(rng.integers(0, 2 if leaf.dtype == bool else bound, leaf.shape), leaf.dtype)


def _largest(found: Any) -> float:
    """The largest magnitude of the elements that are finite: what rounding is measured by."""
    if is_key(found) or not _jnp.issubdtype(found.dtype, _jnp.inexact):
        return 1.0
    size = np.abs(_np.asarray(found, complex))
    return float(size[np.isfinite(size)].max(initial=0.0))


def _compare(
    parts: Sequence[Any],
    expected: Sequence[Any],
    outs: Sequence[LayoutMap],
    sizes: Any,
    axes: int,
) -> None:
    for at, (found, layout) in enumerate(zip(parts, outs, strict=True)):
        one = expected[at]
        whole = None if one is None else one.reshape(one.shape[axes:])
        half = np.dtype(found.dtype).itemsize < 4 if not is_key(found) else False
        loose = 3e-2 if half else 2e-4
        off = difference(found, whole, layout, sizes, rtol=loose, atol=loose * _largest(found))
        if off is None:
            continue
        raise LayoutError(
            "LAYOUT_TESTED",
            f"result {at} is not what {layout.describe()} says when the program runs on "
            f"{group_text(sizes)}",
            because=str(off),
            fixes=("compare the ranks' values with those of one rank, step by step",),
        )
