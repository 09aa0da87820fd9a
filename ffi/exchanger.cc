#include "exchanger.h"

#include <utility>

namespace jaxcc {
namespace {

// Of each tensor. Less is done by the last rank to come before the others have looked.
constexpr int64_t kLeastBytes = int64_t{4} << 10;
// Beside larger messages XLA divides what it computes among its threads, which takes so much longer
// that one wait less counts for more.
constexpr int64_t kMostBytes = int64_t{256} << 10;
// In place, whoever stores what others read becomes its owner at once.
constexpr int64_t kMostBytesInPlace = int64_t{128} << 10;

}  // namespace

bool Exchanger::fits(int64_t ranks) { return ranks > 1 && ranks <= own_cores(); }

bool Exchanger::pays(int64_t tensors, int64_t bytes, bool in_place) {
  return bytes >= tensors * kLeastBytes && bytes <= (in_place ? kMostBytesInPlace : kMostBytes);
}

Status Exchanger::begin() {
  status_ = group_.occupy(seat_, call_);
  if (status_.failure == Failure::kNone && !ready()) group_.release(seat_);
  return status_;
}

// Takes the epoch that the group is in. After one that was given up, a rank that came late may
// still be at an outbox until all have met again.
bool Exchanger::ready() {
  do {
    moved_ = false;
    const uint64_t state = group_.state_.load(std::memory_order_acquire);
    epoch_ = Group::epoch_of(state);
    if (!(state & Group::kStale) || meet()) return true;
  } while (moved_);
  return false;
}

bool Exchanger::meet() {
  uint64_t came;
  if (!arrive(&came)) return false;
  bool good = true;
  if (came == group_.everyone_) {
    good = agreed_ || group_.agree(epoch_);
    if (good) group_.finish(epoch_);
  } else {
    const int missing = group_.ranks() - __builtin_popcountll(came);
    group_.wait(epoch_, seat_, missing,
                [&](uint64_t state) { return Group::epoch_of(state) != epoch_; });
    good = group_.entries_[seat_].status.failure == Failure::kNone;
  }
  if (!good) {
    status_ = std::exchange(group_.entries_[seat_].status, {});
    return false;
  }
  agreed_ = true;
  before_ = epoch_;
  epoch_ = Group::epoch_of(Group::after(epoch_));
  return true;
}

// Announces the rank in the epoch that its outbox is for; `came` is who has come then.
bool Exchanger::arrive(uint64_t* came) {
  const uint64_t bit = uint64_t{1} << seat_;
  uint64_t state = group_.state_.load(std::memory_order_acquire);
  for (;;) {
    const bool moved = Group::epoch_of(state) != epoch_;
    if (group_.has_failed(call_.run) || (moved && agreed_)) {
      status_ = group_.abandoned(call_.signature->op);
      return false;
    }
    if (moved) {
      moved_ = true;
      return false;
    }
    if (state & Group::kClosing) {
      group_.see_off(epoch_);
      state = group_.state_.load(std::memory_order_acquire);
    } else if (group_.state_.compare_exchange_weak(state, state | bit, std::memory_order_acq_rel)) {
      *came = (state & Group::kRankMask) | bit;
      return true;
    }
  }
}

}  // namespace jaxcc
