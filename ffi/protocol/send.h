// Sent results: computed into a scratch block and copied from there to the ranks that receive them;
// where nobody sends, there are zeros.
#pragma once

#include "gather.h"

#ifndef __CUDACC__

namespace jaxcc {

// Used as a Gather is. The rank in the owner's place of the team that receives gets a slice, or, if
// it `gathers`, each rank of that team its part of the whole.
template <class T, bool gathers, int64_t block_size = kBlock>
class Send {
 public:
  JAXCC_FN Send(const jaxcc_tile& tile, int index) : tile_(tile), index_(index) {}

  JAXCC_FN Run<T, 1> run(int64_t block, int64_t at) { return {{scratch_ + (at - block)}}; }

  JAXCC_FN void finish(int64_t block, int64_t end) const {
    const int64_t offset = (gathers ? block : block - tile_.shift) * int64_t{sizeof(T)};
    const int64_t bytes = (end - block) * int64_t{sizeof(T)};
    const int32_t first = gathers ? 0 : tile_.owner;
    const int32_t last = gathers ? tile_.ranks : tile_.owner + 1;
    for (int32_t r = first; r < last; ++r) {
      if (tile_.targets)
        copy((char*)tile_.targets[r][index_] + offset, scratch_, bytes, tile_.stream);
      if (!tile_.receives) __builtin_memset((char*)tile_.buffers[r][index_] + offset, 0, bytes);
    }
  }

 private:
  const jaxcc_tile& tile_;
  int index_;
  alignas(64) T scratch_[block_size];
};

}  // namespace jaxcc

#endif
