// One rank's end of a channel.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "channel.h"
#include "protocol/gather.h"
#include "signature.h"
#include "wait.h"

namespace jaxcc {

// The platform of exchange.h, for one thread at a time. It stays from call to call: epochs go on.
// The port is a device's seat in the channel; its rank is the program's, which may order the same
// devices otherwise.
class Port {
 public:
  using Lanes = OneLane;

  Port(Channel& channel, int seat);

  // Between the two the rank is in a collective, unless `begin` says why it cannot be. `place` is
  // where the program has it: its group * ranks + its rank there; -1 if it is as seated.
  Status begin(const Signature& signature, int64_t place);
  void end();

  // Keeps the rank out of collectives, unless it is in one.
  bool take() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  char* out() const { return channel_.outbox(seat_, epoch_); }
  const char* in(int32_t rank) const { return channel_.outbox(seats_[rank], epoch_ - 1); }
  bool meet();
  static bool again() { return false; }
  static void copy(void* to, const void* from, int64_t bytes, bool past_cache) {
    jaxcc::copy(to, from, bytes, past_cache);
  }
  static Lanes lanes() { return {}; }

  // For flag_barrier.
  static int32_t thread() { return 0; }
  static int32_t threads() { return 1; }
  static bool all(bool mine) { return mine; }
  static uint32_t load_acquire(const uint32_t* word);
  void post(int32_t peer, Flag* flag, uint32_t epoch) const;
  bool patience(int64_t polls);

  int rank() const { return place_ % view_.ranks; }
  int ranks() const { return view_.ranks; }
  int64_t outbox_bytes() const { return channel_.outbox_bytes(); }
  Channel& channel() const { return channel_; }
  // After meet has returned false.
  const Status& status() const { return status_; }

 private:
  bool pass_barrier();
  bool agree();
  bool sleep();
  bool has_come(int peer) const;
  bool have_all_come() const;
  Status late() const;
  std::string collective() const;
  std::string strangers() const;

  Channel& channel_;
  const int seat_;
  const PeerView view_;
  Channel::RankState& state_;
  std::atomic<bool> busy_{false};
  uint32_t epoch_;  // of the phase that the rank is in
  const Signature* signature_ = nullptr;
  uint64_t note_ = 0;  // of the signature, for the others to compare
  int32_t place_ = 0;
  std::vector<int> seats_;  // of each rank, once they agree
  bool agreed_ = false;     // in this collective
  bool asleep_ = false;     // the others must ring
  uint32_t bell_ = 0;       // when the rank last looked
  std::optional<Patience> patience_;
  Status status_;
};

// What a rank has written for others to read.
std::string read_text(const std::atomic<uint64_t>* words);

}  // namespace jaxcc
