"""Runs a traced program for all ranks of a group on one device.

What runs is the trace that the checker sees, not the function: `jax.grad` inside it means what it
means under `shard_map`. Every rank is one lane of `jax.vmap` with the axis's name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding

from jaxcc import _compat
from jaxcc.layout._assume import ASSUME
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._failures import explained
from jaxcc.layout._lanes import COLLECTIVES
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._nested import opened
from jaxcc.layout._parts import split
from jaxcc.layout._trace import Trace, trace

# JAX has types for some of its parameters only.
_jax: Any = jax
_lax: Any = lax

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of XLA for code that is made soon rather than fast."""

Watched = list[tuple[Any, Any]]
"""Equations that are watched, each with its first operand, in the order in which they run."""


def run_on_ranks(
    f: Callable[..., Any],
    args: Sequence[Any],
    layouts: Sequence[LayoutMap],
    sizes: Mapping[str, int],
    *,
    check_vma: bool = True,
) -> list[Any]:
    """The leaves of `f`'s result on every rank, stacked along one leading dimension per axis.

    Args:
      f: the per-rank function.
      args: positional arguments; the leaves are global arrays, so Local and Partial ones start
        with a dimension for the ranks of each such axis.
      layouts: one per leaf of `args`.
      sizes: ranks along each axis.
      check_vma: the flag of `jax.shard_map` that the program runs with.
    """
    leaves, tree = _jax.tree.flatten(tuple(args))
    shapes = [
        jax.ShapeDtypeStruct(x.shape[len(layout.stacked_axes()) :], x.dtype)
        for x, layout in zip(leaves, layouts, strict=True)
    ]
    avals = _jax.tree.unflatten(tree, shapes)
    known = explained(f, avals, layouts, sizes)
    traced = trace(known, avals, layouts, sizes, check_vma=check_vma)
    return on_ranks(traced, layouts, optimize=True)(leaves)[0]


def on_ranks(
    traced: Trace,
    layouts: Sequence[LayoutMap],
    watch: str | None = None,
    *,
    optimize: bool = False,
) -> Callable[[Sequence[Any]], tuple[list[Any], Watched]]:
    """The traced program as a function of global leaves, which compiles when it first runs.

    It returns the result's leaves as `run_on_ranks` does, and, stacked like them, the operands of
    the operations called `watch`. What is tested runs a few times on small arrays, so by default
    XLA is asked for code that is made soon rather than fast.
    """
    sizes = traced.sizes
    eqns: list[Any] = []

    def per_rank(*given: Any) -> tuple[list[Any], list[Any]]:
        run = _Run(watch)
        values = dict(traced.consts) | dict(zip(traced.invars, given, strict=True))
        run.eqns(traced.eqns, values)
        eqns[:] = [eqn for eqn, _ in run.watched]
        return [_read(atom, values) for atom in traced.outvars], [x for _, x in run.watched]

    function: Any = per_rank
    for axis, n in reversed(list(sizes.items())):
        function = _jax.vmap(function, axis_name=axis, axis_size=n)
    compiled = _jax.jit(function, compiler_options=None if optimize else QUICK)

    def run_all(leaves: Sequence[Any]) -> tuple[list[Any], Watched]:
        # What is part of another trace is compiled with it, as that is.
        run = function if any(map(_compat.is_tracer, leaves)) else compiled
        with _one_device(leaves):
            parts = [split(x, layout, sizes) for x, layout in zip(leaves, layouts, strict=True)]
            results, seen = run(*parts)
        return results, list(zip(eqns, seen, strict=True))

    return run_all


def evaluated(jaxpr: Any, given: Sequence[Any]) -> list[Any]:
    """The results of a traced jaxpr, traced anew for no mesh."""
    return _Run(None).jaxpr(jaxpr, given)


