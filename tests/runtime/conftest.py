"""A momentum step written by hand against the kernel ABI, as the code generator would write it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from jaxcc.runtime import load_kernel

HEADERS = Path(__file__).parents[2] / "ffi"

# Scalars: lr, mu. Operands: g (whole, summed), w (whole), m (slice).
# Results: w (gathered), m (slice).
MOMENTUM = """
#include "protocol/abi.h"
extern "C" const int32_t jaxcc_kernel_abi = JAXCC_ABI;
extern "C" void jaxcc_kernel_tile(const jaxcc_tile* t) {
  const auto buffer = [&](int rank, int index) {
    return static_cast<float*>(t->buffers[rank][index]);
  };
  const float lr = buffer(t->owner, 0)[0], mu = buffer(t->owner, 1)[0];
  for (int64_t i = t->begin; i < t->end; ++i) {
    float g = 0;
    for (int rank = 0; rank < t->ranks; ++rank) g += buffer(rank, t->first_operand)[i];
    const float m = mu * buffer(t->owner, t->first_operand + 2)[i - t->shift] + g;
    const float w = buffer(t->owner, t->first_operand + 1)[i] - lr * m;
    buffer(t->owner, t->first_result + 1)[i - t->shift] = m;
    for (int rank = 0; rank < t->ranks; ++rank) buffer(rank, t->first_result)[i] = w;
  }
}
"""


@pytest.fixture(scope="session")
def momentum(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The key of the loaded kernel."""
    folder = tmp_path_factory.mktemp("momentum")
    source, library = folder / "momentum.cc", folder / "momentum.so"
    source.write_text(MOMENTUM)
    compiler = shutil.which("g++") or "c++"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-I{HEADERS}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True, timeout=60)
    load_kernel("tests.momentum", str(library))
    return "tests.momentum"
