// Kernels by key: those of this library, and generated ones once their shared object has been
// loaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "protocol/abi.h"

namespace jaxcc {

struct Kernel {
  jaxcc_tile_fn tile = nullptr;
  jaxcc_total_fn total = nullptr;  // null if it has no totals
};

// The kernel; one without a tile function if there is none of that key.
Kernel find_kernel(const std::string& key);

// Loads the shared object at `path`, unless the key is known. Returns what is wrong with it, or an
// empty string.
std::string load_kernel(const std::string& key, const std::string& path);

// all_reduce.<op>.<dtype>: one operand, whole on every rank, to one result, gathered. op: sum, max,
// min, prod; dtype: f32, f64, i32, i64, u32, bf16, f16.
const std::vector<std::pair<std::string, jaxcc_tile_fn>>& all_reduce_kernels();

}  // namespace jaxcc