def _one_device(leaves: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Shuts out a mesh of many devices that the user has set; inside a trace, the ranks are a part
    of what runs on it."""
    if any(map(_compat.is_tracer, leaves)) or _compat.current_mesh().size == 1:
        return contextlib.nullcontext()
    device = np.asarray(_jax.devices()[:1])
    return _jax.set_mesh(Mesh(device, ("device",), axis_types=(AxisType.Auto,)))


def _read(atom: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(atom, _compat.Literal):
        return _compat.literal_value(atom)
    return values[atom]


def _without_mesh(eqn: Any) -> Any:
    """The equation less the shardings that it has over the mesh of the trace."""
    params = eqn.params
    ours = [key for key, value in params.items() if isinstance(value, NamedSharding)]
    return eqn.replace(params=params | dict.fromkeys(ours)) if ours else eqn


class _Run:
    """Evaluates equations; loops and branches are built anew, for no mesh."""

    def __init__(self, watch: str | None) -> None:
        self.watch = watch
        self.watched: Watched = []

    def jaxpr(self, jaxpr: Any, given: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr on its arguments."""
        body = _compat.open_jaxpr(jaxpr)
        values = dict(zip(body.constvars, _compat.jaxpr_consts(jaxpr), strict=True))
        # custom_vjp_call and custom_jvp_call pass only their leading operands to the function.
        values |= dict(zip(body.invars, given, strict=False))
        self.eqns(body.eqns, values)
        return [_read(atom, values) for atom in body.outvars]

    def eqns(self, eqns: Sequence[Any], values: dict[Any, Any]) -> None:
        """Adds what the equations define to `values`."""
        for eqn in eqns:
            op = _compat.op_name(eqn)
            if op == "shard_map":
                self.eqns(opened(eqn), values)
                continue
            given = [_read(atom, values) for atom in eqn.invars]
            if op == self.watch:
                self.watched.append((eqn, given[0]))
            if op in _compat.CALLS:
                results = self.jaxpr(next(iter(_compat.inner_jaxprs(eqn))), given)
            elif op in _BUILT:
                results = _BUILT[op](self, eqn, given)
            elif op in COLLECTIVES:
                results = [COLLECTIVES[op](eqn, x) for x in given]
            elif op in _IDENTITIES:
                results = given
            else:
                results = _compat.bind(_without_mesh(eqn), *given)
            values.update(zip(eqn.outvars, results, strict=True))

    def unwatched(self, function: Callable[[], Any], eqn: Any) -> Any:
        """What `function` returns; it may not meet what is watched."""
        before = len(self.watched)
        result = function()
        if len(self.watched) > before:
            raise LayoutError(
                "LAYOUT_UNSUPPORTED",
                f"{self.watch} inside {_compat.op_name(eqn)} cannot be tested by running it",
                line=_compat.source_line(self.watched[-1][0]) or _compat.source_line(eqn),
                because="how often it runs, or whether, is known only while it runs",
                fixes=("test the function that the loop or branch calls by itself",),
            )
        return result


def _scan(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    jaxpr = eqn.params["jaxpr"]
    constants, carried, _ = _compat.scan_counts(eqn)
    first_xs = constants + carried
    consts, carry, xs = given[:constants], given[constants:first_xs], given[first_xs:]
    watched: list[Any] = []

    def step(carry: Any, x: Any) -> Any:
        inner = _Run(run.watch)
        out = inner.jaxpr(jaxpr, [*consts, *carry, *x])
        watched[:] = [eqn for eqn, _ in inner.watched]
        return out[:carried], (out[carried:], [value for _, value in inner.watched])

    length = eqn.params["length"]
    kept = {key: eqn.params[key] for key in ("reverse", "unroll")}
    carry, (ys, seen) = _lax.scan(step, carry, xs, length, **kept)
    run.watched += [(e, y[i]) for i in range(length) for e, y in zip(watched, seen, strict=True)]
    return [*carry, *ys]


def _while(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    params = eqn.params
    to_cond = params["cond_nconsts"]
    to_body = to_cond + params["body_nconsts"]

    def condition(carry: list[Any]) -> Any:
        return run.jaxpr(params["cond_jaxpr"], [*given[:to_cond], *carry])[0]

    def body(carry: list[Any]) -> list[Any]:
        return run.jaxpr(params["body_jaxpr"], [*given[to_cond:to_body], *carry])

    return run.unwatched(lambda: _lax.while_loop(condition, body, given[to_body:]), eqn)


def _cond(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    def branch(jaxpr: Any) -> Callable[..., list[Any]]:
        return lambda *operands: run.jaxpr(jaxpr, operands)

    branches = [branch(jaxpr) for jaxpr in eqn.params["branches"]]
    return run.unwatched(lambda: _lax.switch(given[0], branches, *given[1:]), eqn)


# Outside of shard_map there is nothing to cast or to place; a claim is watched, not computed.
_IDENTITIES = frozenset({"pvary", "reduced_vary_cast", "sharding_constraint", "reshard", ASSUME})
_BUILT: Mapping[str, Callable[[_Run, Any, list[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
