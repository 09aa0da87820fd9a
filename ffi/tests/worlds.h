// Ranks that meet in a group of threads, or only in a channel; as threads either way, so that
// sanitizers see all that they do.
#pragma once

#include <string>
#include <vector>

#include "../staged.h"
#include "testing.h"

namespace jaxcc::testing {

class Threads {
 public:
  explicit Threads(int ranks) : group_(std::vector<int64_t>(ranks), std::chrono::seconds(60)) {}

  template <class Epilogue>
  bool run(int seat, const FusedSignature& signature, void* const* buffers, bool stream,
           const Epilogue& epilogue, int64_t place = -1) {
    Participant rank(group_, seat, {&signature, 1, buffers, stream, nullptr, place});
    return two_shot(rank, epilogue, rank.view(), signature.geometry);
  }

  bool move(int r, const MoveSignature& signature, void* const* buffers, bool stream) {
    Participant rank(group_, r, {&signature, 1, buffers, stream});
    return move_all(rank, rank.view(), signature.moves);
  }

 private:
  Group group_;
};

inline std::unique_ptr<Channel> make_channel(int ranks, int64_t outbox) {
  std::vector<int64_t> devices(ranks);
  for (int i = 0; i < ranks; ++i) devices[i] = i;
  std::string problem;
  // Epochs wrap around soon.
  auto channel =
      Channel::create({devices, outbox}, 0, std::chrono::seconds(60), &problem, uint32_t{0} - 50);
  CHECK(channel && problem.empty());
  return channel;
}

// Runs a kernel of floats at a rank's port.
template <class Epilogue>
Status run_fused(Port& port, const FusedSignature& signature, void* const* buffers, bool stream,
                 int64_t place) {
  Kernel kernel;
  kernel.tile = [](const jaxcc_tile* tile) { Epilogue().tile(*tile, Port::Lanes()); };
  kernel.total = [](const jaxcc_parts* parts) { Epilogue().total(*parts); };
  const Tensor& last = signature.tensors.back();
  const int32_t count = last.first_result + signature.kinds[last.kind].results;
  std::vector<Buffer> its(count, {kOwner, sizeof(float)});
  for (const Tensor& tensor : signature.tensors) {
    const Kind& kind = signature.kinds[tensor.kind];
    const int32_t* reach = Epilogue::reach;
    for (int32_t k = 0; k < kind.operands; ++k) its[tensor.first_operand + k].reach = *reach++;
    for (int32_t k = 0; k < kind.results; ++k) its[tensor.first_result + k].reach = *reach++;
  }
  StagedKernel staged;
  CHECK(staged.plan(signature, kernel, its, port.channel().outbox_bytes()).empty());
  return staged.run(port, place, buffers, stream);
}

class Processes {
 public:
  explicit Processes(int ranks) : channel_(make_channel(ranks, kOutbox)) {}

  template <class Epilogue>
  bool run(int seat, const FusedSignature& signature, void* const* buffers, bool stream,
           const Epilogue&, int64_t place = -1) {
    const Status status =
        run_fused<Epilogue>(channel_->port(seat), signature, buffers, stream, place);
    return status.failure == Failure::kNone;
  }

  bool move(int rank, const MoveSignature& signature, void* const* buffers, bool stream) {
    return run_staged(channel_->port(rank), -1, signature, buffers, stream).failure ==
           Failure::kNone;
  }

 private:
  static constexpr int64_t kOutbox = 128 << 10;  // many windows
  std::unique_ptr<Channel> channel_;
};

}  // namespace jaxcc::testing
