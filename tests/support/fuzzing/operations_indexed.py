"""Gathers, scatters and slices at positions that are values, rank by rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fuzzing.call import Array, Call


def _each_rank(call: Call, function: Callable[..., Array], *operands: Array) -> Array:
    lead = tuple(call.sizes.values())
    made = [function(*(x[rank] for x in operands)) for rank in np.ndindex(*lead)]
    return np.stack(made).reshape(*lead, *made[0].shape)


def _dynamic_slice(call: Call, x: Array, *starts: Array) -> Array:
    sizes: Sequence[int] = call["slice_sizes"]

    def one(x: Array, *starts: Array) -> Array:
        at = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
        return x[tuple(slice(s, s + k) for s, k in zip(at, sizes, strict=True))]

    return _each_rank(call, one, x, *starts)


def _dynamic_update_slice(call: Call, x: Array, update: Array, *starts: Array) -> Array:
    def one(x: Array, update: Array, *starts: Array) -> Array:
        at = [
            min(max(int(s), 0), n - k)
            for s, n, k in zip(starts, x.shape, update.shape, strict=True)
        ]
        x = x.copy()
        x[tuple(slice(s, s + k) for s, k in zip(at, update.shape, strict=True))] = update
        return x

    return _each_rank(call, one, x, update, *starts)


def _gather(call: Call, operand: Array, indices: Array) -> Array:
    numbers, sizes, mode = call["dimension_numbers"], call["slice_sizes"], str(call["mode"])
    (shape,) = call.shapes
    batch_dims = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(sizes)) if d not in gone]

    def one(operand: Array, indices: Array) -> Array:
        out = np.zeros(shape, operand.dtype)
        for batch in np.ndindex(*(shape[d] for d in batch_dims)):
            start, inside = _start(numbers.start_index_map, indices[batch], operand, sizes, mode)
            for a, b in zip(
                numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
            ):
                start[a] = batch[b]
            place: list[Any] = [slice(None)] * len(shape)
            for d, at in zip(batch_dims, batch, strict=True):
                place[d] = at
            if not inside:
                out[tuple(place)] = _fill(operand.dtype, call["fill_value"])
                continue
            block = operand[tuple(slice(s, s + k) for s, k in zip(start, sizes, strict=True))]
            out[tuple(place)] = block.reshape([sizes[d] for d in window])
        return out

    return _each_rank(call, one, operand, indices)


def _fill(dtype: Any, given: Any) -> Any:
    if given is not None:
        return given
    return {"f": math.nan, "b": True, "i": np.iinfo(np.int32).min}[np.dtype(dtype).kind]


def _start(
    index_map: Sequence[int], index: Array, operand: Array, sizes: Sequence[int], mode: str
) -> tuple[list[int], bool]:
    """Where a window starts, and whether it lies inside."""
    start = [0] * operand.ndim
    for dim, at in zip(index_map, index, strict=True):
        start[dim] = int(at)
    fits = all(0 <= s <= n - k for s, n, k in zip(start, operand.shape, sizes, strict=True))
    if not fits and ("FILL" in mode or "fill" in mode):
        return start, False
    return [
        min(max(s, 0), n - k) for s, n, k in zip(start, operand.shape, sizes, strict=True)
    ], True


def _scatter(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def run(call: Call, operand: Array, indices: Array, updates: Array) -> Array:
        numbers, mode = call["dimension_numbers"], str(call["mode"])
        window = list(numbers.update_window_dims)
        gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}

        def one(operand: Array, indices: Array, updates: Array) -> Array:
            out = operand.copy()
            batch_dims = [d for d in range(updates.ndim) if d not in window]
            sizes = [1] * operand.ndim
            kept = [d for d in range(operand.ndim) if d not in gone]
            for dim, at in zip(kept, window, strict=True):
                sizes[dim] = updates.shape[at]
            for batch in np.ndindex(*(updates.shape[d] for d in batch_dims)):
                start, inside = _start(
                    numbers.scatter_dims_to_operand_dims, indices[batch], operand, sizes, mode
                )
                for a, b in zip(
                    numbers.operand_batching_dims,
                    numbers.scatter_indices_batching_dims,
                    strict=True,
                ):
                    start[a] = batch[b]
                if not inside:
                    continue
                place: list[Any] = [slice(None)] * updates.ndim
                for d, at in zip(batch_dims, batch, strict=True):
                    place[d] = at
                part = tuple(slice(s, s + k) for s, k in zip(start, sizes, strict=True))
                out[part] = combine(out[part], updates[tuple(place)].reshape(sizes))
            return out

        return _each_rank(call, one, operand, indices, updates)

    return run


INDEXED: Mapping[str, Callable[..., Any]] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter(lambda old, new: new),
    "scatter-add": _scatter(np.add),
    "scatter_add": _scatter(np.add),
    "scatter-mul": _scatter(np.multiply),
    "scatter-max": _scatter(np.maximum),
    "scatter-min": _scatter(np.minimum),
}
