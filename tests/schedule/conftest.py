"""The programs that schedule tests share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from oracles import gelu64, mesh_of

import jaxcc
from jaxcc import Replicated, Sliced


class Tail(NamedTuple):
    """A Megatron attention tail, its arguments and the same in NumPy with f64."""

    function: Any
    args: tuple[np.ndarray, ...]
    expected: np.ndarray


@pytest.fixture
def tail(request: pytest.FixtureRequest) -> Callable[..., Tail]:
    """Makes a tail over n ranks; shapes are (batch, length, hidden)."""
    rng = np.random.default_rng(abs(hash(request.node.name)) % 2**32)

    def make(n: int, b: int = 4, s: int = 6, h: int = 8, check_vma: bool = True) -> Tail:
        k = 12
        x, w = rng.normal(size=(b, s, k)), rng.normal(size=(k, h))
        bias, r = rng.normal(size=(h,)), rng.normal(size=(b, s, h))

        @jaxcc.typed(
            mesh=mesh_of(n),
            in_layouts=(Sliced(2), Sliced(0), Replicated, Replicated),
            out_layouts=Replicated,
            check_vma=check_vma,
        )
        def attention_tail(x, w, b, r):
            total = jaxcc.name(jax.lax.psum(x @ w, "tp"), "total")
            return jaxcc.name(jax.nn.gelu(total + b) + r, "out")

        args = tuple(np.asarray(a, np.float32) for a in (x, w, bias, r))
        x, w, bias, r = (a.astype(np.float64) for a in args)
        return Tail(attention_tail, args, gelu64(x @ w + bias) + r)

    return make
