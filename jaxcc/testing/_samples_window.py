"""Random sliding windows and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxcc.layout._digits import Digit, normal, uniform
from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.testing._claims import Array
from jaxcc.testing._sample import Rng, Run, Sample, mate, random_sizes
from jaxcc.testing._samples_along import Sampler, one


@dataclass(frozen=True)
class Window:
    """A window over all dimensions, with the names of JAX's parameters."""

    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]

    @staticmethod
    def random(shape: Sequence[int], rng: Rng) -> Window:
        """One that covers single elements along most dimensions."""
        slid = [n > 1 and rng.random() < 0.4 for n in shape]
        return Window(
            tuple(int(rng.choice([1, 2])) if on else 1 for on in slid),
            tuple(int(rng.choice([1, 2])) if on else 1 for on in slid),
            tuple((int(on and rng.random() < 0.5), 0) for on in slid),
            tuple(int(rng.choice([1, 1, 2])) if on else 1 for on in slid),
        )

    def padded(self, array: Array, fill: float) -> Array:
        """The array that the window slides over."""
        wide = [d * (n - 1) + 1 for n, d in zip(array.shape, self.base_dilation, strict=True)]
        out = np.full(wide, fill, array.dtype)
        out[tuple(slice(None, None, d) for d in self.base_dilation)] = array
        return np.pad(out, self.padding, constant_values=fill)

    def over(self, array: Array, fill: float) -> Array:
        """The elements under the window at each place, along one trailing dimension."""
        padded = self.padded(array, fill)
        seen = np.lib.stride_tricks.sliding_window_view(padded, self.window_dimensions)
        seen = seen[tuple(slice(None, None, s) for s in self.window_strides)]
        return seen.reshape(*seen.shape[: array.ndim], -1)


def _windowed(run: Callable[[Window], Run], operands: int = 1) -> Sampler:
    def sample(rng: Rng) -> Sample:
        sizes, whole, x = one(rng)
        window = Window.random(x.shape, rng)
        params = {**vars(window), "jaxpr": "logaddexp"}
        relations = [x, *(Relation(()) for _ in range(operands - 1))]
        function = run(window)
        wholes = (whole, *[()] * (operands - 1))
        return Sample(sizes, tuple(relations), wholes, params, params, function, function)

    return sample


def _reduced(function: Any, fill: float) -> Callable[[Window], Run]:
    return lambda window: lambda a: function(window.over(a, fill), -1)


def _log_sum(window: Window) -> Run:
    return lambda a, start: [np.logaddexp(start, np.logaddexp.reduce(window.over(a, -np.inf), -1))]


def _gathered(window: Window) -> Run:
    def run(tangents: Array, operand: Array) -> Array:
        at = np.argmax(window.over(operand, -np.inf), -1)[..., None]
        return np.take_along_axis(window.over(tangents, 0.0), at, -1)[..., 0]

    return run


def _scattered(window: Window) -> Run:
    def run(source: Array, operand: Array) -> Array:
        place = window.over(np.arange(operand.size).reshape(operand.shape), -1)
        at = np.argmax(window.over(operand, -np.inf), -1)[..., None]
        chosen = np.take_along_axis(place, at, -1)[..., 0]
        out = np.zeros(operand.size)
        np.add.at(out, chosen[chosen >= 0], source[chosen >= 0])
        return out.reshape(operand.shape)

    return run


def _gather(rng: Rng) -> Sample:
    sizes, whole, x = one(rng)
    window = Window.random(x.shape, rng)
    y = x if rng.random() < 0.5 else mate(x, sizes, rng)
    if rng.random() < 0.7:
        y = replace(y, partial={}, scale=abs(y.scale))
    params = vars(window)
    run = _gathered(window)
    return Sample(sizes, (x, y), (whole, whole), params, params, run, run)


