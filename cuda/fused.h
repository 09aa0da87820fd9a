// The fixed part of a fused CUDA kernel. The generated text before it defines `struct Epilogue`.
#pragma once

#include "policy.h"

// A rank launches the grid with gridDim.y = 1. With gridDim.y = ranks and view.rank = 0 one launch
// runs all ranks on one device: for tests.
//
// epochs: a word for each block of the grid, zero before the first call. failed: set to 1 if a rank
// did not come within limit_ns. Results are then undefined, and the group needs new flags and
// epochs before its next call.
extern "C" __global__ void __launch_bounds__(512)
    jaxcc_fused(jaxcc::PeerView view, const __grid_constant__ jaxcc::Geometry geometry,
                uint32_t* epochs, uint64_t limit_ns, int32_t* failed) {
  view.rank += blockIdx.y;
  jaxcc::CudaBlock block(view, epochs + blockIdx.y * gridDim.x + blockIdx.x, limit_ns);
  if (!jaxcc::two_shot(block, Epilogue{}, view, geometry)) *failed = 1;
}
