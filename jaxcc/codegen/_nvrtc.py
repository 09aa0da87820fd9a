"""From a kernel's text to CUDA machine code, by NVRTC: no CUDA toolkit and no GPU is needed."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcc.codegen._compile import include_folders
from jaxcc.codegen._epilogue import Kernel
from jaxcc.codegen._source import Source
from jaxcc.layout import CodegenError

# NVRTC has no C library; these are the names that the protocol takes from it.
_STDINT = b"""
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
"""
# As for the host, products and sums are rounded as written.
_OPTIONS = ("--std=c++17", "--fmad=false")


@dataclass(frozen=True)
class CudaBinary:
    """A compiled kernel, `jaxcc_fused`, for one architecture."""

    ptx: str
    cubin: bytes


def compile_cuda(kernel: Kernel | Source, arch: str) -> CudaBinary:
    """Compiles a kernel and the two-shot collective around it for `arch`, such as "sm_90".

    Raises:
      CodegenError: CODEGEN_NO_NVRTC if there is no NVRTC, CODEGEN_COMPILE with its message.
    """
    nvrtc = _library()
    options = [
        f"--gpu-architecture={arch}",
        *_OPTIONS,
        *(f"-I{path}" for path in include_folders()),
    ]
    program = ctypes.c_void_p()
    headers, names = (ctypes.c_char_p * 1)(_STDINT), (ctypes.c_char_p * 1)(b"stdint.h")
    source = kernel.cuda_text.encode()
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source, b"jaxcc_fused.cu", 1, headers, names
        )
    )
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), arguments):
            raise _failure(_read(program, "ProgramLog").decode().rstrip("\0"))
        return CudaBinary(
            ptx=_read(program, "PTX").decode().rstrip("\0"), cubin=_read(program, "CUBIN")
        )
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    """One of the program's texts: NVRTC gives the size, then fills a buffer."""
    nvrtc, size = _library(), ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(result: int) -> None:
    if result:
        nvrtc = _library()
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise _failure(nvrtc.nvrtcGetErrorString(result).decode())


def _failure(message: str) -> CodegenError:
    return CodegenError(
        "CODEGEN_COMPILE", "NVRTC did not compile a kernel", because=message.strip()
    )


@functools.cache
def _library() -> Any:
    """NVRTC, from its wheel or a CUDA toolkit on the loader's path."""
    for folder in _wheel_folders():
        for path in sorted(folder.glob("libnvrtc.so.*")):
            # NVRTC opens its builtins by name, which finds them only if they are loaded.
            for builtins in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(str(path))
    installed = find_library("nvrtc")
    if installed:
        return ctypes.CDLL(installed)
    raise CodegenError(
        "CODEGEN_NO_NVRTC",
        "NVRTC, the compiler of CUDA kernels, is not installed",
        because="neither the wheel nvidia-cuda-nvrtc nor a CUDA toolkit was found",
        fixes=("pip install 'jaxcc[cuda]'",),
    )


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    return [folder for root in roots for folder in sorted(Path(root).glob("*/lib"))]
