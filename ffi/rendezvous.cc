#include "rendezvous.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "wait.h"

namespace jaxcc {
namespace {

// The group's word: which ranks came, whether the work is open, whether the epoch is being given
// up, a bit that changes when a failure makes sleepers look again, and the epoch.
constexpr uint64_t kRankMask = (uint64_t{1} << kMaxRanks) - 1;
constexpr uint64_t kOpen = uint64_t{1} << 32;
constexpr uint64_t kClosing = uint64_t{1} << 33;
constexpr uint64_t kStirred = uint64_t{1} << 34;
constexpr int kEpochShift = 35;

// From this many chunks on, sleeping ranks are woken to help; a wake takes as long as one or two
// chunks.
constexpr int64_t kHelpChunks = 8;

uint64_t epoch_of(uint64_t state) { return state >> kEpochShift; }

// The half of the word that changes when sleepers have to look.
const uint32_t* futex_word(const std::atomic<uint64_t>& state) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<const uint32_t*>(&state) + 1;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

Group::Group(std::vector<int64_t> devices, std::chrono::nanoseconds timeout)
    : devices_(std::move(devices)),
      timeout_(timeout),
      everyone_((uint64_t{1} << devices_.size()) - 1),
      entries_(std::make_unique<Entry[]>(devices_.size())),
      claimed_(std::make_unique<Counter[]>(devices_.size())),
      buffers_(devices_.size()) {}

std::string Group::name() const {
  std::vector<std::string> devices;
  for (int64_t device : devices_) devices.push_back(std::to_string(device));
  return "the group of devices " + join(devices);
}

// Readies the work. Called by the last rank to come, when all others wait.
bool Group::open(uint64_t epoch, const Signature& signature, bool alone) {
  uint64_t taken = 0;
  for (int seat = 0; seat < ranks(); ++seat) {
    const Call& call = entries_[seat].call;
    const Call& first = entries_[0].call;
    const bool same =
        call.run == first.run && call.site == first.site &&
        (call.signature == first.signature || call.signature->text == first.signature->text);
    if (!same) {
      fail(epoch, everyone_, {Failure::kMismatch, mismatch()});
      return false;
    }
    const int rank = rank_at(seat);
    if (group_at(seat) != group_at(0) || taken >> rank & 1) {
      fail(epoch, everyone_, {Failure::kMismatch, strangers()});
      return false;
    }
    taken |= uint64_t{1} << rank;
    buffers_[rank] = call.buffers;
    claimed_[rank].value.store(0, std::memory_order_relaxed);
  }
  stream_ = entries_[0].call.stream;
  parts_.assign(static_cast<size_t>(signature.parts), {0, 0});
  if (alone) return true;
  const int64_t total = ranks() * signature.chunks;
  remaining_.store(total, std::memory_order_relaxed);
  state_.store(epoch << kEpochShift | kOpen | everyone_, std::memory_order_seq_cst);
  if (total >= kHelpChunks && sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_all(futex_word(state_), /*shared=*/false);
  }
  return true;
}

void Group::finish(uint64_t epoch) {
  state_.store((epoch + 1) << kEpochShift, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(futex_word(state_), /*shared=*/false);
}

// Ends the epoch with `status` for the ranks in `present`, which all wait or are the caller.
void Group::fail(uint64_t epoch, uint64_t present, const Status& status) {
  int64_t run = -1;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!(present >> rank & 1)) continue;
    entries_[rank].status = status;
    run = std::max(run, entries_[rank].call.run);
  }
  mark_failed(run, status.message);
  finish(epoch);
}

void Group::mark_failed(int64_t run, const std::string& why) {
  {
    std::lock_guard lock(why_mutex_);
    // What is abandoned because of an error says that error already.
    if (std::exchange(why_run_, run) != run) why_ = why;
  }
  failed_run_.store(run, std::memory_order_seq_cst);
}

Status Group::abandoned(const std::string& op) const {
  std::lock_guard lock(why_mutex_);
  return {Failure::kAbandoned, "[BACKEND_ABANDONED] " + op + ": a collective of " + name() +
                                   " failed in this execution: " + why_};
}

void Group::spoil(int64_t run, const std::string& why) {
  mark_failed(run, why);
  // Who has looked before that, and is about to sleep, then does not.
  state_.fetch_xor(kStirred, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(futex_word(state_), /*shared=*/false);
}

// Ends the epoch unless all ranks have come by now.
void Group::give_up(uint64_t epoch, int rank, bool spoilt) {
  uint64_t state = state_.load(std::memory_order_acquire);
  do {
    const bool waiting = epoch_of(state) == epoch && !(state & (kOpen | kClosing));
    if (!waiting || (state & kRankMask) == everyone_) return;
  } while (!state_.compare_exchange_weak(state, state | kClosing, std::memory_order_acq_rel));

  const uint64_t present = state & kRankMask;
  const std::string& op = entries_[rank].call.signature->op;
  if (spoilt) return fail(epoch, present, abandoned(op));
  std::vector<std::string> absent;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (present >> peer & 1) continue;
    absent.push_back("rank " + std::to_string(peer) + " (device " + std::to_string(devices_[peer]) +
                     ")");
  }
  fail(epoch, present,
       {Failure::kTimeout, "[BACKEND_TIMEOUT] " + op + ": " + join(absent) + " of " + name() +
                               " did not come within " + seconds(timeout_) + " (JAXCC_TIMEOUT_S)"});
}

int Group::rank_at(int seat) const {
  const int64_t place = entries_[seat].call.place;
  return place < 0 ? seat : static_cast<int>(place % ranks());
}

int64_t Group::group_at(int seat) const {
  const int64_t place = entries_[seat].call.place;
  return place < 0 ? 0 : place / ranks();
}

// What is wrong where the program divides the devices into other groups.
std::string Group::strangers() const {
  std::vector<std::string> seats;
  for (int seat = 0; seat < ranks(); ++seat) {
    seats.push_back("device " + std::to_string(devices_[seat]) + " is rank " +
                    std::to_string(rank_at(seat)) + " of group " + std::to_string(group_at(seat)));
  }
  return "[BACKEND_MESH] " + entries_[0].call.signature->op + " was made for " + name() +
         ", but in the shard_map that it runs in " + join(seats) +
         "; make it for that shard_map's mesh: mesh=";
}

std::string Group::mismatch() const {
  const Call& first = entries_[0].call;
  const std::string one = "rank " + std::to_string(rank_at(0));
  for (int seat = 1; seat < ranks(); ++seat) {
    const Call& call = entries_[seat].call;
    const std::string head =
        "[BACKEND_MISMATCH] the ranks of " + name() + " came to different collectives: ";
    const std::string peer = "rank " + std::to_string(rank_at(seat));
    if (call.signature->text != first.signature->text) {
      return head + one + " to " + first.signature->text + "; " + peer + " to " +
             call.signature->text;
    }
    if (call.run != first.run) {
      return head + one + " to " + first.signature->op + " of execution " +
             std::to_string(first.run) + "; " + peer + " of execution " + std::to_string(call.run);
    }
    if (call.site != first.site) {
      return head + one + " to one call of " + first.signature->text + "; " + peer +
             " to another call of it; where one is in a nested jit or loop and the other is not, "
             "let "
             "one need what the other gives";
    }
  }
  return "";
}

// Returns when ready(state) holds. `missing` ranks are waited for.
template <class Ready>
void Group::wait(uint64_t epoch, int rank, int missing, Ready ready) {
  Patience patience(missing, own_cores());
  do {
    if (ready(state_.load(std::memory_order_acquire))) return;
  } while (patience.spin());

  // The count goes up before the word is read again, and whoever changes the word reads the count
  // after: one of the two sees the other, so no wake is lost.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint64_t state = state_.load(std::memory_order_seq_cst);
    if (ready(state)) break;
    const bool spoilt = entries_[rank].call.run == failed_run_.load(std::memory_order_seq_cst);
    if (spoilt || patience.over(timeout_)) give_up(epoch, rank, spoilt);
    sleep_on(futex_word(state_), static_cast<uint32_t>(state >> 32), /*shared=*/false);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

bool Participant::enter() {
  Group::Entry& entry = group_.entries_[seat_];
  const std::string& op = call_.signature->op;
  if (entry.busy.exchange(true, std::memory_order_acquire)) {
    status_ = {Failure::kMismatch, "[BACKEND_BUSY] " + op + ": rank " + std::to_string(rank_) +
                                       " of " + group_.name() +
                                       " is in another collective of this group; let one need "
                                       "what the other gives, or call both in one function"};
    group_.spoil(call_.run, status_.message);
    return false;
  }
  const uint64_t bit = uint64_t{1} << seat_;
  uint64_t old;
  for (;;) {
    if (call_.run == group_.failed_run_.load(std::memory_order_acquire)) {
      entry.busy.store(false, std::memory_order_release);
      status_ = group_.abandoned(op);
      return false;
    }
    entry.call = call_;
    old = group_.state_.fetch_or(bit, std::memory_order_acq_rel);
    if (!(old & kClosing)) break;
    while (epoch_of(group_.state_.load(std::memory_order_acquire)) == epoch_of(old)) sched_yield();
  }
  epoch_ = epoch_of(old);

  const uint64_t came = (old & kRankMask) | bit;
  const Signature& signature = *call_.signature;
  if (came == group_.everyone_) {
    alone_ = group_.ranks() == 1 || signature.small;
    if (!group_.open(epoch_, signature, alone_)) return settle();
  } else {
    const int missing = group_.ranks() - __builtin_popcountll(came);
    uint64_t seen = 0;
    group_.wait(epoch_, seat_, missing, [&](uint64_t state) {
      seen = state;
      return epoch_of(state) != epoch_ || (state & kOpen);
    });
    if (epoch_of(seen) != epoch_) {
      over_ = true;
      return entry.status.failure == Failure::kNone || settle();
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
              [&](uint64_t state) { return epoch_of(state) != epoch_; });
}

// Takes the outcome and frees the rank's entry.
bool Participant::settle() {
  Group::Entry& entry = group_.entries_[seat_];
  const bool good = entry.status.failure == Failure::kNone;
  if (!good) status_ = std::exchange(entry.status, {});
  entry.busy.store(false, std::memory_order_release);
  return good;
}

}  // namespace jaxcc
