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

#include "exchanger.h"
#include "port.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcc {

xla::ffi::Error invalid(const std::string& op, const std::string& what);

// How a rank's collective ended, as XLA is told.
xla::ffi::Error outcome(const Status& status);

// Buffers larger than this do not stay in the cache.
int64_t cache_bytes();

// Which process this is, and what XLA calls its first device: where there are several processes it
// counts devices through all of them. Before any call.
void set_process(int64_t process, int32_t first_device);

// Which seat of which group each device of this process has.
class Seats {
 public:
  // In a group of this process, or at a port of one of several processes.
  struct Seat {
    Group* group = nullptr;
    int number = 0;
    Port* port = nullptr;
  };

  // `devices`, as channel.h names them, are groups of `ranks`, one after another; those of several
  // processes have channels with outboxes of so many bytes. Returns what is wrong with them, or an
  // empty string.
  std::string take(xla::ffi::Span<const int64_t> devices, int64_t ranks, int64_t outbox);

  // Whether a group has ranks in other processes.
  bool has_ports() const { return has_ports_; }

  // Of the outboxes of groups, which are all of this process; 0 if they have none.
  int64_t outbox_bytes() const { return has_ports_ ? 0 : outbox_; }

  // The place among this process's devices of the one that XLA calls so.
  static int32_t ordinal(int32_t device);

  // More than the highest ordinal.
  size_t size() const { return seats_.size(); }

  // The seat of the device with this ordinal; null if it is in no group.
  const Seat* find(int32_t ordinal) const {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= seats_.size()) return nullptr;
    const Seat& seat = seats_[ordinal];
    return seat.group || seat.port ? &seat : nullptr;
  }

  // The error of a device without a seat. Nobody then waits for it in this execution.
  xla::ffi::Error stranger(const std::string& op, int32_t device, int64_t run) const;

 private:
  bool has_ports_ = false;
  int64_t outbox_ = 0;
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

// The target `jaxcc_nothing`: each of its results is an operand's buffer, which it leaves as it is.
// XLA runs it when all its operands are there.
XLA_FFI_Error* execute_nothing(XLA_FFI_CallFrame* frame);

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

// The handler that runs a collective: `execute` gets what instantiate left, the device, the
// execution, operands and results.
template <class Call>
auto execution(xla::ffi::Error (*execute)(Call*, int32_t, xla::ffi::RunId, xla::ffi::RemainingArgs,
                                          xla::ffi::RemainingRets)) {
  return xla::ffi::Ffi::Bind()
      .template Ctx<xla::ffi::State<Call>>()
      .template Ctx<xla::ffi::DeviceOrdinal>()
      .template Ctx<xla::ffi::RunId>()
      .RemainingArgs()
      .RemainingRets()
      .To(guarded(execute));
}

}  // namespace jaxcc
