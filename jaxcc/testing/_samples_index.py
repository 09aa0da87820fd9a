"""Random equations that read and write at positions: gather, scatter, windows and padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from jaxcc.layout._relation import Relation, constant
from jaxcc.testing._access import Access, as_positions, random_access, with_numbers
from jaxcc.testing._claims import Array
from jaxcc.testing._numpy_index import (
    assign,
    dynamic_slice,
    dynamic_update_slice,
    gather,
    pad,
    scatter,
)
from jaxcc.testing._sample import Rng, Run, Sample

_MODES = (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP)


def gathers(rng: Rng) -> Sample:
    """A gather of a random table."""
    access = random_access(rng)
    indexed = access.dims("wp")
    ndim = len(access.dims("fw")) + len(access.order)
    offsets = sorted(rng.permutation(ndim)[: len(access.dims("fw"))])
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(int(d) for d in offsets),
        collapsed_slice_dims=access.dims("p"),
        start_index_map=tuple(int(d) for d in rng.permutation(indexed)),
        operand_batching_dims=access.dims("b"),
        start_indices_batching_dims=access.paired,
    )
    counts = [*[0] * len(access.order), len(indexed)]
    table = with_numbers(access.table_seen(rng), access.sizes, rng)
    indices = access.operand(access.indices_labels, counts, rng)
    indices = as_positions(indices, access.sizes, rng)
    mode = _MODES[int(rng.integers(2))]
    value = float(rng.choice([0.0, 0.0, 7.0]))

    def params(shape: Sequence[int]) -> Mapping[str, Any]:
        sizes = access.window_sizes(shape)
        return {
            "dimension_numbers": numbers,
            "slice_sizes": sizes,
            "mode": mode,
            "fill_value": value if mode == _MODES[1] else None,
        }

    def run(array: Array, at: Array) -> Array:
        sizes = access.window_sizes(array.shape)
        fill = value if mode == _MODES[1] else None
        return gather(array, at, numbers=numbers, sizes=sizes, fill=fill)

    wholes = (access.table, access.whole(access.indices_labels, counts))
    return Sample(
        access.sizes,
        (table, indices),
        wholes,
        params(table.shape),
        params(access.table),
        run,
        run,
        integers=(None, range(-1, max(access.table) + 1)),
    )


def scatters(write: Run) -> Callable[[Rng], Sample]:
    """Samples of a scatter that writes with `write`."""

    def sample(rng: Rng) -> Sample:
        access = random_access(rng)
        indexed = access.dims("wp")
        windows = access.dims("fw")
        ndim = len(windows) + len(access.order)
        at = sorted(int(d) for d in rng.permutation(ndim)[: len(windows)])
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(at),
            inserted_window_dims=access.dims("p"),
            scatter_dims_to_operand_dims=tuple(int(d) for d in rng.permutation(indexed)),
            operand_batching_dims=access.dims("b"),
            scatter_indices_batching_dims=access.paired,
        )
        mode = _MODES[int(rng.integers(2))]
        labels, counts = access.table_labels, [*[0] * len(access.order), len(indexed)]
        batch = iter(access.batch_labels)
        window = iter(windows)
        update_labels = [labels[next(window)] if d in at else next(batch) for d in range(ndim)]
        operands = [
            with_numbers(access.table_seen(rng), access.sizes, rng),
            as_positions(access.operand(access.indices_labels, counts, rng), access.sizes, rng),
            with_numbers(
                access.operand(update_labels, [access.window] * ndim, rng), access.sizes, rng
            ),
        ]
        if rng.random() < 0.4:
            operands[0] = constant(operands[0].shape, (0.0, 0.0))

        def run(array: Array, positions: Array, updates: Array) -> Array:
            clip = mode == _MODES[0]
            return scatter(array, positions, updates, numbers=numbers, write=write, clip=clip)

        params = {"dimension_numbers": numbers, "mode": mode, "update_jaxpr": None}
        wholes = (
            access.table,
            access.whole(access.indices_labels, counts),
            access.whole(update_labels, [access.window] * ndim),
        )
        return Sample(
            access.sizes,
            tuple(operands),
            wholes,
            params,
            params,
            run,
            run,
            integers=(None, range(-1, max(access.table) + 1), None),
        )

    return sample


def _windows(rng: Rng) -> tuple[Access, Relation, list[Relation], tuple[range | None, ...]]:
    """A table of which windows are full or cut, with its starts."""
    access = random_access(rng, "ffw", most=0)
    x = with_numbers(access.table_seen(rng), access.sizes, rng)
    starts = [as_positions(Relation(()), access.sizes, rng) for _ in access.roles]
    return access, x, starts, (range(-1, max(access.table) + 1),) * len(starts)


def dynamic_slices(rng: Rng) -> Sample:
    """A window at random starts."""
    access, x, starts, ranges = _windows(rng)
    here, whole = access.window_sizes(x.shape), access.window_sizes(access.table)

    def taking(sizes: Sequence[int]) -> Run:
        return lambda array, *at: dynamic_slice(array, *at, sizes=sizes)

    return Sample(
        access.sizes,
        (x, *starts),
        (access.table, *[()] * len(starts)),
        {"slice_sizes": here},
        {"slice_sizes": whole},
        taking(here),
        taking(whole),
        integers=(None, *ranges),
    )


def dynamic_update_slices(rng: Rng) -> Sample:
    """A window that is replaced at random starts."""
    access, x, starts, ranges = _windows(rng)
    labels, windows = access.table_labels, [access.window] * len(access.roles)
    update = with_numbers(access.operand(labels, windows, rng), access.sizes, rng)
    if rng.random() < 0.5:
        partial = {axis: op for axis, op in x.partial.items() if axis not in update.ranks}
        update = replace(update, partial=partial, scale=x.scale, const=None)
    return Sample(
        access.sizes,
        (x, update, *starts),
        (access.table, access.whole(labels, windows), *[()] * len(starts)),
        {},
        {},
        dynamic_update_slice,
        dynamic_update_slice,
        integers=(None, None, *ranges),
    )


def pads(rng: Rng) -> Sample:
    """Padding of some dimensions; of others by whole blocks."""
    access, x, _, _ = _windows(rng)
    value = constant((), (0.0, 0.0))
    if rng.random() < 0.3:
        value = with_numbers(Relation(()), access.sizes, rng)
    configs: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []
    for role, n, whole in zip(access.roles, x.shape, access.table, strict=True):
        low, high = (int(k) for k in rng.integers(0, 3, 2))
        if role == "w":
            low, high = (low - 1, high) if n == whole else (low, high)
            config = (low, high, int(rng.random() < 0.3))
            configs.append((config, config))
        elif rng.random() < 0.7:
            configs.append(((0, 0, 0), (0, 0, 0)))
        else:
            configs.append(((low * n, high * n, 0), (low * whole, high * whole, 0)))
    here, there = (tuple(config) for config in zip(*configs, strict=True))

    def padding(config: Any) -> Run:
        return lambda array, fill: pad(array, fill, config=config)

    return Sample(
        access.sizes,
        (x, value),
        (access.table, ()),
        {"padding_config": here},
        {"padding_config": there},
        padding(here),
        padding(there),
    )


SAMPLERS: Mapping[str, Callable[[Rng], Sample]] = {
    "gather": gathers,
    "scatter": scatters(assign),
    "scatter-add": scatters(np.add.at),
    "scatter-sub": scatters(np.subtract.at),
    "scatter-mul": scatters(np.multiply.at),
    "scatter-min": scatters(np.minimum.at),
    "scatter-max": scatters(np.maximum.at),
    "dynamic_slice": dynamic_slices,
    "dynamic_update_slice": dynamic_update_slices,
    "pad": pads,
}
