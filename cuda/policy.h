// The CUDA platform of ffi/protocol/collective.h: each rank is one grid, each of its blocks a slot
// of the flag barrier that meets the same block of the other ranks.
#pragma once

#include "protocol/barrier.h"
#include "protocol/collective.h"

namespace jaxcc {

// The threads of a block share a tile, neighbours side by side, and store gathered results to all
// ranks themselves.
struct BlockLanes {
  static constexpr bool kDirect = true;
  JAXCC_FN int64_t first() const { return threadIdx.x; }
  JAXCC_FN int64_t step() const { return blockDim.x; }
};

JAXCC_FN uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// One block of one rank. All blocks of all ranks must be resident at once: launch no more than fit.
// A block takes every gridDim.x-th chunk of its own rank's part, so a rank writes to peers only
// what nobody else reads or writes.
class CudaBlock {
 public:
  // `epoch` is this block's count of barriers passed, in device memory, so that a captured graph
  // can be replayed.
  JAXCC_FN CudaBlock(const PeerView& view, uint32_t* epoch, uint64_t limit_ns)
      : view_(view), epoch_word_(epoch), epoch_(*epoch), limit_ns_(limit_ns), next_(blockIdx.x) {}

  JAXCC_FN bool enter() { return meet(); }
  // Totals are for hosts so far: generated text that has them is not written for CUDA.
  template <class F>
  JAXCC_FN bool leave(const F&) {
    const bool left = meet();
    // All threads have read the word before the barrier.
    if (threadIdx.x == 0) *epoch_word_ = epoch_;
    return left;
  }

  JAXCC_FN BlockLanes lanes() const { return {}; }

  JAXCC_FN bool claim(int64_t count, Chunk* chunk) {
    if (next_ >= count) return false;
    *chunk = {view_.rank, next_};
    next_ += gridDim.x;
    return true;
  }

  JAXCC_FN int32_t thread() const { return threadIdx.x; }
  JAXCC_FN int32_t threads() const { return blockDim.x; }
  JAXCC_FN bool all(bool mine) const { return __syncthreads_and(mine); }

  JAXCC_FN uint32_t load_acquire(const uint32_t* word) const {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }

  JAXCC_FN void post(int32_t, Flag* flag, uint32_t epoch) const {
    asm volatile("st.release.sys.global.u32 [%0], %1;"
                 :
                 : "l"(&flag->epoch), "r"(epoch)
                 : "memory");
  }

  JAXCC_FN bool patience(int64_t polls) {
    if (polls == 0) wait_began_ = nanoseconds();
    return polls % 256 != 255 || nanoseconds() - wait_began_ < limit_ns_;
  }

 private:
  JAXCC_FN bool meet() { return flag_barrier(*this, view_, blockIdx.x, ++epoch_); }

  const PeerView& view_;
  uint32_t* epoch_word_;
  uint32_t epoch_;
  uint64_t limit_ns_;
  uint64_t wait_began_ = 0;
  int64_t next_;
};

}  // namespace jaxcc
