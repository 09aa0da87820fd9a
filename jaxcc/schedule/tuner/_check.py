"""Whether a schedule's result is that of the reference, on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc.layout import is_key, rounding
from jaxcc.program import Program

# Schedules change the order of long sums; more than this is no rounding in types that are finer.
_SLACK, _COARSE = 10, 5e-2


def tolerance(program: Program) -> float:
    """What is taken for rounding, relative to the largest magnitude of a result."""
    fine = rounding(t.dtype for t in program.types().values())
    return max(fine, min(_SLACK * fine, _COARSE))


def compare(got: Sequence[Any], expected: Sequence[np.ndarray], rtol: float) -> tuple[float, bool]:
    """The largest difference of any rank's copy, and whether all are within the tolerance."""
    worst, right = 0.0, True
    for mine, theirs in zip(map(_plain, got), expected, strict=True):
        if mine.shape != theirs.shape:
            return float("inf"), False
        for part, index in _parts(mine):
            difference, ok = _difference(part, theirs[index], rtol)
            worst, right = max(worst, difference), right and ok
    return worst, right


def numbers(x: Any) -> np.ndarray:
    """The whole array, or the bits of a random key, in NumPy."""
    return np.asarray(_plain(x))


def _plain(x: Any) -> Any:
    return jax.random.key_data(x) if is_key(x) else x


def _parts(x: Any) -> Iterable[tuple[np.ndarray, Any]]:
    """What each rank holds, and where it belongs."""
    if not isinstance(x, jax.Array):
        return [(np.asarray(x), ...)]
    return [(np.asarray(shard.data), shard.index) for shard in x.addressable_shards]


def _difference(got: np.ndarray, expected: np.ndarray, rtol: float) -> tuple[float, bool]:
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        same = bool(np.array_equal(got, expected))
        return (0.0 if same else float("inf")), same
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    got, expected = np.asarray(got, wide), np.asarray(expected, wide)
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return float("inf"), False
    got, expected = got[finite], expected[finite]
    worst = float(np.abs(got - expected).max(initial=0))
    if math.isnan(worst):
        return float("inf"), False
    return worst, bool(worst <= rtol * np.abs(expected).max(initial=0))
