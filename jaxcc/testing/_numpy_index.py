"""What gather, scatter, windows and padding do, in NumPy; a test holds it against JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcc.testing._claims import Array
from jaxcc.testing._sample import Run


def _places(
    shape: Sequence[int], starts: Mapping[int, Array], offsets: Mapping[int, Array], sizes: Any
) -> tuple[tuple[Array, ...], Array]:
    """The index of every element of a window per dimension of an array of `shape`, and whether the
    window lies within it; a window that does not is moved.

    Args:
      shape: of the array.
      starts: where the window begins along a dimension; 0 where absent.
      offsets: where in the window an element is; 0 where absent.
      sizes: of the window.
    """
    index: list[Any] = []
    inside: Any = np.bool_(True)
    for dim, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        start = starts.get(dim, np.intp(0))
        inside = inside & (start >= 0) & (start <= extent - size)
        index.append(np.clip(start, 0, extent - size) + offsets.get(dim, 0))
    return tuple(index), inside


def gather(array: Array, indices: Array, *, numbers: Any, sizes: Any, fill: Any) -> Array:
    """Slices of `array`; `fill` stands in those that leave it, None moves them."""
    offset = [int(d) for d in numbers.offset_dims]
    batch = [d for d in range(indices.ndim - 1 + len(offset)) if d not in offset]
    apart = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(array.ndim) if d not in apart]
    shape = dict(zip(batch, indices.shape, strict=False))
    shape |= {at: sizes[d] for at, d in zip(offset, windows, strict=True)}
    grid = np.indices([shape[d] for d in sorted(shape)])
    vectors = indices[tuple(grid[d] for d in batch)]
    starts = {d: vectors[..., k] for k, d in enumerate(numbers.start_index_map)}
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    starts |= {d: grid[batch[k]] for d, k in pairs}
    offsets = {d: grid[at] for at, d in zip(offset, windows, strict=True)}
    index, inside = _places(array.shape, starts, offsets, sizes)
    taken = np.broadcast_to(array[index], grid.shape[1:])
    return taken if fill is None else np.where(inside, taken, fill)


def scatter(
    array: Array, indices: Array, updates: Array, *, numbers: Any, write: Run, clip: bool
) -> Array:
    """`array` with updates written by `write`; those that leave it are dropped, or moved."""
    windows_in = [int(d) for d in numbers.update_window_dims]
    batch = [d for d in range(updates.ndim) if d not in windows_in]
    apart = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(array.ndim) if d not in apart]
    grid = np.indices(updates.shape)
    vectors = indices[tuple(grid[d] for d in batch)]
    starts = {d: vectors[..., k] for k, d in enumerate(numbers.scatter_dims_to_operand_dims)}
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    starts |= {d: grid[batch[k]] for d, k in pairs}
    offsets = {d: grid[at] for at, d in zip(windows_in, windows, strict=True)}
    sizes = [1] * array.ndim
    for at, d in zip(windows_in, windows, strict=True):
        sizes[d] = updates.shape[at]
    index, inside = _places(array.shape, starts, offsets, sizes)
    inside = np.broadcast_to(inside | clip, updates.shape)
    index = tuple(np.broadcast_to(at, updates.shape)[inside] for at in index)
    out = np.array(array, np.result_type(array, updates))
    write(out, index, updates[inside])
    return out


def assign(out: Array, index: tuple[Array, ...], updates: Array) -> None:
    out[index] = updates


def dynamic_slice(array: Array, *starts: Array, sizes: Any) -> Array:
    """A window of `array`, moved so that it fits."""
    at = dict(enumerate(starts))
    index, _ = _places(array.shape, at, dict(enumerate(np.indices(sizes))), sizes)
    return array[index]


def dynamic_update_slice(array: Array, update: Array, *starts: Array) -> Array:
    """`array` where a window, moved so that it fits, is `update`."""
    grid = dict(enumerate(np.indices(update.shape)))
    index, _ = _places(array.shape, dict(enumerate(starts)), grid, update.shape)
    out = np.array(array, np.result_type(array, update))
    out[index] = update
    return out


def pad(array: Array, value: Array, *, config: Any) -> Array:
    """`array` with `value` before, after and between its elements; negative widths cut it."""
    for dim, (low, high, gap) in enumerate(config):
        moved = np.moveaxis(array, dim, 0)
        spread = np.full(((len(moved) - 1) * (gap + 1) + 1, *moved.shape[1:]), value, moved.dtype)
        spread[:: gap + 1] = moved
        spread = spread[max(0, -low) : len(spread) - max(0, -high)]
        around = [(max(0, low), max(0, high)), *[(0, 0)] * (array.ndim - 1)]
        spread = np.pad(spread, around, constant_values=value)
        array = np.moveaxis(spread, 0, dim)
    return array
