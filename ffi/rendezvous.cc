#include "rendezvous.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "pages.h"

namespace jaxcc {
namespace {

// From this many chunks on, sleeping ranks are woken to help; a wake takes as long as one or two
// chunks.
constexpr int64_t kHelpChunks = 8;

// Memory that is there once it is touched, in large pages.
char* reserve(int64_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr size_t kLargePage = size_t{2} << 20;
  const size_t size = (static_cast<size_t>(bytes) + kLargePage - 1) / kLargePage * kLargePage;
  void* const data = std::aligned_alloc(kLargePage, size);
  if (!data) throw std::bad_alloc();
  use_huge_pages(data, size);
  return static_cast<char*>(data);
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

Group::Group(std::vector<int64_t> devices, std::chrono::nanoseconds timeout, int64_t outbox)
    : devices_(std::move(devices)),
      timeout_(timeout),
      everyone_((uint64_t{1} << devices_.size()) - 1),
      entries_(std::make_unique<Entry[]>(devices_.size())),
      claimed_(std::make_unique<Counter[]>(devices_.size())),
      memory_(reserve(Outboxes::size(ranks(), outbox)), [](char* data) { std::free(data); }),
      outboxes_(memory_.get(), ranks(), outbox),
      seats_(devices_.size()),
      buffers_(devices_.size()) {}

std::string Group::name() const {
  std::vector<std::string> devices;
  for (int64_t device : devices_) devices.push_back(std::to_string(device));
  return "the group of devices " + join(devices);
}

// Lets the rank at `seat` into a collective, unless it is in one, or this execution has failed.
Status Group::occupy(int seat, const Call& call) {
  const std::string& op = call.signature->op;
  Entry& entry = entries_[seat];
  if (entry.busy.exchange(true, std::memory_order_acquire)) {
    const Status status{Failure::kMismatch,
                        "[BACKEND_BUSY] " + op + ": rank " +
                            std::to_string(rank_of(call, seat, ranks())) + " of " + name() +
                            " is in a collective of this group in another program; run both "
                            "from one thread"};
    spoil(call.run, status.message);
    return status;
  }
  if (has_failed(call.run)) {
    entry.busy.store(false, std::memory_order_release);
    return abandoned(op);
  }
  entry.call = call;
  return {};
}

// Lets it out, and takes what became of it.
Status Group::release(int seat) {
  Entry& entry = entries_[seat];
  Status status;
  if (entry.status.failure != Failure::kNone) status = std::exchange(entry.status, {});
  entry.busy.store(false, std::memory_order_release);
  return status;
}

// Whether all ranks are in the same collective, of one group of the program; if not, the epoch is
// over. Called by the last rank to come, when all others wait.
bool Group::agree(uint64_t epoch) {
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
    seats_[rank] = seat;
  }
  return true;
}

// Readies the work of ranks that agree.
void Group::open(uint64_t epoch, const Signature& signature, bool alone) {
  for (int rank = 0; rank < ranks(); ++rank) {
    buffers_[rank] = entries_[seats_[rank]].call.buffers;
    claimed_[rank].value.store(0, std::memory_order_relaxed);
  }
  stream_ = entries_[0].call.stream;
  parts_.assign(static_cast<size_t>(signature.parts), {0, 0});
  if (alone) return;
  const int64_t total = ranks() * signature.chunks;
  remaining_.store(total, std::memory_order_relaxed);
  state_.store(epoch << kEpochShift | kOpen | everyone_, std::memory_order_seq_cst);
  if (total >= kHelpChunks && sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_all(futex_word(), /*shared=*/false);
  }
}

void Group::finish(uint64_t epoch, uint64_t flags) {
  state_.store(after(epoch) | flags, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(futex_word(), /*shared=*/false);
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
  finish(epoch, kStale);
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
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(futex_word(), /*shared=*/false);
}

// Ends the epoch unless all ranks have come by now.
void Group::give_up(uint64_t epoch, int seat, bool spoilt) {
  uint64_t state = state_.load(std::memory_order_acquire);
  do {
    const bool waiting = epoch_of(state) == epoch && !(state & (kOpen | kClosing));
    if (!waiting || (state & kRankMask) == everyone_) return;
  } while (!state_.compare_exchange_weak(state, state | kClosing, std::memory_order_acq_rel));

  const uint64_t present = state & kRankMask;
  const std::string& op = entries_[seat].call.signature->op;
  if (spoilt) return fail(epoch, present, abandoned(op));
  std::vector<std::string> absent;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (present >> peer & 1) continue;
    absent.push_back("rank " + std::to_string(peer) + " (device " + std::to_string(devices_[peer]) +
                     ")");
  }
  fail(epoch, present,
       {Failure::kTimeout, "[BACKEND_TIMEOUT] " + op + ": " + join(absent) + " of " + name() +
                               " did not come within " + seconds(timeout_) +
                               " (JAXCC_TIMEOUT_S); look for a branch or a loop's length that "
                               "differs between ranks"});
}

// Returns when an epoch that others are giving up is over.
void Group::see_off(uint64_t epoch) const {
  while (epoch_of(state_.load(std::memory_order_acquire)) == epoch) sched_yield();
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
  for (int seat = 1; seat < ranks(); ++seat) {
    const Call& call = entries_[seat].call;
    const std::string& text = first.signature->text;
    if (call.signature->text == text && call.run == first.run && call.site == first.site) continue;
    std::string one = text, other = call.signature->text;
    if (call.run != first.run) {
      one = "execution " + std::to_string(first.run) + " of " + one;
      other = "execution " + std::to_string(call.run) + " of " + other;
    } else if (one == other) {
      one = "one call of " + one;
      other = "another call of " + other;
    }
    return unlike(name(), rank_at(0), one, rank_at(seat), other);
  }
  return "";
}

}  // namespace jaxcc
