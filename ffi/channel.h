// Where ranks of several processes meet: shared memory with flags and two outboxes for each rank.
//
// A rank that ends, or does not come in time, closes the channel for all of its ranks, for good:
// each gets the same message, then and at every later call. The memory goes back when each has.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "outboxes.h"
#include "protocol/peer_view.h"
#include "segment.h"
#include "status.h"

namespace jaxcc {

// A device is named by its process and its ordinal there.
constexpr int kProcessShift = 20;
constexpr int64_t process_of(int64_t device) { return device >> kProcessShift; }
constexpr int64_t ordinal_of(int64_t device) {
  return device & ((int64_t{1} << kProcessShift) - 1);
}

// Whose channel it is, in every process alike.
struct Members {
  std::vector<int64_t> devices;  // of each rank
  int64_t outbox;                // bytes

  bool operator<(const Members& other) const {
    return outbox != other.outbox ? outbox < other.outbox : devices < other.devices;
  }
};

class Port;

class Channel {
 public:
  // Ranks alternate between two flags as between two outboxes.
  static constexpr int32_t kSlots = Outboxes::kSlots;

  // What a rank tells the others.
  struct RankState {
    alignas(64) std::atomic<uint32_t> bell;  // changes when there may be something for a sleeper
    std::atomic<uint32_t> sleeping;
    alignas(64) std::atomic<int32_t> pid;  // zero until the rank is there
    std::atomic<uint32_t> left;            // its program ended as programs do
    std::atomic<uint64_t> begun;           // collectives
    std::atomic<uint64_t> ended;
    std::atomic<uint64_t> text[96];  // of the collective that it began last
  };

  // Makes the memory of a group, in one of its processes. Null with a `problem` if it cannot.
  // Epochs count from `first_epoch`.
  static std::unique_ptr<Channel> create(Members members, int64_t process,
                                         std::chrono::nanoseconds timeout, std::string* problem,
                                         uint32_t first_epoch = 0);

  // Joins it in another: `address` is what the first one's says.
  static std::unique_ptr<Channel> attach(Members members, int64_t process,
                                         std::chrono::nanoseconds timeout,
                                         const std::string& address, std::string* problem);
  ~Channel();

  const std::string& address() const { return address_; }
  int ranks() const { return static_cast<int>(members_.devices.size()); }
  int64_t outbox_bytes() const { return members_.outbox; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // The end of a rank of this process.
  Port& port(int rank) const { return *ports_[rank]; }

  RankState& state(int rank) const { return *states_[rank]; }
  // Where a rank writes in an epoch.
  char* outbox(int rank, uint32_t epoch) const { return outboxes_.of(rank, epoch); }
  Flag* const* flags() const { return flags_.data(); }
  uint32_t first_epoch() const;

  // Ends all use of the channel; the status of whoever was the first to. A rank that waits says in
  // which epoch: what came before, all ranks came to, and may finish.
  Status close(const Status& status, std::optional<uint32_t> epoch = std::nullopt);
  bool is_closed() const;
  // Of a closed channel, whether it was closed in a later epoch than this.
  bool closed_after(uint32_t epoch) const;
  // Why it is closed.
  Status closed() const;

  // Gives the memory back, once no rank of this process is in a collective and none of another
  // process has yet to join. To be called by a rank that is in none, of a closed channel; why it is
  // closed.
  Status retire();
  // Why it is closed, to ranks that may be without the memory; null before any has called `retire`.
  const Status* retired() const {
    return retired_.load(std::memory_order_acquire) ? &end_ : nullptr;
  }

  // Says that the ranks of this process end because their program does.
  void leave();

  // Wakes a rank if it sleeps.
  void ring(int rank) const;

  // Whether the rank's process has ended: one that was there, or that is to come.
  bool is_dead(int rank) const;
  // The processes of ranks that are to come; zero where they are not known.
  void expect(std::vector<int32_t> pids) { expected_ = std::move(pids); }

  std::string name() const;
  std::string device_name(int rank) const;
  std::string rank_name(int rank) const;
  // How a rank ended that is dead.
  std::string fate(int rank) const;
  // What a rank is in, or was last.
  std::string whereabouts(int rank) const;

 private:
  struct Header;

  Channel(std::unique_ptr<Segment> segment, Members members, int64_t process,
          std::chrono::nanoseconds timeout);
  std::string open();
  bool is_local(int rank) const { return process_of(members_.devices[rank]) == process_; }

  std::unique_ptr<Segment> segment_;  // until it is given back
  const Members members_;
  const int64_t process_;
  const std::chrono::nanoseconds timeout_;
  Header* header_;
  const Outboxes outboxes_;
  std::vector<RankState*> states_;
  std::vector<Flag*> flags_;
  std::vector<std::unique_ptr<Port>> ports_;  // null for ranks of other processes
  std::vector<int32_t> expected_;
  std::string address_;
  std::mutex door_;  // nobody gives the memory back meanwhile
  std::atomic<bool> retired_{false};
  Status end_;
};

// The channels of this process, which live as long as it does.

// The address of a new one, or of the one that is there; empty with a `problem`. `pids` as in
// Channel::expect.
std::string create_channel(const Members& members, std::vector<int32_t> pids, int64_t process,
                           std::chrono::nanoseconds timeout, std::string* problem);
// Returns what keeps it from joining, or an empty string.
std::string attach_channel(const Members& members, std::vector<int32_t> pids, int64_t process,
                           std::chrono::nanoseconds timeout, const std::string& address);
Channel* find_channel(const Members& members);

}  // namespace jaxcc
