// Where the ranks of one process meet: a group of threads, one per rank, that run a collective
// together.
//
// Ranks announce their buffers in one atomic word. The last to come opens the work, whoever is
// running claims chunks of it, and whoever stores the last one ends the epoch. A rank needs one
// switch of context per collective, and no core goes idle while there is work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "signature.h"
#include "status.h"

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
  // `devices` name the ranks in messages. Waits end after `timeout`.
  Group(std::vector<int64_t> devices, std::chrono::nanoseconds timeout);

  int ranks() const { return static_cast<int>(devices_.size()); }

  // Releases who waits here in execution `run`, which has failed on one rank, and says why.
  void spoil(int64_t run, const std::string& why);

 private:
  friend class Participant;

  struct alignas(64) Entry {
    std::atomic<bool> busy{false};
    Call call;
    Status status;
  };
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };

  bool open(uint64_t epoch, const Signature& signature, bool alone);
  void finish(uint64_t epoch);
  void give_up(uint64_t epoch, int rank, bool spoilt);
  Status abandoned(const std::string& op) const;
  void fail(uint64_t epoch, uint64_t present, const Status& status);
  void mark_failed(int64_t run, const std::string& why);
  int rank_at(int seat) const;
  int64_t group_at(int seat) const;
  std::string mismatch() const;
  std::string strangers() const;
  std::string name() const;
  template <class Ready>
  void wait(uint64_t epoch, int rank, int missing, Ready ready);

  const std::vector<int64_t> devices_;
  const std::chrono::nanoseconds timeout_;
  const uint64_t everyone_;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<Counter[]> claimed_;
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

// The platform of a collective for one rank of a Group. Devices have fixed seats in the group,
// where they announce themselves; the rank of each is the program's, which may order the same
// devices otherwise.
class Participant {
 public:
  struct Lanes {
    static constexpr int64_t first() { return 0; }
    static constexpr int64_t step() { return 1; }
  };

  Participant(Group& group, int seat, const Call& call)
      : group_(group),
        seat_(seat),
        rank_(call.place < 0 ? seat : static_cast<int>(call.place % group.ranks())),
        call_(call),
        victim_(rank_) {}

  bool enter();
  // `count`: the chunks that each rank begins with.
  bool claim(int64_t count, Chunk* chunk);
  // `totals` is called once, by the rank that stores the last chunk.
  template <class F>
  bool leave(const F& totals) {
    if (over_) return settle();
    if (last()) {
      totals();
      finish();
    } else {
      wait_for_end();
    }
    return settle();
  }
  static Lanes lanes() { return {}; }

  // After enter: what the group sees.
  const PeerView& view() const { return view_; }
  // After enter or leave has returned false.
  const Status& status() const { return status_; }

 private:
  bool last();
  void finish();
  void wait_for_end();
  bool settle();

  Group& group_;
  const int seat_;
  const int rank_;
  const Call call_;
  PeerView view_{};
  Status status_;
  uint64_t epoch_ = 0;
  int victim_;  // whose chunks to claim next
  int exhausted_ = 0;
  int64_t stored_ = 0;
  bool alone_ = false;  // nobody else was told of the work
  bool over_ = false;   // the work was done before this rank noticed
};

}  // namespace jaxcc
