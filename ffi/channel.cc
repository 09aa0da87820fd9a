#include "channel.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "port.h"
#include "wait.h"

namespace jaxcc {
namespace {

constexpr int64_t kPage = 4096;

int64_t pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Where things lie: the header, each rank's state and flags, each rank's outboxes.
struct Places {
  int64_t ranks;
  int64_t outbox;

  int64_t flags() const { return kPage + ranks * pages(sizeof(Channel::RankState)); }
  int64_t common() const {
    return flags() + pages(ranks * ranks * Channel::kSlots * int64_t{sizeof(Flag)});
  }
  int64_t outboxes(int64_t rank) const { return common() + Outboxes::size(rank, outbox); }
  int64_t bytes() const { return outboxes(ranks); }
};

Places places_of(const Members& members) {
  return {static_cast<int64_t>(members.devices.size()), members.outbox};
}

enum : uint32_t { kOpen, kClosing, kClosed };

}  // namespace

struct Channel::Header {
  uint64_t token;  // known to those who were told the address
  uint32_t first_epoch;
  bool waited;  // whoever closed it, and in this epoch
  uint32_t epoch;
  Failure failure;
  std::atomic<uint32_t> closed;
  char message[2048];
};

Channel::Channel(std::unique_ptr<Segment> segment, Members members, int64_t process,
                 std::chrono::nanoseconds timeout)
    : segment_(std::move(segment)),
      members_(std::move(members)),
      process_(process),
      timeout_(timeout),
      header_(reinterpret_cast<Header*>(segment_->data())),
      outboxes_(segment_->data() + places_of(members_).outboxes(0), ranks(), members_.outbox),
      ports_(members_.devices.size()) {
  static_assert(sizeof(Header) <= kPage);
  const Places places = places_of(members_);
  char* const data = segment_->data();
  for (int rank = 0; rank < ranks(); ++rank) {
    states_.push_back(reinterpret_cast<RankState*>(data + kPage + rank * pages(sizeof(RankState))));
    flags_.push_back(reinterpret_cast<Flag*>(data + places.flags()) + rank * ranks() * kSlots);
  }
}

Channel::~Channel() = default;

std::unique_ptr<Channel> Channel::create(Members members, int64_t process,
                                         std::chrono::nanoseconds timeout, std::string* problem,
                                         uint32_t first_epoch) {
  const Places places = places_of(members);
  auto segment = Segment::create(places.bytes(), problem);
  if (!segment) return nullptr;
  *problem = segment->reserve(0, places.common());
  if (!problem->empty()) return nullptr;
  std::unique_ptr<Channel> channel(
      new Channel(std::move(segment), std::move(members), process, timeout));
  Header& header = *channel->header_;
  if (getrandom(&header.token, sizeof header.token, 0) != sizeof header.token) {
    *problem = "getrandom failed";
    return nullptr;
  }
  header.first_epoch = first_epoch;
  for (Flag* flags : channel->flags_) {
    for (int i = 0; i < channel->ranks() * kSlots; ++i) flags[i].epoch = first_epoch;
  }
  *problem = channel->open();
  return problem->empty() ? std::move(channel) : nullptr;
}

std::unique_ptr<Channel> Channel::attach(Members members, int64_t process,
                                         std::chrono::nanoseconds timeout,
                                         const std::string& address, std::string* problem) {
  const size_t space = address.find(' ');
  auto segment = Segment::attach(address.substr(0, space), places_of(members).bytes(), problem);
  if (!segment) return nullptr;
  std::unique_ptr<Channel> channel(
      new Channel(std::move(segment), std::move(members), process, timeout));
  if (" " + std::to_string(channel->header_->token) != address.substr(space)) {
    *problem = address.substr(0, space) + " is not the memory of this group";
    return nullptr;
  }
  *problem = channel->open();
  return problem->empty() ? std::move(channel) : nullptr;
}

// Takes this process's ranks' places, and gives each its share of the outboxes from memory near it.
std::string Channel::open() {
  const Places places = places_of(members_);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!is_local(rank)) continue;
    std::string problem =
        segment_->reserve(places.outboxes(rank), Outboxes::size(1, members_.outbox));
    if (problem.empty()) problem = segment_->hold(rank);
    if (!problem.empty()) return problem;
    ports_[rank] = std::make_unique<Port>(*this, rank);
    states_[rank]->pid.store(getpid(), std::memory_order_release);
  }
  address_ = segment_->path() + " " + std::to_string(header_->token);
  return "";
}

uint32_t Channel::first_epoch() const { return header_->first_epoch; }

Status Channel::close(const Status& status, std::optional<uint32_t> epoch) {
  std::lock_guard lock(door_);
  if (!segment_) return end_;
  uint32_t open = kOpen;
  if (header_->closed.compare_exchange_strong(open, kClosing, std::memory_order_acq_rel)) {
    header_->waited = epoch.has_value();
    header_->epoch = epoch.value_or(0);
    header_->failure = status.failure;
    const size_t bytes = std::min(status.message.size(), sizeof header_->message - 1);
    std::memcpy(header_->message, status.message.data(), bytes);
    header_->message[bytes] = 0;
    header_->closed.store(kClosed, std::memory_order_seq_cst);
    for (int rank = 0; rank < ranks(); ++rank) {
      states_[rank]->bell.fetch_add(1, std::memory_order_seq_cst);
      wake_all(reinterpret_cast<const uint32_t*>(&states_[rank]->bell), /*shared=*/true);
    }
  }
  return closed();
}

bool Channel::is_closed() const { return header_->closed.load(std::memory_order_seq_cst) != kOpen; }

