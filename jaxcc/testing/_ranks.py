"""Runs a per-rank function for every rank of a group on one device, and compares it with a group of
one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxcc.layout import (
    LayoutMap,
    Partial,
    ReduceOp,
    Replicated,
    Sliced,
    flatten_layouts,
    mesh_sizes,
)

_REDUCE: Mapping[ReduceOp, Callable[..., Any]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


def split(
    whole: Any, layout: LayoutMap, sizes: Mapping[str, int], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Every rank's part of `whole`, stacked along a leading dimension for each axis of `sizes`.

    Over a Partial axis the parts are random and reduce to `whole`; over a Local one all are
    `whole`.
    """
    array: np.ndarray[Any, Any] = np.asarray(whole)
    ranks = list(itertools.product(*(range(n) for n in sizes.values())))
    values: dict[tuple[int, ...], Any] = {rank: array for rank in ranks}
    for axis, one in layout.items():
        at = list(sizes).index(axis)
        if isinstance(one, Sliced):
            blocks = {r: np.split(values[r], sizes[axis], one.dim)[r[at]] for r in ranks}
            values = blocks
        elif isinstance(one, Partial):
            terms: dict[Any, Any] = {}
            for rank in ranks:
                group = (*rank[:at], *rank[at + 1 :])
                if group not in terms:
                    terms[group] = _terms(values[rank], one.op, sizes[axis], rng)
            values = {r: terms[(*r[:at], *r[at + 1 :])][r[at]] for r in ranks}
    shape = values[ranks[0]].shape
    return np.stack([values[r] for r in ranks]).reshape(*sizes.values(), *shape)


def _terms(
    whole: np.ndarray[Any, Any], op: ReduceOp, n: int, rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """n random arrays that reduce to `whole`."""
    noise = rng.standard_normal((n, *whole.shape)).astype(whole.dtype)
    if op == "sum":
        noise[-1] = whole - noise[:-1].sum(0)
    elif op == "prod":
        noise = 1 + abs(noise)
        noise[-1] = whole / noise[:-1].prod(0)
    else:
        # Every element is held by one rank; the others have less (max) or more (min).
        noise = whole - abs(noise) if op == "max" else whole + abs(noise)
        owner = rng.integers(0, n, whole.shape)
        noise = np.where(np.arange(n).reshape(n, *[1] * whole.ndim) == owner, whole, noise)
    return list(noise)


def join(parts: Any, layout: LayoutMap, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """The whole array of the stacked parts; over a Replicated axis the first rank speaks for
    all."""
    parts = np.asarray(parts)
    left = list(sizes)
    order = [*layout, *(axis for axis in sizes if axis not in layout)]
    # Of two axes that slice one dimension the last is the minor one, so its blocks are joined
    # first.
    for axis in reversed(order):
        at = left.index(axis)
        one = layout[axis]
        if isinstance(one, Sliced):
            dim = one.dim if one.dim >= 0 else one.dim + parts.ndim - len(left)
            parts = np.concatenate(list(np.moveaxis(parts, at, 0)), len(left) - 1 + dim)
        elif isinstance(one, Partial):
            parts = _REDUCE[one.op](parts, axis=at)
        else:
            parts = parts.take(0, at)
        left.remove(axis)
    return parts


def run_ranks(
    f: Callable[..., Any], parts: Sequence[Any], tree: Any, sizes: Mapping[str, int]
) -> list[np.ndarray[Any, Any]]:
    """The result's leaves on every rank, stacked as the arguments' leaves `parts` are."""

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(f(*jax.tree.unflatten(tree, leaves)))

    mapped: Callable[..., Any] = flat
    for axis, n in reversed(list(sizes.items())):
        mapped = jax.vmap(mapped, axis_name=axis, axis_size=n)
    return [np.asarray(x) for x in mapped(*map(jax.numpy.asarray, parts))]


def assert_rank_invariant(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any,
    in_layouts: Any,
    out_layouts: Any,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    seed: int = 0,
) -> None:
    """Asserts that `f` computes the same on the ranks of `mesh` and on a group of one.

    Every rank's copy of the result is looked at. Runs on one device, whatever the mesh.

    Args:
      f: the per-rank function.
      *args: whole arrays.
      mesh: as for `jaxcc.check`.
      in_layouts: as for `jaxcc.check`, without Local.
      out_layouts: the same for the result.
      rtol: relative tolerance.
      atol: absolute tolerance.
      seed: of the random terms of Partial arguments.
    """
    sizes = mesh_sizes(mesh)
    leaves, tree = jax.tree.flatten(args)
    axes = tuple(sizes)
    rng = np.random.default_rng(seed)
    layouts = flatten_layouts(in_layouts, args, axes, "in_layouts")
    parts = [split(x, layout, sizes, rng) for x, layout in zip(leaves, layouts, strict=True)]
    ones = dict.fromkeys(sizes, 1)
    alone = [np.asarray(x).reshape(*ones.values(), *np.shape(x)) for x in leaves]
    expected = [x.reshape(x.shape[len(axes) :]) for x in run_ranks(f, alone, tree, ones)]
    out_tree = jax.tree.structure(_result_shape(f, args, sizes))
    outs = flatten_layouts(out_layouts, jax.tree.unflatten(out_tree, expected), axes, "out_layouts")
    for index, (got, want, layout) in enumerate(
        zip(run_ranks(f, parts, tree, sizes), expected, outs, strict=True)
    ):
        for at, axis in enumerate(axes):
            if layout[axis] == Replicated:
                np.testing.assert_allclose(
                    got,
                    np.broadcast_to(got.take([0], at), got.shape),
                    rtol=rtol,
                    atol=atol,
                    err_msg=f"result {index} differs between ranks of '{axis}'",
                )
        np.testing.assert_allclose(
            join(got, layout, sizes), want, rtol=rtol, atol=atol, err_msg=f"result {index}"
        )


def _result_shape(f: Callable[..., Any], args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    """The result of `f` on a group of one, as shapes."""
    mapped: Callable[..., Any] = f
    for axis in reversed(list(sizes)):
        mapped = jax.vmap(mapped, axis_name=axis, axis_size=1)
    lifted = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*[1] * len(sizes), *np.shape(x)), x.dtype), tuple(args)
    )
    return jax.eval_shape(mapped, *lifted)
