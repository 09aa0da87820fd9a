#include "handler.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace jaxcc {

namespace ffi = xla::ffi;

namespace {

std::chrono::nanoseconds timeout() {
  static const std::chrono::nanoseconds limit = [] {
    const char* text = std::getenv("JAXCC_TIMEOUT_S");
    const double seconds = text ? std::strtod(text, nullptr) : 0;
    return std::chrono::nanoseconds(
        static_cast<int64_t>(1e9 * (seconds > 0 && seconds < 1e9 ? seconds : 300)));
  }();
  return limit;
}

// Groups live as long as the process: another rank may still be in one when an executable dies.
Group& group_of(std::vector<int64_t> devices) {
  static std::mutex& mutex = *new std::mutex;
  static auto& groups = *new std::map<std::vector<int64_t>, std::unique_ptr<Group>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<Group>& group = groups[devices];
  if (!group) group = std::make_unique<Group>(std::move(devices), timeout());
  return *group;
}

ffi::ErrorCode code_of(Failure failure) {
  switch (failure) {
    case Failure::kTimeout:
      return ffi::ErrorCode::kDeadlineExceeded;
    case Failure::kAbandoned:
      return ffi::ErrorCode::kAborted;
    default:
      return ffi::ErrorCode::kFailedPrecondition;
  }
}

}  // namespace

ffi::Error invalid(const std::string& op, const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "[BACKEND_ARGUMENT] " + op + ": " + what);
}

ffi::Error failure(const Status& status) {
  return ffi::Error(code_of(status.failure), status.message);
}

int64_t cache_bytes() {
  static const int64_t bytes = [] {
    const long reported = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return reported > 0 ? int64_t{reported} : int64_t{32} << 20;
  }();
  return bytes;
}

std::string Seats::take(ffi::Span<const int64_t> devices, int64_t ranks) {
  if (ranks < 1 || ranks > kMaxRanks) {
    return "a group has 1 to " + std::to_string(kMaxRanks) + " ranks, not " + std::to_string(ranks);
  }
  if (devices.size() == 0 || devices.size() % ranks) {
    return std::to_string(devices.size()) + " devices are not groups of " + std::to_string(ranks);
  }
  for (size_t first = 0; first < devices.size(); first += ranks) {
    std::vector<int64_t> members(devices.begin() + first, devices.begin() + first + ranks);
    Group& group = group_of(members);
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t device = members[rank];
      const std::string name = std::to_string(device);
      if (device < 0 || device >= 1 << 20) return "no device has ordinal " + name;
      if (seats_.size() <= static_cast<size_t>(device)) seats_.resize(device + 1);
      if (seats_[device].group) return "device " + name + " has two ranks";
      seats_[device] = {&group, rank};
    }
  }
  return "";
}

ffi::Error Seats::stranger(const std::string& op, int32_t device, int64_t run) const {
  for (const Seat& seat : seats_) {
    if (seat.group) seat.group->spoil(run);
  }
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                    "[BACKEND_MESH] " + op + " runs on device " + std::to_string(device) +
                        ", and was made for a mesh without it; make it for the mesh of the "
                        "shard_map that it runs in: mesh=");
}

}  // namespace jaxcc
