// Ranks of one process that leave each other copies of what they have.
//
// Between two cores that is cheaper than to use one another's buffers, up to a size: whoever wrote
// a buffer that another core has read waits for that core when it writes there again, in whatever
// XLA runs next, and outboxes are passed on so that nobody does.
#pragma once

#include "protocol/gather.h"
#include "rendezvous.h"

namespace jaxcc {

// The platform of exchange.h for one rank of a Group with outboxes, in one collective.
class Exchanger {
 public:
  using Lanes = OneLane;

  // Of a group whose ranks have a core each; more ranks wait less if whoever runs does the work.
  static constexpr int64_t kOutboxBytes = int64_t{256} << 10;
  static bool fits(int64_t ranks);
  // Whether it is faster, for so many tensors of a rank that others read or get, of `bytes`
  // together; `in_place` if what they read is where the results go.
  static bool pays(int64_t tensors, int64_t bytes, bool in_place);

  Exchanger(Group& group, int seat, const Call& call)
      : group_(group), seat_(seat), rank_(Group::rank_of(call, seat, group.ranks())), call_(call) {}

  // Between the two the rank is in the collective, unless `begin` says why it cannot be.
  Status begin();
  void end() { group_.release(seat_); }
  // After the first meet has returned false: whether to start anew, since the others had given up
  // in an execution that this rank has left behind.
  bool again() { return moved_ && ready(); }

  char* out() const { return outbox(seat_, epoch_); }
  const char* in(int32_t rank) const { return outbox(group_.seats_[rank], before_); }
  bool meet();
  static void copy(void* to, const void* from, int64_t bytes, bool past_cache) {
    jaxcc::copy(to, from, bytes, past_cache);
  }
  static Lanes lanes() { return {}; }

  int rank() const { return rank_; }
  int ranks() const { return group_.ranks(); }
  int64_t outbox_bytes() const { return group_.outbox_bytes(); }
  // After meet has returned false.
  const Status& status() const { return status_; }

 private:
  char* outbox(int seat, uint64_t epoch) const {
    return group_.outboxes_.of(seat, static_cast<uint32_t>(epoch));
  }
  bool ready();
  bool arrive(uint64_t* came);

  Group& group_;
  const int seat_;
  const int rank_;
  const Call call_;
  Status status_;
  uint64_t epoch_ = 0;   // of the phase that the rank is in
  uint64_t before_ = 0;  // of the phase before
  bool agreed_ = false;  // in the first phase the last to come compares what they are in
  bool moved_ = false;   // the epoch was over before the rank came
};

}  // namespace jaxcc
