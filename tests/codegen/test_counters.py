"""Values that say where they stand: iota, and random bits by place, on every rank."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcc import _compat
from jaxcc.codegen import OutRole, Role
from jaxcc.layout import CodegenError

SHAPES = [(40,), (6, 1), (3, 5, 8), (2, 1, 3, 4), (1, 1), (1500, 3)]
DTYPES = ("float32", "bfloat16", "float16", "uint8", "int64")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_iota_counts_along_the_whole_array(shape: tuple[int, ...], build: Any) -> None:
    """Along each dimension, as each dtype; whole, and broadcast into the other dimensions."""

    def program(x: Any) -> list[Any]:
        every = [
            lax.broadcasted_iota(dtype, shape, dim) for dtype in DTYPES for dim in range(len(shape))
        ]
        alone = [
            lax.broadcast_in_dim(lax.iota("float32", shape[dim]), shape, (dim,)) * x
            for dim in range(len(shape))
        ]
        return [*every, *alone]

    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with jax.enable_x64(True):
        aval = jax.ShapeDtypeStruct(shape, np.float32)
        want = [np.asarray(each) for each in jax.jit(program)(x)]
        outputs = [OutRole.GATHER, *[OutRole.SLICE] * len(want)]
        run = build(program, [aval], [Role.SLICE], outputs[: len(want)], shape=shape, ranks=2)
    for sliced in range(len(shape)):
        for got, each in zip(run([x], shape, sliced=sliced, tile=13), want, strict=True):
            assert got.dtype == each.dtype
            np.testing.assert_array_equal(got, each)


def test_iota_in_a_kernel_for_any_size(build: Any) -> None:
    def program(x: Any) -> Any:
        return x + lax.iota("float32", 8)

    aval = jax.ShapeDtypeStruct((8,), np.float32)
    with pytest.raises(CodegenError, match="counts along a shape"):
        build(program, [aval], [Role.WHOLE], [OutRole.GATHER], shape=None, ranks=2)


@pytest.mark.parametrize("shape", [(40,), (3, 5, 8), (1500, 3)], ids=str)
def test_random_bits_are_those_of_jax(shape: tuple[int, ...], build: Any) -> None:
    """Also those that are made for some of the dimensions and repeated along the others."""
    key = jax.random.key(7)
    made = [(shape, width) for width in (8, 16, 32, 64)]
    made += [(shape[1:], 32), ((*shape[:-1], 1), 32)] if shape[1:] else []

    def program(first: Any, second: Any) -> list[Any]:
        return [
            jnp.broadcast_to(
                _compat.counted_bits((first, second), _compat.counters(part), width), shape
            )
            for part, width in made
        ]

    words = np.asarray(jax.random.key_data(key))
    with jax.enable_x64(True):
        want = [np.asarray(jax.random.bits(key, part, f"uint{width}")) for part, width in made]
        run = build(
            program,
            [jax.ShapeDtypeStruct((), np.uint32)] * 2,
            [Role.SCALAR] * 2,
            [OutRole.GATHER, *[OutRole.SLICE] * len(made)][: len(made)],
            shape=shape,
            ranks=3,
        )
    got = run(words, shape, sliced=len(shape) - 1, tile=17)
    for each, true in zip(got, want, strict=True):
        assert each.dtype == true.dtype
        np.testing.assert_array_equal(each, np.broadcast_to(true, shape))
