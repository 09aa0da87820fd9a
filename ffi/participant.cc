#include "participant.h"

#include "wait.h"

namespace jaxcc {

bool Participant::enter() {
  status_ = group_.occupy(seat_, call_);
  if (status_.failure != Failure::kNone) return false;
  const uint64_t bit = uint64_t{1} << seat_;
  uint64_t old;
  while ((old = group_.state_.fetch_or(bit, std::memory_order_acq_rel)) & Group::kClosing) {
    // The others give up, perhaps in an execution that this rank has left behind.
    group_.see_off(Group::epoch_of(old));
    if (group_.has_failed(call_.run)) {
      status_ = group_.abandoned(call_.signature->op);
      group_.release(seat_);
      return false;
    }
  }
  epoch_ = Group::epoch_of(old);

  const uint64_t came = (old & Group::kRankMask) | bit;
  const Signature& signature = *call_.signature;
  if (came == group_.everyone_) {
    alone_ = group_.ranks() == 1 || signature.small;
    if (!group_.agree(epoch_)) return settle();
    group_.open(epoch_, signature, alone_);
  } else {
    const int missing = group_.ranks() - __builtin_popcountll(came);
    uint64_t seen = 0;
    group_.wait(epoch_, seat_, missing, [&](uint64_t state) {
      seen = state;
      return Group::epoch_of(state) != epoch_ || (state & Group::kOpen);
    });
    if (Group::epoch_of(seen) != epoch_) {
      over_ = true;
      return group_.entries_[seat_].status.failure == Failure::kNone || settle();
    }
  }
  view_ = {rank_,   group_.ranks(), group_.buffers_.data(),
           nullptr, group_.stream_, group_.parts_.data()};
  return true;
}

bool Participant::claim(int64_t count, Chunk* chunk) {
  if (over_) return false;
  while (exhausted_ < group_.ranks()) {
    auto& claimed = group_.claimed_[victim_].value;
    const int64_t index = claimed.fetch_add(1, std::memory_order_relaxed);
    if (index < count) {
      *chunk = {victim_, index};
      ++stored_;
      return true;
    }
    victim_ = (victim_ + 1) % group_.ranks();
    ++exhausted_;
  }
  return false;
}

// Whether this rank has stored the last chunk of the work.
bool Participant::last() {
  if (view_.stream) drain_streaming_stores();
  return alone_ || (stored_ > 0 &&
                    group_.remaining_.fetch_sub(stored_, std::memory_order_acq_rel) == stored_);
}

void Participant::finish() { group_.finish(epoch_); }

void Participant::wait_for_end() {
  group_.wait(epoch_, seat_, group_.ranks() - 1,
              [&](uint64_t state) { return Group::epoch_of(state) != epoch_; });
}

bool Participant::settle() {
  status_ = group_.release(seat_);
  return status_.failure == Failure::kNone;
}

}  // namespace jaxcc
