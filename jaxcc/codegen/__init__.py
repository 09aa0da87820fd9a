"""Kernels as text, made from jaxprs; compiled with the system's C++ compiler, or NVRTC; cached."""

from jaxcc.codegen._cache import cache_folder as cache_folder
from jaxcc.codegen._cache import new_cache_file as new_cache_file
from jaxcc.codegen._compile import compile_kernel as compile_kernel
from jaxcc.codegen._compile import find_compiler as find_compiler
from jaxcc.codegen._epilogue import Kernel as Kernel
from jaxcc.codegen._epilogue import generate as generate
from jaxcc.codegen._nvrtc import CudaBinary as CudaBinary
from jaxcc.codegen._nvrtc import compile_cuda as compile_cuda
from jaxcc.codegen._roles import OutRole as OutRole
from jaxcc.codegen._roles import Role as Role
from jaxcc.codegen._source import Source as Source
