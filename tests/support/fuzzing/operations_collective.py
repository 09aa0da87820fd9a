"""Collectives, on all ranks' arrays at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fuzzing.call import Array, Call, Unsupported


def _axes(call: Call) -> tuple[str, ...]:
    if call.params.get("axis_index_groups") is not None:
        raise Unsupported("axis_index_groups")
    given = call.params.get("axes", call.params.get("axis_name", ()))
    axes = (given,) if isinstance(given, str) else tuple(given)
    if any(axis not in call.sizes for axis in axes):
        raise Unsupported("a collective over the axis of a vmap")
    return axes


def _grouped(call: Call, x: Array) -> tuple[Array, list[int], int]:
    """`x` with its group's ranks in one leading dimension, the places they came from, and their
    number."""
    axes = _axes(call)
    places = [list(call.sizes).index(axis) for axis in axes]
    moved = np.moveaxis(x, places, range(len(places)))
    n = math.prod(call.sizes[axis] for axis in axes)
    return moved.reshape(n, *moved.shape[len(places) :]), places, call.lead - len(places)


def _ungrouped(call: Call, x: Array, places: Sequence[int]) -> Array:
    sizes = [call.sizes[axis] for axis in _axes(call)]
    return np.moveaxis(x.reshape(*sizes, *x.shape[1:]), range(len(places)), places)


def _all_reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(call: Call, *operands: Array) -> list[Array]:
        at = tuple(list(call.sizes).index(axis) for axis in _axes(call))
        return [np.broadcast_to(function(x, axis=at, keepdims=True), x.shape) for x in operands]

    return run


def _all_gather(call: Call, x: Array) -> Array:
    group, places, rest = _grouped(call, x)
    dim = rest + int(call["all_gather_dimension"])
    join = np.concatenate if call["tiled"] else np.stack
    whole = join(list(group), dim)
    return _ungrouped(call, np.broadcast_to(whole, (len(group), *whole.shape)), places)


def _reduce_scatter(call: Call, x: Array) -> Array:
    group, places, rest = _grouped(call, x)
    dim = rest + int(call["scatter_dimension"])
    blocks = np.stack(np.split(group.sum(0), len(group), dim))
    return _ungrouped(call, blocks if call["tiled"] else blocks.squeeze(1 + dim), places)


def _all_to_all(call: Call, x: Array) -> Array:
    group, places, rest = _grouped(call, x)
    split, concat, n = int(call["split_axis"]), int(call["concat_axis"]), len(group)
    parts = [np.split(sender, n, rest + split) for sender in group]
    if call["tiled"]:
        made = [np.concatenate([p[r] for p in parts], rest + concat) for r in range(n)]
    else:
        made = [
            np.stack([p[r].squeeze(rest + split) for p in parts], rest + concat) for r in range(n)
        ]
    return _ungrouped(call, np.stack(made), places)


def _ppermute(call: Call, x: Array) -> Array:
    group, places, _ = _grouped(call, x)
    out = np.zeros_like(group)
    for source, target in call["perm"]:
        out[target] = group[source]
    return _ungrouped(call, out, places)


def _axis_index(call: Call) -> Array:
    axes = _axes(call)
    index: Any = 0
    for axis in axes:
        at = list(call.sizes).index(axis)
        shape = [n if d == at else 1 for d, n in enumerate(call.sizes.values())]
        index = index * call.sizes[axis] + np.arange(call.sizes[axis]).reshape(shape)
    return np.broadcast_to(index, tuple(call.sizes.values()))


COLLECTIVES: Mapping[str, Callable[..., Any]] = {
    "psum": _all_reduce(np.sum),
    "pmax": _all_reduce(np.max),
    "pmin": _all_reduce(np.min),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
}
