// Where the ranks of one process meet: a group of threads, one per rank, that run a collective
// together. They announce themselves in one atomic word; what they do once all have come is up to
// participant.h and exchanger.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "outboxes.h"
#include "signature.h"
#include "status.h"
#include "wait.h"

namespace jaxcc {

// What one rank brings to a collective. It must stay valid until the rank leaves.
struct Call {
  const Signature* signature;
  int64_t run;  // the execution that it is part of; a failure spoils the rest of that execution for
                // the group
  void* const* buffers;
  bool stream;
  const void* site = nullptr;  // which call of the program it is: two may have one signature
  int64_t place = -1;          // in the program: group * ranks + rank there; -1 if it is as seated
};

class Group {
 public:
  // `devices` name the ranks in messages. Waits end after `timeout`. With outboxes of so many bytes
  // its ranks may also exchange what they have (exchanger.h).
  Group(std::vector<int64_t> devices, std::chrono::nanoseconds timeout, int64_t outbox = 0);

  int ranks() const { return static_cast<int>(devices_.size()); }
  int64_t outbox_bytes() const { return outboxes_.bytes(); }

  // Releases who waits here in execution `run`, which has failed on one rank, and says why.
  void spoil(int64_t run, const std::string& why);

 private:
  friend class Participant;
  friend class Exchanger;

  // The group's word: which ranks came, whether the work is open, whether the epoch is being given
  // up, whether the one before was, a bit that changes when a failure makes sleepers look again,
  // and the epoch.
  static constexpr uint64_t kRankMask = (uint64_t{1} << kMaxRanks) - 1;
  static constexpr uint64_t kOpen = uint64_t{1} << 32;
  static constexpr uint64_t kClosing = uint64_t{1} << 33;
  static constexpr uint64_t kStale = uint64_t{1} << 34;
  static constexpr uint64_t kStirred = uint64_t{1} << 35;
  static constexpr int kEpochShift = 36;
  static constexpr uint64_t epoch_of(uint64_t state) { return state >> kEpochShift; }
  static constexpr uint64_t after(uint64_t epoch) { return (epoch + 1) << kEpochShift; }

  struct alignas(64) Entry {
    std::atomic<bool> busy{false};
    Call call;
    Status status;
  };
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };

  Status occupy(int seat, const Call& call);
  Status release(int seat);
  bool agree(uint64_t epoch);
  void open(uint64_t epoch, const Signature& signature, bool alone);
  void finish(uint64_t epoch, uint64_t flags = 0);
  void give_up(uint64_t epoch, int seat, bool spoilt);
  void see_off(uint64_t epoch) const;
  Status abandoned(const std::string& op) const;
  void fail(uint64_t epoch, uint64_t present, const Status& status);
  void mark_failed(int64_t run, const std::string& why);
  static int rank_of(const Call& call, int seat, int ranks) {
    return call.place < 0 ? seat : static_cast<int>(call.place % ranks);
  }
  int rank_at(int seat) const { return rank_of(entries_[seat].call, seat, ranks()); }
  int64_t group_at(int seat) const;
  std::string mismatch() const;
  std::string strangers() const;
  std::string name() const;
  bool has_failed(int64_t run) const { return run == failed_run_.load(std::memory_order_seq_cst); }
  // The half of the word that changes when sleepers have to look.
  const uint32_t* futex_word() const {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    return reinterpret_cast<const uint32_t*>(&state_) + 1;
  }
  // Returns when ready(state) holds. `missing` ranks are waited for.
  template <class Ready>
  void wait(uint64_t epoch, int seat, int missing, Ready ready);

  const std::vector<int64_t> devices_;
  const std::chrono::nanoseconds timeout_;
  const uint64_t everyone_;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<Counter[]> claimed_;
  const std::unique_ptr<char, void (*)(char*)> memory_;  // of the outboxes
  const Outboxes outboxes_;
  std::vector<int> seats_;  // of each rank, in the collective that began last
  std::vector<void* const*> buffers_;
  std::vector<jaxcc_part> parts_;
  bool stream_ = false;
  std::atomic<int64_t> failed_run_{-1};
  mutable std::mutex why_mutex_;
  int64_t why_run_ = -1;
  std::string why_;  // the first error of that run
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<int64_t> remaining_{0};
};

template <class Ready>
void Group::wait(uint64_t epoch, int seat, int missing, Ready ready) {
  // A rank that holds its core keeps from it others that are as many as cores, and, beside large
  // collectives, XLA's own threads, which compute, too.
  const bool brief = entries_[seat].call.signature->chunks <= 1;
  Patience patience(brief && missing < own_cores());
  do {
    if (ready(state_.load(std::memory_order_acquire))) return;
  } while (patience.spin());

  // The count goes up before the word is read again, and whoever changes the word reads the count
  // after: one of the two sees the other, so no wake is lost.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint64_t state = state_.load(std::memory_order_seq_cst);
    if (ready(state)) break;
    const bool spoilt = has_failed(entries_[seat].call.run);
    if (spoilt || patience.over(timeout_)) give_up(epoch, seat, spoilt);
    sleep_on(futex_word(), static_cast<uint32_t>(state >> 32), /*shared=*/false);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace jaxcc
