// Gathered results: stored once by the kernel's loop, and from there to every rank.
//
// On a host the loop stores to one place, the owner's array or, if that would only be pulled into
// the cache to be overwritten, a scratch block; after each block the other ranks get a copy.
// (Stores to all ranks in the loop are 8 % slower there.) Where `Lanes::kDirect`, as on a GPU, the
// loop stores to all ranks.
#pragma once

#include "abi.h"

#ifndef __CUDACC__
#include "stream.h"
#endif

namespace jaxcc {

// Elements between copies: small enough for the first level of cache, large enough for whole
// vectors and lines.
constexpr int64_t kBlock = 1024;

// The end of the block that starts at `begin`.
template <class Lanes>
JAXCC_FN int64_t block_end(int64_t begin, int64_t end) {
  return Lanes::kDirect || end - begin <= kBlock ? end : begin + kBlock;
}

// Where a run of a result's elements is stored.
template <class T, int n>
struct Run {
  T* to[n];

  JAXCC_FN void put(int64_t i, T value) const {
    for (int k = 0; k < n; ++k) to[k][i] = value;
  }
};

template <class T, int ranks, bool direct, int64_t block_size = kBlock>
class Gather {
 public:
  // Result `index` of the buffers, the tensor having `operands` operands.
  JAXCC_FN Gather(const jaxcc_tile& tile, int index, int) : tile_(tile), index_(index) {}

  // For the elements from `at` of the block from `block`.
  JAXCC_FN Run<T, ranks> run(int64_t, int64_t at) const {
    Run<T, ranks> run;
    for (int r = 0; r < ranks; ++r) run.to[r] = (T*)tile_.buffers[r][index_] + at;
    return run;
  }

  // The block is computed.
  JAXCC_FN void finish(int64_t, int64_t) const {}

 private:
  const jaxcc_tile& tile_;
  int index_;
};

#ifndef __CUDACC__
// A host thread that runs the whole tile.
struct OneLane {
  static constexpr bool kDirect = false;
  static constexpr int64_t first() { return 0; }
  static constexpr int64_t step() { return 1; }
};

// Copies a block of result `index` to the ranks' arrays, `offset` bytes in; the owner has it
// already if `kept`. Not inlined: it would be compiled anew for each result.
__attribute__((noinline)) inline void spread(const jaxcc_tile& tile, int index, bool kept,
                                             const void* from, int64_t offset, int64_t bytes) {
  for (int32_t r = 0; r < tile.ranks; ++r) {
    if (kept && r == tile.owner) continue;
    copy((char*)tile.buffers[r][index] + offset, from, bytes, tile.stream);
  }
}

template <class T, int ranks, int64_t block_size>
class Gather<T, ranks, false, block_size> {
 public:
  JAXCC_FN Gather(const jaxcc_tile& tile, int index, int operands) : tile_(tile), index_(index) {
    void* const* const own = tile.buffers[tile.owner];
    bool in_cache = !tile.stream;
    for (int k = 0; k < operands; ++k) in_cache |= own[tile.first_operand + k] == own[index];
    own_ = in_cache ? (T*)own[index] : nullptr;
  }

  JAXCC_FN Run<T, 1> run(int64_t block, int64_t at) {
    return {{own_ ? own_ + at : scratch_ + (at - block)}};
  }

  JAXCC_FN void finish(int64_t block, int64_t end) const {
    const int64_t size = sizeof(T);
    const T* const from = own_ ? own_ + block : scratch_;
    spread(tile_, index_, own_ != nullptr, from, block * size, (end - block) * size);
  }

 private:
  const jaxcc_tile& tile_;
  int index_;
  T* own_;
  alignas(64) T scratch_[block_size];
};
#endif

}  // namespace jaxcc
