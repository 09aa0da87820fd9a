"""Random equations that read and write at positions: gather, scatter, windows and padding.

What the primitives do is written here in NumPy; a test holds it against JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import lax

from jaxcc.layout._digits import Digit, Digits, count, normal, uniform, whole_dim
from jaxcc.layout._relation import Relation, constant
from jaxcc.testing._claims import Array, random_relation
from jaxcc.testing._sample import PENDING, Rng, Run, Sample, random_shape, random_sizes

_MODES = (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP)


# The primitives in NumPy --------------------------------------------------------------------------


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


def _assign(out: Array, index: tuple[Array, ...], updates: Array) -> None:
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


# Random operands ----------------------------------------------------------------------------------


def _seen(base: Relation, labels: Sequence[int | None], whole: Sequence[int], rng: Rng) -> Relation:
    """An operand that walks the joint dimensions `labels` of `base` as that does, and holds those
    labelled None; now and then something else of that shape."""
    place = {label: dim for dim, label in enumerate(labels) if label is not None}

    def here(digits: Digits) -> Digits:
        return normal(
            Digit(place[d.dim], d.stride, d.size) if d.dim in place else uniform(d.size)[0]
            for d in digits
        )

    dims = [
        whole_dim(dim, size) if label is None else here(base.dims[label])
        for dim, (label, size) in enumerate(zip(labels, whole, strict=True))
    ]
    dims = [uniform(count(digits)) if rng.random() < 0.05 else digits for digits in dims]
    ranks = {axis: here(digits) for axis, digits in base.ranks.items()}
    ranks = {axis: d for axis, d in ranks.items() if any(digit.named for digit in d)}
    ranks = {axis: d for axis, d in ranks.items() if rng.random() < 0.95}
    if rng.random() < 0.1:
        dims, ranks = _interleaved(dims, ranks)
    return Relation(tuple(dims), ranks)


def _interleaved(
    dims: Sequence[Digits], ranks: Mapping[str, Digits]
) -> tuple[list[Digits], dict[str, Digits]]:
    """Every n-th element in the place of a block."""
    out, selected = list(dims), dict(ranks)
    for axis, digits in ranks.items():
        (digit, *_) = digits
        block = whole_dim(digit.dim, digit.stride)
        if len(digits) == 1 and block in out:
            out[out.index(block)] = normal([Digit(digit.dim, digit.size, digit.stride)])
            selected[axis] = whole_dim(digit.dim, digit.size)
    return out, selected


def _numbers(x: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
    """`x` with a scale and pending reductions, or a number everywhere."""
    if rng.random() < 0.1:
        value = float(rng.choice([0.0, 0.0, 2.0]))
        return constant(x.shape, (value, value))
    op = PENDING[int(rng.integers(len(PENDING)))]
    partial = {axis: op for axis in sizes if axis not in x.ranks and rng.random() < 0.25}
    n = next(iter(sizes.values()))
    return replace(x, partial=partial, scale=float(rng.choice([1.0, 1.0, 1.0, n, 1 / n, -2.0])))


def _positions(x: Relation, sizes: Mapping[str, int], rng: Rng) -> Relation:
    """`x` as positions, which now and then are a number, scaled or pending."""
    if rng.random() < 0.1:
        return constant(x.shape, (1, 1))
    if rng.random() < 0.05:
        return replace(x, scale=2.0)
    if rng.random() < 0.05:
        return replace(x, partial={axis: "sum" for axis in sizes if axis not in x.ranks})
    return x


@dataclass(frozen=True)
class _Access:
    """Which dimension of a table is what: `b` pairs with one of the indices, `f` is taken in full,
    `w` a window of it, `p` a position; `extra` more dimensions of the indices count positions.

    Joint dimensions are first those of the table that are `b` or `f`, in order, then the extra
    ones.
    """

    roles: str
    table: tuple[int, ...]
    extra: int
    window: int
    order: tuple[int, ...]
    base: Relation
    joint: tuple[int, ...]
    sizes: Mapping[str, int]

    @property
    def table_labels(self) -> list[int | None]:
        kept = [d for d, role in enumerate(self.roles) if role in "bf"]
        return [kept.index(d) if d in kept else None for d in range(len(self.roles))]

    @property
    def batch_labels(self) -> list[int]:
        """Of the indices' dimensions, in their order."""
        kept = sum(role in "bf" for role in self.roles)
        paired = [self.table_labels[d] for d, role in enumerate(self.roles) if role == "b"]
        labels = [*paired, *range(kept, kept + self.extra)]
        return [label for at in self.order for label in [labels[at]] if label is not None]

    def dims(self, roles: str) -> tuple[int, ...]:
        """The table's dimensions with one of `roles`."""
        return tuple(d for d, role in enumerate(self.roles) if role in roles)

    @property
    def paired(self) -> tuple[int, ...]:
        """For each `b`, the dimension of the indices."""
        return tuple(self.order.index(at) for at in range(len(self.dims("b"))))

    def table_seen(self, rng: Rng) -> Relation:
        """A relation of the table; now and then a rank holds a block of an indexed dimension."""
        x = _seen(self.base, self.table_labels, self.table, rng)
        for dim in self.dims("wp"):
            for axis, n in self.sizes.items():
                block = self.table[dim] // n
                if axis not in x.ranks and block * n == self.table[dim] and rng.random() < 0.05:
                    if block >= self.window:
                        dims = (*x.dims[:dim], whole_dim(dim, block), *x.dims[dim + 1 :])
                        return replace(
                            x, dims=dims, ranks={**x.ranks, axis: (Digit(dim, block, n),)}
                        )
        return x

    def operand(self, labels: Sequence[int | None], sizes: Sequence[int], rng: Rng) -> Relation:
        """A relation of an array whose dimensions are joint ones or, if None, of a size."""
        whole = self.whole(labels, sizes)
        return _seen(self.base, labels, whole, rng)

    def whole(self, labels: Sequence[int | None], sizes: Sequence[int]) -> tuple[int, ...]:
        """The whole shape of such an array."""
        return tuple(
            size if label is None else self.joint[label]
            for label, size in zip(labels, sizes, strict=True)
        )

    @property
    def indices_labels(self) -> list[int | None]:
        return [*self.batch_labels, None]

    def window_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The slice of a table of this shape."""
        cut = {"b": 1, "p": 1, "w": self.window}
        return tuple(cut.get(role, n) for role, n in zip(self.roles, shape, strict=True))


def _access(rng: Rng, roles: str = "bffwpp", most: int = 2) -> _Access:
    """A random access with dimensions of some `roles` and at `most` so many extra ones."""
    sizes = random_sizes(rng)
    roles = "".join(roles[int(k)] for k in rng.integers(len(roles), size=rng.integers(1, 4)))
    table = random_shape(rng, 3)[: len(roles)]
    extra = min(most, int(rng.integers(4)) // 2 + int(rng.integers(2)))
    joint = (
        *(n for n, role in zip(table, roles, strict=True) if role in "bf"),
        *random_shape(rng, 3)[:extra],
    )
    base = random_relation(joint, sizes, rng, pending=(), plain=0.9)
    order = tuple(int(k) for k in rng.permutation(roles.count("b") + extra))
    return _Access(roles, table, extra, int(rng.choice([1, 2])), order, base, joint, sizes)


# Samples ------------------------------------------------------------------------------------------


def gathers(rng: Rng) -> Sample:
    """A gather of a random table."""
    access = _access(rng)
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
    table = _numbers(access.table_seen(rng), access.sizes, rng)
    indices = access.operand(access.indices_labels, counts, rng)
    indices = _positions(indices, access.sizes, rng)
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
        access = _access(rng)
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
            _numbers(access.table_seen(rng), access.sizes, rng),
            _positions(access.operand(access.indices_labels, counts, rng), access.sizes, rng),
            _numbers(access.operand(update_labels, [access.window] * ndim, rng), access.sizes, rng),
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


def _windows(rng: Rng) -> tuple[_Access, Relation, list[Relation], tuple[range | None, ...]]:
    """A table of which windows are full or cut, with its starts."""
    access = _access(rng, "ffw", most=0)
    x = _numbers(access.table_seen(rng), access.sizes, rng)
    starts = [_positions(Relation(()), access.sizes, rng) for _ in access.roles]
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
    update = _numbers(access.operand(labels, windows, rng), access.sizes, rng)
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
        value = _numbers(Relation(()), access.sizes, rng)
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
    "scatter": scatters(_assign),
    "scatter-add": scatters(np.add.at),
    "scatter-sub": scatters(np.subtract.at),
    "scatter-mul": scatters(np.multiply.at),
    "scatter-min": scatters(np.minimum.at),
    "scatter-max": scatters(np.maximum.at),
    "dynamic_slice": dynamic_slices,
    "dynamic_update_slice": dynamic_update_slices,
    "pad": pads,
}
