#include "handler.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "wait.h"

namespace jaxcc {

namespace ffi = xla::ffi;

namespace {

std::atomic<int64_t> this_process{0};
std::atomic<int32_t> first_device{0};

// Groups live as long as the process: another rank may still be in one when an executable dies.
Group& group_of(std::vector<int64_t> devices) {
  static std::mutex& mutex = *new std::mutex;
  static auto& groups = *new std::map<std::vector<int64_t>, std::unique_ptr<Group>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<Group>& group = groups[devices];
  if (!group) {
    const int64_t outbox = Exchanger::fits(devices.size()) ? Exchanger::kOutboxBytes : 0;
    group = std::make_unique<Group>(std::move(devices), time_limit(), outbox);
  }
  return *group;
}

ffi::ErrorCode code_of(Failure failure) {
  switch (failure) {
    case Failure::kTimeout:
      return ffi::ErrorCode::kDeadlineExceeded;
    case Failure::kAbandoned:
      return ffi::ErrorCode::kAborted;
    case Failure::kDied:
      return ffi::ErrorCode::kUnavailable;
    default:
      return ffi::ErrorCode::kFailedPrecondition;
  }
}

}  // namespace

ffi::Error invalid(const std::string& op, const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "[BACKEND_ARGUMENT] " + op + ": " + what);
}

ffi::Error outcome(const Status& status) {
  if (status.failure == Failure::kNone) return ffi::Error::Success();
  return ffi::Error(code_of(status.failure), status.message);
}

int64_t cache_bytes() {
  static const int64_t bytes = [] {
    const long reported = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return reported > 0 ? int64_t{reported} : int64_t{32} << 20;
  }();
  return bytes;
}

void set_process(int64_t process, int32_t device) {
  this_process = process;
  first_device = device;
}

int32_t Seats::ordinal(int32_t device) {
  return device - first_device.load(std::memory_order_relaxed);
}

std::string Seats::take(ffi::Span<const int64_t> devices, int64_t ranks, int64_t outbox) {
  if (ranks < 1 || ranks > kMaxRanks) {
    return "a group has 1 to " + std::to_string(kMaxRanks) + " ranks, not " + std::to_string(ranks);
  }
  if (devices.size() == 0 || devices.size() % ranks) {
    return std::to_string(devices.size()) + " devices are not groups of " + std::to_string(ranks);
  }
  for (size_t first = 0; first < devices.size(); first += ranks) {
    const std::vector<int64_t> members(devices.begin() + first, devices.begin() + first + ranks);
    const auto is_here = [](int64_t device) { return process_of(device) == this_process; };
    const auto here = std::count_if(members.begin(), members.end(), is_here);
    for (int64_t device : members) {
      if (device < 0) return "no device has ordinal " + std::to_string(device);
    }
    if (here == 0) continue;
    Group* const group = here == ranks ? &group_of(members) : nullptr;
    Channel* const channel = group ? nullptr : find_channel({members, outbox});
    if (!group && !channel) {
      return "a group with devices of other processes was not opened in this one; trace and "
             "compile "
             "the program here instead of loading an old executable";
    }
    has_ports_ |= channel != nullptr;
    if (group) outbox_ = group->outbox_bytes();
    for (int rank = 0; rank < ranks; ++rank) {
      if (!is_here(members[rank])) continue;
      const int64_t device = ordinal_of(members[rank]);
      if (seats_.size() <= static_cast<size_t>(device)) seats_.resize(device + 1);
      if (find(device)) return "device " + std::to_string(device) + " has two ranks";
      seats_[device] = {group, rank, channel ? &channel->port(rank) : nullptr};
    }
  }
  return "";
}

ffi::Error Seats::stranger(const std::string& op, int32_t device, int64_t run) const {
  const Status status{Failure::kMismatch,
                      "[BACKEND_MESH] " + op + " runs on device " + std::to_string(device) +
                          ", and was made for a mesh without it; make it for the mesh of the "
                          "shard_map that it runs in: mesh="};
  for (const Seat& seat : seats_) {
    if (seat.group) seat.group->spoil(run, status.message);
    if (seat.port) seat.port->channel().close(status);
  }
  return outcome(status);
}

XLA_FFI_Error* execute_nothing(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(
      [](ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); });
  return handler->Call(frame);
}

}  // namespace jaxcc