def _scatter(rng: Rng) -> Sample:
    """Without padding and with windows side by side, so that the source is a smaller array."""
    sizes, whole, x = one(rng)
    slid = [
        rng.random() < 0.5 and set(x.dims[d]) == {Digit(d, 1, n)} and n % 2 == 0
        for d, n in enumerate(whole)
    ]
    size = tuple(2 if on else 1 for on in slid)
    still = ((0, 0),) * len(whole)
    window = Window(size, size, still, (1,) * len(whole))
    dims = [normal([Digit(d, 1, whole[d] // 2)]) if on else x.dims[d] for d, on in enumerate(slid)]
    source = replace(x, dims=tuple(dims))
    if rng.random() < 0.8:
        x = replace(x, partial={}, scale=abs(x.scale))
    params = vars(window)
    small = tuple(n // k for n, k in zip(whole, size, strict=True))
    run = _scattered(window)
    return Sample(sizes, (source, x), (small, whole), params, params, run, run)


# Batch and feature of the image, output and input of the kernel, batch and feature of the result
# stand first, last or between.
_ORDERS = ((0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2))


def convolution(image: Array, kernel: Array, groups: int, batches: int) -> Array:
    """The correlation of (batch, feature, space) with (output, input, window), without padding."""
    n, features, _ = image.shape
    out, inner, width = kernel.shape
    seen = np.lib.stride_tricks.sliding_window_view(image, width, 2)
    seen = seen.reshape(batches, n // batches, groups, features // groups, *seen.shape[2:])
    filters = kernel.reshape(batches, groups, out // (batches * groups), inner, width)
    made = np.einsum("bngisw,bgoiw->nbgos", seen, filters)
    return made.reshape(n // batches, out, -1)


@dataclass(frozen=True)
class _Way:
    """What is sliced: the parts of the image and of the kernel, and how groups follow."""

    image: int | None
    kernel: int | None
    groups: bool = False
    batches: bool = False


_WAYS = (
    _Way(0, None),
    _Way(None, 0),
    _Way(1, 1),
    _Way(None, None),
    _Way(0, 0),
    _Way(2, None),
    _Way(1, 0, groups=True),
    _Way(0, 0, batches=True),
)


def _conv(rng: Rng) -> Sample:
    sizes = random_sizes(rng)
    axis, n = list(sizes.items())[-1]
    way = _WAYS[rng.integers(len(_WAYS))]
    grouped = int(rng.choice([1, 1, 2]))
    groups = n if way.groups else grouped if not way.batches and rng.random() < 0.5 else 1
    batches = n if way.batches else grouped if groups == 1 else 1
    inner = int(rng.choice([1, 2])) * (1 if way.groups else n)
    image_whole = (n * batches, groups * inner, n + 1 if way.image != 2 else 2 * n)
    kernel_whole = (n * groups * batches * int(rng.choice([1, 2])), inner, 2)
    image_order, kernel_order, out_order = (_ORDERS[rng.integers(4)] for _ in range(3))

    def placed(shape: Sequence[int], spec: Sequence[int], dim: int | None) -> Any:
        """The whole shape in the order of `spec`, and its relation, sliced along `dim`."""
        whole = [0] * len(shape)
        for part, at in enumerate(spec):
            whole[at] = shape[part]
        at = None if dim is None else spec[dim]
        dims = tuple(
            normal([Digit(d, 1, size // n if d == at else size)]) for d, size in enumerate(whole)
        )
        ranks = {} if at is None else {axis: normal([Digit(at, whole[at] // n, n)])}
        partial: dict[str, ReduceOp] = {
            a: "sum" for a in sizes if a not in ranks and rng.random() < 0.2
        }
        scale = float(rng.choice([1.0, n, -1 / n]))
        x = Relation(dims, ranks, partial, scale=scale)
        if rng.random() < 0.2:
            d = int(rng.integers(len(dims)))
            x = replace(x, dims=(*dims[:d], uniform(x.shape[d]), *dims[d + 1 :]))
        return tuple(whole), x

    image_shape, image = placed(image_whole, image_order, way.image)
    kernel_shape, kernel = placed(kernel_whole, kernel_order, way.kernel)
    numbers = SimpleNamespace(lhs_spec=image_order, rhs_spec=kernel_order, out_spec=out_order)

    def params(groups: int, batches: int) -> tuple[Mapping[str, Any], Run]:
        def run(a: Array, k: Array) -> Array:
            made = convolution(a.transpose(image_order), k.transpose(kernel_order), groups, batches)
            return made.transpose(np.argsort(out_order))

        return {
            "dimension_numbers": numbers,
            "feature_group_count": groups,
            "batch_group_count": batches,
        }, run

    here, run = params(
        groups // n if way.groups else groups, batches // n if way.batches else batches
    )
    whole, run_whole = params(groups, batches)
    return Sample(sizes, (image, kernel), (image_shape, kernel_shape), here, whole, run, run_whole)


SAMPLERS: Mapping[str, Sampler] = {
    "reduce_window_sum": _windowed(_reduced(np.sum, 0.0)),
    "reduce_window_max": _windowed(_reduced(np.max, -np.inf)),
    "reduce_window_min": _windowed(_reduced(np.min, np.inf)),
    "reduce_window": _windowed(_log_sum, 2),
    "select_and_gather_add": _gather,
    "select_and_scatter_add": _scatter,
    "conv_general_dilated": _conv,
}
