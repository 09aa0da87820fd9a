// What a rank sees of its group: plain pointers, wherever they come from (one process, shared
// memory, peer GPUs).
#pragma once

#include "abi.h"

namespace jaxcc {

// One word of a flag barrier, with what its writer says beside it, alone in its cache line.
struct alignas(64) Flag {
  uint32_t epoch;
  int32_t place;
  uint64_t note;
};

struct PeerView {
  int32_t rank;
  int32_t ranks;
  void* const* const* buffers;  // buffers[rank][index], in the order that abi.h gives
  Flag* const* flags;  // flags[rank][slot * ranks + writer]; null where a platform needs none
  int32_t stream;      // the jaxcc_tile field
  jaxcc_part* parts;   // parts(geometry) of them, unseen, if the geometry has totals
};

}  // namespace jaxcc
