// A barrier of flag words: each rank writes its epoch into every rank's inbox and waits for all
// epochs in its own. Epochs only grow, so no word is ever reset. Epochs are compared by difference
// and may wrap around.
//
// A platform has
//   int32_t thread(), threads()             the caller among the threads of its rank that run this
//   slot together bool all(bool)                          joins those threads: true if all pass
//   true uint32_t load_acquire(const uint32_t*)
//   void post(int32_t peer, Flag*, uint32_t epoch)  releases what the rank wrote, with the epoch
//   bool patience(int64_t polls)            false once a wait has lasted too long
#pragma once

#include "peer_view.h"

namespace jaxcc {

// Returns false, on all threads of a rank, if a rank did not come in time. What a rank wrote before
// the barrier is seen by every rank after it.
template <class Platform>
JAXCC_FN bool flag_barrier(Platform& platform, const PeerView& view, int32_t slot, uint32_t epoch) {
  platform.all(true);  // the release below then covers what all threads of this rank wrote
  const int32_t inbox = slot * view.ranks;
  for (int32_t peer = platform.thread(); peer < view.ranks; peer += platform.threads()) {
    platform.post(peer, &view.flags[peer][inbox + view.rank], epoch);
  }
  bool came = true;
  for (int32_t peer = platform.thread(); came && peer < view.ranks; peer += platform.threads()) {
    const uint32_t* word = &view.flags[view.rank][inbox + peer].epoch;
    for (int64_t polls = 0; static_cast<int32_t>(platform.load_acquire(word) - epoch) < 0;
         ++polls) {
      if (!platform.patience(polls)) {
        came = false;
        break;
      }
    }
  }
  return platform.all(came);
}

}  // namespace jaxcc
