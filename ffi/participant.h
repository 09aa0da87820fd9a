// Ranks of one process that use one another's buffers.
//
// The last to come opens the work, whoever is running claims chunks of it, and whoever stores the
// last one ends the epoch. A rank needs one switch of context per collective, and no core goes idle
// while there is work.
#pragma once

#include "protocol/gather.h"
#include "rendezvous.h"

namespace jaxcc {

// The platform of a collective for one rank of a Group. Devices have fixed seats in the group,
// where they announce themselves; the rank of each is the program's, which may order the same
// devices otherwise.
class Participant {
 public:
  using Lanes = OneLane;

  Participant(Group& group, int seat, const Call& call)
      : group_(group),
        seat_(seat),
        rank_(Group::rank_of(call, seat, group.ranks())),
        call_(call),
        victim_(rank_) {}

  bool enter();
  // `count`: the chunks that each rank begins with.
  bool claim(int64_t count, Chunk* chunk);
  // `totals` is called once, by the rank that stores the last chunk.
  template <class F>
  bool leave(const F& totals) {
    if (!over_ && last()) {
      totals();
      finish();
    } else if (!over_) {
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
