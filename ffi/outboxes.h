// Where ranks that read no buffers of one another's leave what the others need.
#pragma once

#include <cstdint>

namespace jaxcc {

// Each rank has an outbox for even epochs and one for odd ones: what it writes in one epoch, the
// others read in the next, while it writes into the other.
//
// Ranks pass their outboxes on each time that they have been through both. To write a cache line
// that another core has read since this one wrote it costs five to twenty times what it costs to
// write one that this core was the last to read.
class Outboxes {
 public:
  static constexpr int32_t kSlots = 2;
  static constexpr int64_t size(int64_t ranks, int64_t bytes) { return ranks * kSlots * bytes; }

  Outboxes(char* data, int32_t ranks, int64_t bytes) : data_(data), ranks_(ranks), bytes_(bytes) {}

  char* of(int32_t rank, uint32_t epoch) const {
    const uint32_t turn = (static_cast<uint32_t>(rank) + epoch / kSlots) % ranks_;
    return data_ + (turn * kSlots + epoch % kSlots) * bytes_;
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* const data_;
  const uint32_t ranks_;
  const int64_t bytes_;  // of one
};

}  // namespace jaxcc
