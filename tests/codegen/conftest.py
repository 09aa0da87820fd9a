"""Runs generated kernels on NumPy buffers, through the tile interface of ffi/protocol/abi.h."""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from jaxcc.codegen import Kernel, OutRole, Role, compile_kernel, generate

type Array = np.ndarray[Any, np.dtype[Any]]


class Tile(ctypes.Structure):
    """`struct jaxcc_tile`."""

    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("ranks", ctypes.c_int32),
        ("owner", ctypes.c_int32),
        ("receives", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("first_scalar", ctypes.c_int32),
        ("first_operand", ctypes.c_int32),
        ("first_result", ctypes.c_int32),
        ("stream", ctypes.c_int32),
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("shift", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
    ]


class Parts(ctypes.Structure):
    """`struct jaxcc_parts`."""

    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("ranks", ctypes.c_int32),
        ("kind", ctypes.c_int32),
        ("first_result", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("first", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("count", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Slices:
    """Which rank owns what: an equal block of each of `outer` rows of `extent` elements."""

    outer: int
    extent: int
    ranks: int

    @property
    def block(self) -> int:
        return -(-self.extent // self.ranks)

    def runs(self) -> list[tuple[int, int, int, int]]:
        """(owner, begin, end, shift) of each run of elements."""
        found: list[tuple[int, int, int, int]] = []
        for row in range(self.outer):
            for rank in range(self.ranks):
                first = min(rank * self.block, self.extent)
                last = min(first + self.block, self.extent)
                base = row * self.extent
                shift = base + rank * self.block - row * self.block
                found.append((rank, base + first, base + last, shift))
        return found

    def cut(self, whole: Array) -> list[Array]:
        """Each rank's block of a whole array; what a last, shorter block lacks is poison."""
        blocks = [poison(self.outer * self.block, whole.dtype) for _ in range(self.ranks)]
        flat = whole.reshape(-1)
        for owner, begin, end, shift in self.runs():
            blocks[owner][begin - shift : end - shift] = flat[begin:end]
        return blocks

    def join(self, blocks: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The whole array that blocks make."""
        flat = poison(math.prod(shape), blocks[0].dtype)
        for owner, begin, end, shift in self.runs():
            flat[begin:end] = blocks[owner][begin - shift : end - shift]
        return flat.reshape(shape)


def poison(size: int, dtype: Any) -> Array:
    """A buffer full of what no test computes: NaN, or a pattern."""
    kind = np.dtype(dtype)
    buffer = np.full(size * kind.itemsize, 0xA5, np.uint8).view(kind)
    if kind.kind in "fV":
        buffer[:] = np.nan
    return buffer


# Where the C library's fenv_t has the bits that make the processor flush subnormal numbers.
_FLUSHES = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """The processor takes subnormal numbers for 0 and makes none, in this thread."""
    library = ctypes.CDLL(None)
    offset, bits = _FLUSHES[platform.machine()]
    before, inside = (ctypes.c_uint32 * 16)(), (ctypes.c_uint32 * 16)()
    library.fegetenv(before)
    library.fegetenv(inside)
    inside[offset // 4] |= bits
    library.fesetenv(inside)
    try:
        yield
    finally:
        library.fesetenv(before)


@dataclass(frozen=True)
class Run:
    """A compiled kernel."""

    kernel: Kernel
    tile: Callable[[Any], None]
    total: Callable[[Any], None] | None = None

    def __call__(
        self,
        args: Sequence[Any],
        shape: tuple[int, ...],
        *,
        sliced: int = 0,
        tile: int = 1 << 14,
        in_place: dict[int, int] | None = None,
        stream: bool = False,
        flush: bool = False,
    ) -> list[Array]:
        """Whole results for whole inputs; a REDUCE input is a list, one array for each rank.

        Gathered results must be alike on all ranks. `in_place` maps an input to the output that
        takes its buffer; with `flush` subnormal numbers count as 0, as they do in XLA's threads.
        """
        kernel = self.kernel
        slices = Slices(math.prod(shape[:sliced]), math.prod(shape[sliced:]), kernel.ranks)
        operands = {n: self._operand(args[n], role, slices) for n, role in enumerate(kernel.inputs)}
        results: list[list[Array]] = []
        for role, dtype in zip(kernel.outputs, kernel.output_dtypes, strict=True):
            size = {
                OutRole.GATHER: math.prod(shape),
                OutRole.SLICE: slices.outer * slices.block,
                OutRole.TOTAL: 1,
            }[role]
            results.append([poison(size, dtype) for _ in range(kernel.ranks)])
        for source, target in (in_place or {}).items():
            results[target] = operands[source]
        order = [*kernel.scalar_inputs, *kernel.operand_inputs]
        per_rank = [
            [*(operands[n][r] for n in order), *(result[r] for result in results)]
            for r in range(kernel.ranks)
        ]
        with flushing() if flush else contextlib.nullcontext():
            self._run(per_rank, slices, tile, stream)
        return [
            self._whole(role, result, slices, shape)
            for role, result in zip(kernel.outputs, results, strict=True)
        ]

    def _operand(self, value: Any, role: Role, slices: Slices) -> list[Array]:
        if role is Role.REDUCE:
            assert len(value) == self.kernel.ranks
            return [np.array(each).reshape(-1) for each in value]
        if role is Role.SLICE:
            return slices.cut(np.asarray(value))
        return [np.array(value).reshape(-1) for _ in range(self.kernel.ranks)]

    def _run(self, per_rank: list[list[Array]], slices: Slices, tile: int, stream: bool) -> None:
        rows = [(ctypes.c_void_p * len(b))(*(x.ctypes.data for x in b)) for b in per_rank]
        table = (ctypes.c_void_p * len(rows))(*(ctypes.addressof(row) for row in rows))
        scalars = len(self.kernel.scalar_inputs)
        first_result, totals = scalars + len(self.kernel.operand_inputs), self.kernel.totals
        tile = max(tile // self.kernel.row, 1) * self.kernel.row
        parts = np.zeros((self.kernel.ranks, totals, 2), np.int64)
        for owner, begin, end, shift in slices.runs():
            for at in range(begin, end, tile):
                one = Tile(
                    buffers=ctypes.addressof(table),
                    ranks=self.kernel.ranks,
                    owner=owner,
                    first_operand=scalars,
                    first_result=first_result,
                    begin=at,
                    end=min(at + tile, end),
                    shift=shift,
                    stream=int(stream),
                    parts=parts[owner].ctypes.data,
                )
                self.tile(ctypes.byref(one))
        if self.total is not None:
            whole = Parts(
                buffers=ctypes.addressof(table),
                ranks=self.kernel.ranks,
                first_result=first_result,
                step=totals,
                first=parts.ctypes.data,
                stride=totals,
                count=1,
            )
            self.total(ctypes.byref(whole))

    def _whole(
        self, role: OutRole, result: list[Array], slices: Slices, shape: tuple[int, ...]
    ) -> Array:
        if role is OutRole.SLICE:
            return slices.join(result, shape)
        for copy in result[1:]:
            assert copy.tobytes() == result[0].tobytes(), "ranks hold different results"
        return result[0].reshape(() if role is OutRole.TOTAL else shape)


def build(
    f: Callable[..., Any],
    avals: Sequence[Any],
    inputs: Sequence[Role],
    outputs: Sequence[OutRole],
    *,
    shape: tuple[int, ...] | None,
    ranks: int,
    op: str = "sum",
) -> Run:
    """The compiled kernel of `f`, traced at `avals`."""
    closed = jax.make_jaxpr(f)(*avals)
    jaxpr = getattr(closed, "jaxpr", closed)
    kernel = generate(
        jaxpr, getattr(closed, "consts", ()), inputs, outputs, shape=shape, ranks=ranks, op=op
    )
    library = ctypes.CDLL(str(compile_kernel(kernel)[1]))
    assert ctypes.c_int32.in_dll(library, "jaxcc_kernel_abi").value == 3
    tile = library.jaxcc_kernel_tile
    tile.restype = None
    total = library.jaxcc_kernel_total if kernel.totals else None
    if total is not None:
        total.restype = None
    return Run(kernel, tile, total)


@pytest.fixture(name="build", scope="session")
def _build() -> Callable[..., Run]:
    return build
