"""What tests in several folders compare with, and the meshes that they run on."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType


def mesh_of(n: int, axis: str = "tp") -> jax.sharding.Mesh:
    """A mesh of the first n devices."""
    return jax.make_mesh((n,), (axis,), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])


def gelu64(x: np.ndarray) -> np.ndarray:
    """GeLU by its tanh formula, in f64."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def avals(args: tuple[np.ndarray, ...]) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of arguments."""
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]


def close(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Within `tolerance` of the largest expected magnitude, and finite."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.abs(actual - expected).max(initial=0) <= tolerance * scale
