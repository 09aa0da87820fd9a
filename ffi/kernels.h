// Kernels by key: those of this library, and generated ones once their shared object has been
// loaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "protocol/moves.h"

namespace jaxcc {

// How the numbers of several ranks are put together.
struct Combine {
  jaxcc_combine_fn run = nullptr;
  int64_t size = 1;  // bytes of a number
};

struct Kernel {
  jaxcc_tile_fn tile = nullptr;
  jaxcc_total_fn total = nullptr;  // null if it has no totals
  Combine combine;                 // if it is nothing but an all-reduce
};

// The kernel; one without a tile function if there is none of that key.
Kernel find_kernel(const std::string& key);

// Loads the shared object at `path`, unless the key is known. Returns what is wrong with it, or an
// empty string.
std::string load_kernel(const std::string& key, const std::string& path);

// <op>.<dtype>: sum and prod of f16, bf16, f32, f64, c64, c128 and i8 to i64, u8 to u64, max and
// min of all but complex numbers, and, or and xor of integers. One that runs nothing if there is
// none of that key.
Combine find_combine(const std::string& key);

// all_reduce.<op>.<dtype>, for every reduction: one operand, whole on every rank, to one result,
// gathered.
const std::vector<std::pair<std::string, Kernel>>& all_reduce_kernels();

}  // namespace jaxcc