Status Channel::closed() const {
  // Whoever closes it may end while it writes why.
  for (int i = 0; i < 1000 && header_->closed.load(std::memory_order_acquire) != kClosed; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (header_->closed.load(std::memory_order_acquire) != kClosed) {
    return {Failure::kDied, "[BACKEND_RANK_DIED] a rank of " + name() + " died"};
  }
  return {header_->failure, header_->message};
}

bool Channel::closed_after(uint32_t epoch) const {
  return header_->closed.load(std::memory_order_acquire) == kClosed && header_->waited &&
         static_cast<int32_t>(header_->epoch - epoch) > 0;
}

Status Channel::retire() {
  std::lock_guard lock(door_);
  if (!segment_) return end_;
  if (!retired_.load(std::memory_order_relaxed)) {
    end_ = closed();
    retired_.store(true, std::memory_order_release);
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!states_[rank]->pid.load(std::memory_order_acquire) && !is_dead(rank)) return end_;
  }
  std::vector<Port*> taken;
  for (const auto& port : ports_) {
    if (!port) continue;
    if (port->take()) {
      taken.push_back(port.get());
      continue;
    }
    for (Port* other : taken) other->release();
    return end_;
  }
  segment_.reset();
  return end_;
}

void Channel::leave() {
  std::lock_guard lock(door_);
  if (!segment_) return;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (is_local(rank)) states_[rank]->left.store(1, std::memory_order_release);
  }
}

void Channel::ring(int rank) const {
  if (!states_[rank]->sleeping.load(std::memory_order_seq_cst)) return;
  states_[rank]->bell.fetch_add(1, std::memory_order_seq_cst);
  wake_all(reinterpret_cast<const uint32_t*>(&states_[rank]->bell), /*shared=*/true);
}

bool Channel::is_dead(int rank) const {
  if (is_local(rank)) return false;
  if (states_[rank]->pid.load(std::memory_order_acquire)) return !segment_->held(rank);
  const int32_t pid = expected_.empty() ? 0 : expected_[rank];
  return pid && kill(pid, 0) && errno == ESRCH;
}

std::string Channel::name() const {
  std::string text;
  for (int64_t device : members_.devices) {
    text += (text.empty() ? "" : ", ") + std::to_string(process_of(device)) + ":" +
            std::to_string(ordinal_of(device));
  }
  return "the group of devices " + text + " (process:device)";
}

std::string Channel::device_name(int rank) const {
  const int64_t device = members_.devices[rank];
  return "process " + std::to_string(process_of(device)) + "'s device " +
         std::to_string(ordinal_of(device));
}

std::string Channel::rank_name(int rank) const {
  // What is known of this process's own is asked without the memory, too.
  const int32_t pid =
      is_local(rank) ? getpid() : states_[rank]->pid.load(std::memory_order_acquire);
  const int64_t device = members_.devices[rank];
  return "rank " + std::to_string(rank) + " (process " + std::to_string(process_of(device)) +
         ", device " + std::to_string(ordinal_of(device)) +
         (pid ? ", pid " + std::to_string(pid) + ")" : ")");
}

std::string Channel::fate(int rank) const {
  return states_[rank]->left.load(std::memory_order_acquire)
             ? "ended its program before the end of "
             : "died during ";
}

std::string Channel::whereabouts(int rank) const {
  const RankState& state = *states_[rank];
  if (!state.pid.load(std::memory_order_acquire)) return "has not joined";
  const uint64_t begun = state.begun.load(std::memory_order_acquire);
  if (!begun) return "has begun no collective";
  const bool inside = state.ended.load(std::memory_order_acquire) != begun;
  return (inside ? "is in " : "was last in ") + op_of(read_text(state.text)) + " #" +
         std::to_string(begun);
}

namespace {

struct Registry {
  const pid_t pid = getpid();
  std::mutex mutex;
  std::map<Members, std::unique_ptr<Channel>> channels;
};

// Says that the ranks of this process leave; a fork of it has none.
void leave_at_exit();

// Never destroyed: executables may outlive static objects.
Registry& registry() {
  static Registry& instance = [&]() -> Registry& {
    std::atexit(leave_at_exit);
    return *new Registry;
  }();
  return instance;
}

void leave_at_exit() {
  std::lock_guard lock(registry().mutex);
  if (getpid() != registry().pid) return;
  for (const auto& [members, channel] : registry().channels) {
    if (channel) channel->leave();
  }
}

}  // namespace

std::string create_channel(const Members& members, std::vector<int32_t> pids, int64_t process,
                           std::chrono::nanoseconds timeout, std::string* problem) {
  std::lock_guard lock(registry().mutex);
  std::unique_ptr<Channel>& channel = registry().channels[members];
  if (!channel) {
    channel = Channel::create(members, process, timeout, problem);
    if (channel) channel->expect(std::move(pids));
  }
  return channel ? channel->address() : "";
}

std::string attach_channel(const Members& members, std::vector<int32_t> pids, int64_t process,
                           std::chrono::nanoseconds timeout, const std::string& address) {
  std::lock_guard lock(registry().mutex);
  std::unique_ptr<Channel>& channel = registry().channels[members];
  std::string problem;
  if (!channel) {
    channel = Channel::attach(members, process, timeout, address, &problem);
    if (channel) channel->expect(std::move(pids));
  }
  return problem;
}

Channel* find_channel(const Members& members) {
  std::lock_guard lock(registry().mutex);
  const auto found = registry().channels.find(members);
  return found == registry().channels.end() ? nullptr : found->second.get();
}

}  // namespace jaxcc
