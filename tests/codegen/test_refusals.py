"""What the generator refuses, with the code, the line and the reason that the user sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcc.codegen import Kernel, OutRole, Role, generate
from jaxcc.layout import CodegenError


def kernel(
    f: Callable[..., Any],
    avals: Sequence[jax.ShapeDtypeStruct],
    *,
    roles: Sequence[Role] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Kernel:
    closed = jax.make_jaxpr(f)(*avals)
    jaxpr = getattr(closed, "jaxpr", closed)
    return generate(
        jaxpr,
        getattr(closed, "consts", ()),
        roles or [Role.WHOLE] * len(avals),
        [OutRole.GATHER] * len(jaxpr.outvars),
        shape=shape,
        ranks=2,
    )


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


@pytest.mark.parametrize(
    "f, primitive",
    [
        (lambda x: x @ x, "dot_general"),
        (lambda x: x - jnp.sum(x, axis=0), "reduce_sum"),
        (lambda x: x.T, "transpose"),
        (lambda x: x.reshape(8, 2).reshape(4, 4), "reshape"),
        (lambda x: jnp.cumsum(x, axis=0), "cumsum"),
    ],
)
def test_primitives_that_are_not_pointwise(f: Callable[..., Any], primitive: str) -> None:
    with pytest.raises(CodegenError) as error:
        kernel(f, [f32(4, 4)], shape=(4, 4))
    assert error.value.code == "CODEGEN_PRIMITIVE"
    assert f"cannot contain {primitive}" in str(error.value)
    assert "test_refusals.py" in str(error.value), "the user's line is missing"


def test_one_element_of_several() -> None:
    with pytest.raises(CodegenError, match="bitcast_convert_type") as error:
        kernel(
            lambda x: jax.lax.bitcast_convert_type(x, "float32"),
            [jax.ShapeDtypeStruct((3, 4), "uint8")],
        )
    assert error.value.code == "CODEGEN_PRIMITIVE"


def test_unneeded_equations_are_not_looked_at() -> None:
    def f(x: Any) -> Any:
        jnp.linalg.norm(x @ x)
        return x + 1

    assert "+ 0x1.0p+0f" in kernel(f, [f32(4, 4)], shape=(4, 4)).text


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "int4"])
def test_unknown_dtypes(dtype: str) -> None:
    with pytest.raises(CodegenError, match=dtype) as error:
        kernel(lambda x: x + x, [jax.ShapeDtypeStruct((4,), jnp.dtype(dtype))])
    assert error.value.code == "CODEGEN_DTYPE"


def test_array_constants() -> None:
    table = np.arange(4, dtype=np.float32)
    with pytest.raises(CodegenError, match=r"shape \(4,\)") as error:
        kernel(lambda x: x + table, [f32(4)])
    assert error.value.code == "CODEGEN_CONST"


@pytest.mark.parametrize("shape", [None, (4, 4), (4,)])
def test_outputs_over_different_spaces(shape: tuple[int, ...] | None) -> None:
    with pytest.raises(CodegenError) as error:
        kernel(lambda x, y: (x + 1, y + 1), [f32(4, 4), f32(4)], shape=shape)
    assert error.value.code == "CODEGEN_SHAPE"


def test_a_broadcast_in_a_kernel_for_any_size() -> None:
    with pytest.raises(CodegenError) as error:
        kernel(lambda x, bias: x + bias, [f32(4, 8), f32(8)])
    assert error.value.code == "CODEGEN_BROADCAST"


def test_a_sliced_operand_that_is_repeated() -> None:
    with pytest.raises(CodegenError) as error:
        kernel(
            lambda x, b: x + b, [f32(4, 8), f32(8)], roles=[Role.REDUCE, Role.SLICE], shape=(4, 8)
        )
    assert error.value.code == "CODEGEN_BROADCAST"
