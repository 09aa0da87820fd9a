// What the XLA handlers of collectives share: errors, which rank of which group a device is, and
// the order buffer.
#pragma once

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcc {

xla::ffi::Error invalid(const std::string& op, const std::string& what);

// Why a rank's collective failed.
xla::ffi::Error failure(const Status& status);

// Buffers larger than this do not stay in the cache.
int64_t cache_bytes();

// Which seat of which group each device has.
class Seats {
 public:
  struct Seat {
    Group* group = nullptr;
    int number = 0;
  };

  // `devices` are ordinals in this process: groups of `ranks`, one after another. Returns what is
  // wrong with them, or an empty string.
  std::string take(xla::ffi::Span<const int64_t> devices, int64_t ranks);

  // More than the highest ordinal.
  size_t size() const { return seats_.size(); }

  // The device's seat; null if it is in no group.
  const Seat* find(int32_t device) const {
    const bool known = device >= 0 && static_cast<size_t>(device) < seats_.size();
    return known && seats_[device].group ? &seats_[device] : nullptr;
  }

  // The error of a device without a seat. Nobody then waits for it in this execution.
  xla::ffi::Error stranger(const std::string& op, int32_t device, int64_t run) const;

 private:
  std::vector<Seat> seats_;  // by ordinal
};

// The one signature of its text. It lives as long as the process: another rank may still be using
// it when an executable dies.
template <class T>
const T& shared(std::unique_ptr<T> signature) {
  static std::mutex& mutex = *new std::mutex;
  static auto& signatures = *new std::map<std::string, std::unique_ptr<T>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<T>& kept = signatures[signature->text];
  if (!kept) kept = std::move(signature);
  return *kept;
}

// The operand that says where the program has this rank: its group * ranks + its rank there. The
// first, 0, is the order buffer.
constexpr size_t kPlace = 1;

inline xla::ffi::ErrorOr<int64_t> place_of(const xla::ffi::RemainingArgs& args) {
  const auto place = args.get<xla::ffi::BufferR0<xla::ffi::S32>>(kPlace);
  if (!place) return xla::ffi::Unexpected(place.error());
  return place->typed_data()[0];
}

// Hands on the order buffer, the first operand and result of every collective.
inline void pass_order(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets) {
  const xla::ffi::AnyBuffer from = *args.get<xla::ffi::AnyBuffer>(0);
  const xla::ffi::AnyBuffer to = **rets.get<xla::ffi::AnyBuffer>(0);
  if (from.untyped_data() == to.untyped_data()) return;
  std::memcpy(to.untyped_data(), from.untyped_data(), std::min(from.size_bytes(), to.size_bytes()));
}

// What the standard library throws (for want of memory) must not reach XLA.
template <class F>
auto guarded(F function) {
  return [function](auto... args) -> decltype(function(args...)) {
    try {
      return function(args...);
    } catch (const std::exception& problem) {
      return xla::ffi::Error(xla::ffi::ErrorCode::kInternal,
                             std::string("[BACKEND_INTERNAL] ") + problem.what());
    }
  };
}

}  // namespace jaxcc
