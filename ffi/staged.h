// Collectives of ranks that leave each other what they need: those of several processes, and those
// of one where that is faster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchanger.h"
#include "kernels.h"
#include "port.h"
#include "protocol/exchange.h"
#include "signature.h"

namespace jaxcc {

// How the buffers of one fused call go through outboxes. Every rank plans it alike.
class StagedKernel {
 public:
  // `buffers` are those of a rank, in the order that abi.h gives; an outbox has so many bytes.
  // Returns what is wrong with them, or an empty string.
  std::string plan(const FusedSignature& signature, const Kernel& kernel,
                   std::vector<Buffer> buffers, int64_t outbox);

  // Runs the kernel on the buffers of the rank at `place`, which is that of Port::begin; `stream`
  // if results are too large to stay in cache.
  Status run(Port& port, int64_t place, void* const* buffers, bool stream) const;
  Status run(Exchanger& rank, void* const* buffers, bool stream) const;

 private:
  template <class Platform>
  Status run_on(Platform& platform, const Status& begun, void* const* buffers, bool stream) const;
  template <class Platform>
  bool two_shot(Platform& platform, const PeerView& view) const;

  const FusedSignature* signature_ = nullptr;
  Kernel kernel_;
  std::vector<Buffer> buffers_;
  std::vector<int32_t> totals_;  // which of the buffers
  Staging staging_{};
  int64_t bytes_ = 0;
  int64_t window_ = 0;  // bytes at a time of a one-shot; 0 for a two-shot
};

// Runs moves on one rank's operand and result.
Status run_staged(Port& port, int64_t place, const MoveSignature& signature, void* const* buffers,
                  bool stream);
Status run_staged(Exchanger& rank, const MoveSignature& signature, void* const* buffers,
                  bool stream);

}  // namespace jaxcc
