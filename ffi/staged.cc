#include "staged.h"

#include <algorithm>
#include <utility>

#include "protocol/exchange_moves.h"

namespace jaxcc {
namespace {

// Up to this size a rank rather reads everything than waits twice; the more ranks, the less.
constexpr int64_t kOneShotBytes = int64_t{128} << 10;
// From here on memory is what takes the time, and between two ranks the one-shot moves less of it.
constexpr int64_t kStreamedBytes = int64_t{24} << 20;
// What stays in the caches on its way from one core to another. Smaller windows mean more waiting,
// which is long where ranks share cores with other work.
constexpr int64_t kWindowBytes = int64_t{512} << 10;

struct Epilogue {
  const Kernel& kernel;
  template <class Lanes>
  void tile(const jaxcc_tile& tile, Lanes) const {
    kernel.tile(&tile);
  }
  void total(const jaxcc_parts& parts) const { kernel.total(&parts); }
};

// Calls run(view) on a platform that has begun as `begun` says, where `view` has one rank's
// buffers.
template <class Platform, class F>
Status in_collective(Platform& platform, const Status& begun, const Signature& signature,
                     void* const* buffers, bool stream, const F& run) {
  if (begun.failure != Failure::kNone) return begun;
  void* const* group[kMaxRanks] = {};
  group[platform.rank()] = buffers;
  thread_local std::vector<jaxcc_part> parts;
  parts.assign(static_cast<size_t>(signature.parts), {0, 0});
  const PeerView view{platform.rank(), platform.ranks(), group, nullptr, stream, parts.data()};
  bool good;
  do {
    good = run(view);
  } while (!good && platform.again());
  const Status status = good ? Status{} : platform.status();
  if (stream) drain_streaming_stores();
  platform.end();
  return status;
}

template <class Platform>
Status run_moves(Platform& platform, const Status& begun, const MoveSignature& signature,
                 void* const* buffers, bool stream) {
  return in_collective(platform, begun, signature, buffers, stream, [&](const PeerView& view) {
    return MoveExchange(platform, view, signature.moves, platform.outbox_bytes()).run();
  });
}

}  // namespace

std::string StagedKernel::plan(const FusedSignature& signature, const Kernel& kernel,
                               std::vector<Buffer> buffers, int64_t outbox) {
  signature_ = &signature;
  kernel_ = kernel;
  buffers_ = std::move(buffers);
  const Geometry& geometry = signature.geometry;
  if (kernel.combine.run && geometry.count == 1) {
    bytes_ = geometry.tensors[0].outer * geometry.tensors[0].extent * kernel.combine.size;
    const bool small = bytes_ * (geometry.ranks - 1) <= kOneShotBytes;
    if (small || (geometry.ranks == 2 && bytes_ >= kStreamedBytes)) {
      window_ = std::min(outbox, kWindowBytes);
      return "";
    }
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].reach == kTotal) totals_.push_back(static_cast<int32_t>(b));
  }
  staging_ = plan_staging(geometry, signature.kinds.data(), buffers_.data(), outbox);
  if (staging_.units) return "";
  return "what its ranks exchange does not fit into " + std::to_string(outbox) + " bytes";
}

Status StagedKernel::run(Port& port, int64_t place, void* const* buffers, bool stream) const {
  return run_on(port, port.begin(*signature_, place), buffers, stream);
}

Status StagedKernel::run(Exchanger& rank, void* const* buffers, bool stream) const {
  return run_on(rank, rank.begin(), buffers, stream);
}

template <class Platform>
Status StagedKernel::run_on(Platform& platform, const Status& begun, void* const* buffers,
                            bool stream) const {
  return in_collective(platform, begun, *signature_, buffers, stream, [&](const PeerView& view) {
    return window_ ? one_shot(platform, kernel_.combine.run, view, bytes_, window_)
                   : two_shot(platform, view);
  });
}

template <class Platform>
bool StagedKernel::two_shot(Platform& platform, const PeerView& view) const {
  const Geometry& geometry = signature_->geometry;
  const size_t count = buffers_.size();
  thread_local std::vector<void*> stands;
  void** lists[kMaxRanks];
  void** targets[kMaxRanks];
  uint64_t sink[2];  // where the others' totals go
  stands.resize((geometry.ranks + 1) * count);
  for (int r = 0; r < geometry.ranks; ++r) {
    lists[r] = stands.data() + r * count;
    targets[r] = stands.data() + geometry.ranks * count;
    for (int32_t b : totals_) lists[r][b] = sink;
  }
  std::copy_n(view.buffers[view.rank], count, lists[view.rank % geometry.ranks]);
  const Epilogue epilogue{kernel_};
  const Stands given{lists, targets};
  return TwoShot(platform, epilogue, view, geometry, staging_, platform.outbox_bytes(), given)
      .run();
}

Status run_staged(Port& port, int64_t place, const MoveSignature& signature, void* const* buffers,
                  bool stream) {
  return run_moves(port, port.begin(signature, place), signature, buffers, stream);
}

Status run_staged(Exchanger& rank, const MoveSignature& signature, void* const* buffers,
                  bool stream) {
  return run_moves(rank, rank.begin(), signature, buffers, stream);
}

}  // namespace jaxcc
