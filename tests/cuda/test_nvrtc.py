"""CUDA kernels: compiled for each architecture; how a block shares a tile is run on the CPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcc.codegen import (
    Kernel,
    OutRole,
    Role,
    _compile,
    _nvrtc,
    compile_cuda,
    find_compiler,
    generate,
)
from jaxcc.layout import CodegenError

GATHER, SLICE = OutRole.GATHER, OutRole.SLICE


def adam(g: Any, w: Any, m: Any, v: Any, rate: Any, c1: Any, c2: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return w - rate * (m * c1) / (jnp.sqrt(v * c2) + 1e-8), m, v


def tail(x: Any, bias: Any, residual: Any) -> Any:
    return jax.nn.gelu(x + bias) + residual


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def kernel(
    f: Any,
    avals: Sequence[Any],
    inputs: Sequence[Role],
    outputs: Sequence[OutRole],
    shape: tuple[int, ...] | None,
    ranks: int = 4,
) -> Kernel:
    closed = jax.make_jaxpr(f)(*avals)
    jaxpr = getattr(closed, "jaxpr", closed)
    return generate(jaxpr, (), inputs, outputs, shape=shape, ranks=ranks)


KERNELS = {
    "adam": kernel(
        adam,
        [f32(8)] * 4 + [f32()] * 3,
        [Role.REDUCE, Role.WHOLE, Role.SLICE, Role.SLICE] + [Role.SCALAR] * 3,
        [GATHER, SLICE, SLICE],
        None,
    ),
    "bias, gelu, residual": kernel(
        tail,
        [f32(64, 96), f32(96), f32(64, 96)],
        [Role.REDUCE, Role.WHOLE, Role.WHOLE],
        [GATHER],
        (64, 96),
    ),
    "bfloat16": kernel(
        tail,
        [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((64, 96), (96,), (64, 96))],
        [Role.REDUCE, Role.WHOLE, Role.SLICE],
        [GATHER],
        (64, 96),
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str, arch: str) -> None:
    binary = compile_cuda(KERNELS[name], arch)
    assert binary.cubin[:4] == b"\x7fELF"
    (entry,) = re.findall(r"\.entry (\w+)", binary.ptx)
    assert entry == "jaxcc_fused"
    assert f".target {arch}" in binary.ptx
    # The barrier's two sides, in the scope that peers share; no weaker access of a flag.
    assert "ld.acquire.sys.global.u32" in binary.ptx and "st.release.sys.global.u32" in binary.ptx
    assert "ld.volatile" not in binary.ptx
    # Nothing is spilled to a stack, and no product is fused into a sum unless math.h asks for it.
    assert ".local" not in binary.ptx
    assert name != "adam" or "fma.rn.f32" not in binary.ptx


def test_the_same_epilogue_serves_cpu_and_gpu() -> None:
    for each in KERNELS.values():
        assert each.epilogue in each.text and each.epilogue in each.cuda_text


def test_every_primitive_compiles() -> None:
    """The functions of math.h and element.h are CUDA too."""

    def f(x: Any, y: Any, i: Any, j: Any) -> Any:
        functions = [jnp.exp, jnp.exp2, jnp.log, jnp.expm1, jnp.log1p, jnp.tanh, jax.nn.sigmoid]
        functions += [
            jax.lax.erf,
            jax.lax.erfc,
            jnp.sqrt,
            jax.lax.rsqrt,
            jnp.cbrt,
            jnp.sin,
            jnp.cos,
        ]
        functions += [
            jnp.floor,
            jnp.ceil,
            jnp.round,
            jax.lax.round,
            jnp.sign,
            jnp.abs,
            jnp.isfinite,
            jnp.tan,
            jnp.sinh,
            jnp.cosh,
            jnp.asin,
            jnp.acos,
            jnp.atan,
            jnp.asinh,
            jnp.acosh,
            jnp.atanh,
            jax.lax.erf_inv,
            jax.lax.lgamma,
            jax.lax.digamma,
        ]
        integers = [jax.lax.div, jax.lax.rem, jax.lax.shift_left, jax.lax.shift_right_logical]
        return [
            *(function(x) for function in functions),
            *(function(i, j) for function in integers),
            jax.lax.population_count(i),
            jax.lax.clz(i),
            jax.lax.atan2(x, y),
            jnp.nextafter(x, y),
            jax.lax.bitcast_convert_type(x, "int32"),
            x**y,
            x % y,
            x**7,
            jnp.maximum(x, y),
            x.astype(jnp.int32),
            x.astype(jnp.float16).astype(jnp.bfloat16),
            jnp.where(x > y, jnp.inf, jnp.nan),
        ]

    whole = [jax.ShapeDtypeStruct((8,), d) for d in ("float32", "float32", "int32", "int32")]
    outputs = len(jax.eval_shape(f, *whole))
    every = kernel(f, whole, [Role.WHOLE] * 4, [SLICE] * outputs, None)
    assert compile_cuda(every, "sm_90").cubin[:4] == b"\x7fELF"


LANES = """
struct FourLanes {
  static constexpr bool kDirect = true;
  int64_t lane;
  int64_t first() const { return lane; }
  int64_t step() const { return 4; }
};
extern "C" void direct_tile(const jaxcc_tile* tile) {
  for (int64_t lane = 3; lane >= 0; --lane) Epilogue::tile(*tile, FourLanes{lane});
}
"""


@pytest.mark.parametrize("name", ["adam", "bias, gelu, residual"])
def test_lanes_that_share_a_tile_do_what_one_thread_does(name: str, tmp_path: Path) -> None:
    """A block's threads take elements in turn and store to all ranks themselves."""
    each, size = KERNELS[name], 64 * 96
    flags = [*_compile._FLAGS, "-I", str(_compile.include_folders()[0])]
    library = tmp_path / "lanes.so"
    command = [find_compiler()[0], *flags, "-o", str(library), "-", "-lm"]
    subprocess.run(command, input=each.text + LANES, text=True, check=True, timeout=60)
    functions = ctypes.CDLL(str(library))
    rng = np.random.default_rng(1)
    scalars = [rng.random(1, np.float32) for _ in each.scalar_inputs]
    operands = [[rng.random(size, np.float32) for _ in each.operand_inputs] for _ in range(4)]
    results: dict[str, list[list[Any]]] = {}
    for function in ("jaxcc_kernel_tile", "direct_tile"):
        results[function] = [
            [np.full(size, np.nan, np.float32) for _ in each.outputs] for _ in range(4)
        ]
        buffers = [[*scalars, *operands[r], *results[function][r]] for r in range(4)]
        rows = [(ctypes.c_void_p * len(row))(*(b.ctypes.data for b in row)) for row in buffers]
        table = (ctypes.c_void_p * 4)(*(ctypes.addressof(row) for row in rows))
        for owner in range(4):
            begin, end = owner * size // 4, (owner + 1) * size // 4
            tile = (ctypes.c_int64 * 10)(
                ctypes.addressof(table),
                0,  # targets
                4 | owner << 32,
                0,  # receives, kind
                len(scalars) << 32,  # first_scalar, first_operand
                len(scalars) + len(operands[0]),  # first_result, stream
                begin,
                end,
                begin,
                0,
            )
            getattr(functions, function)(ctypes.byref(tile))
    one, direct = results.values()
    for r in range(4):
        for a, b in zip(one[r], direct[r], strict=True):
            assert a.tobytes() == b.tobytes()
    assert not np.isnan(direct[0][0]).any()


def test_nvrtc_s_message_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodegenError, match="gpu-architecture") as error:
        compile_cuda(KERNELS["adam"], "sm_12345")
    assert error.value.code == "CODEGEN_COMPILE"
    monkeypatch.setattr(_nvrtc, "_OPTIONS", (*_nvrtc._OPTIONS, "-Dstruct=oops"))
    with pytest.raises(CodegenError, match="error"):
        compile_cuda(KERNELS["adam"], "sm_90")


def test_a_missing_nvrtc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvrtc, "_wheel_folders", list)
    monkeypatch.setattr(_nvrtc, "find_library", lambda name: None)
    _nvrtc._library.cache_clear()
    try:
        with pytest.raises(CodegenError, match="nvidia-cuda-nvrtc") as error:
            compile_cuda(KERNELS["adam"], "sm_90")
    finally:
        _nvrtc._library.cache_clear()
    assert error.value.code == "CODEGEN_NO_NVRTC"
    assert "pip install 'jaxcc[cuda]'" in str(error.value)
