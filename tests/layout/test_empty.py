"""Arrays without elements: nothing can differ, unless they have elements on a group of one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc import LayoutError, Partial, Replicated, Sliced, check

MESH = AbstractMesh((2,), ("tp",))


def gathered(x: Any, b: Any) -> Any:
    y = lax.psum_scatter(x, "tp", scatter_dimension=0, tiled=True)
    return lax.all_gather(y, "tp", axis=0, tiled=True) + b


def summed(x: Any, b: Any) -> Any:
    return lax.psum(x.sum(0) * 2, "tp") + b


def product(x: Any, b: Any) -> Any:
    return jnp.tanh(lax.psum(x @ x.T, "tp")) + b[:1]


@pytest.mark.parametrize(
    ("f", "layout", "shape"),
    [
        (gathered, Partial(), (2, 0, 4)),
        (gathered, Partial(), (0, 3, 4)),
        (summed, Sliced(0), (0, 4)),
        (summed, Sliced(0), (4, 0)),
        (product, Sliced(1), (0, 4)),
        (product, Sliced(1), (3, 0)),
    ],
)
def test_right_programs_are_accepted(
    f: Callable[..., Any], layout: Any, shape: tuple[int, ...]
) -> None:
    b = jax.ShapeDtypeStruct(shape[-1:] if f is not product else (4,), jnp.float32)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    report = check(f, x, b, mesh=MESH, in_layouts=(layout, Replicated), out_layouts=Replicated)
    assert len(report.sizes) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[: x.shape[0] - 4],
        lambda x: lax.psum(x[: x.shape[0] - 4].sum(), "tp"),
        lambda x: lax.pmax(x[: x.shape[0] - 4].max(initial=0), "tp"),
    ],
)
def test_empty_on_ranks_but_not_on_one_is_refused(f: Callable[..., Any]) -> None:
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    with pytest.raises(LayoutError):
        check(f, x, mesh=MESH, in_layouts=(Sliced(0),))
