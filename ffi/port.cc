#include "port.h"

#include <algorithm>
#include <cstring>

#include "protocol/barrier.h"

namespace jaxcc {
namespace {

constexpr size_t kWords = sizeof(Channel::RankState::text) / sizeof(uint64_t);

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

// Word by word, since others may read meanwhile.
void write_text(std::atomic<uint64_t>* words, const std::string& text) {
  char padded[kWords * sizeof(uint64_t)] = {};
  std::memcpy(padded, text.data(), std::min(text.size(), sizeof padded - 1));
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, padded + i * sizeof word, sizeof word);
    words[i].store(word, std::memory_order_relaxed);
  }
}

}  // namespace

std::string read_text(const std::atomic<uint64_t>* words) {
  char text[kWords * sizeof(uint64_t) + 1] = {};
  for (size_t i = 0; i < kWords; ++i) {
    const uint64_t word = words[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * sizeof word, &word, sizeof word);
  }
  return text;
}

Port::Port(Channel& channel, int seat)
    : channel_(channel),
      seat_(seat),
      view_{seat, channel.ranks(), nullptr, channel.flags(), 0, nullptr},
      state_(channel.state(seat)),
      epoch_(channel.first_epoch()),
      seats_(channel.ranks()) {}

std::string Port::collective() const {
  return signature_->op + " #" + std::to_string(state_.begun.load(std::memory_order_relaxed)) +
         " of " + channel_.name();
}

Status Port::begin(const Signature& signature, int64_t place) {
  if (!take()) {
    if (const Status* const end = channel_.retired()) return *end;
    return {Failure::kMismatch, "[BACKEND_BUSY] " + signature.op + ": " +
                                    channel_.rank_name(seat_) + " of " + channel_.name() +
                                    " is in a collective of this group in another program; "
                                    "run both from one thread"};
  }
  if (channel_.is_closed()) {
    release();
    return channel_.retire();
  }
  if (signature_ != &signature) {
    signature_ = &signature;
    note_ = hash_of(signature.text);
    write_text(state_.text, signature.text);
  }
  place_ = static_cast<int32_t>(place < 0 ? seat_ : place);
  agreed_ = false;
  state_.begun.store(state_.begun.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return {};
}

void Port::end() {
  state_.ended.store(state_.begun.load(std::memory_order_relaxed), std::memory_order_release);
  const bool over = channel_.is_closed();
  release();
  if (over) channel_.retire();
}

bool Port::meet() { return pass_barrier() && (agreed_ || agree()); }

bool Port::pass_barrier() {
  const int32_t slot = epoch_ % Channel::kSlots;
  const bool came = flag_barrier(*this, view_, slot, epoch_ + 1);
  if (asleep_) {
    asleep_ = false;
    state_.sleeping.store(0, std::memory_order_relaxed);
  }
  if (came) ++epoch_;
  return came;
}

// Whether all ranks are in the same collective, of one group of the program. What they said with
// the flags of the first phase is there until they have met twice more.
bool Port::agree() {
  agreed_ = true;
  const Flag* const inbox = view_.flags[seat_] + (epoch_ - 1) % Channel::kSlots * view_.ranks;
  std::fill(seats_.begin(), seats_.end(), -1);
  bool one_group = true;
  for (int peer = 0; peer < view_.ranks; ++peer) {
    const uint64_t note = __atomic_load_n(&inbox[peer].note, __ATOMIC_RELAXED);
    const int32_t place = __atomic_load_n(&inbox[peer].place, __ATOMIC_RELAXED);
    if (note != note_) {
      status_ = {Failure::kMismatch,
                 unlike(channel_.name(), rank(), signature_->text, place % view_.ranks,
                        read_text(channel_.state(peer).text))};
      // All ranks are here, and what they say stays until all have read it.
      pass_barrier();
      return false;
    }
    int& seat = seats_[place % view_.ranks];
    one_group &= place / view_.ranks == place_ / view_.ranks && seat < 0;
    seat = peer;
  }
  if (!one_group) status_ = {Failure::kMismatch, strangers()};
  return one_group;
}

// What is wrong where the program divides the devices into other groups.
std::string Port::strangers() const {
  const Flag* const inbox = view_.flags[seat_] + (epoch_ - 1) % Channel::kSlots * view_.ranks;
  std::string seats;
  for (int peer = 0; peer < view_.ranks; ++peer) {
    const int32_t place = __atomic_load_n(&inbox[peer].place, __ATOMIC_RELAXED);
    seats += (peer ? ", " : "") + channel_.device_name(peer) + " is rank " +
             std::to_string(place % view_.ranks) + " of group " +
             std::to_string(place / view_.ranks);
  }
  return "[BACKEND_MESH] " + signature_->op + " was made for " + channel_.name() +
         ", but in the shard_map that it runs in " + seats +
         "; make it for that shard_map's mesh: mesh=";
}

// Sequentially consistent: a rank that goes to sleep says so before it looks at the flags again,
// and who writes one looks after that who sleeps. So one of the two sees the other.
uint32_t Port::load_acquire(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

void Port::post(int32_t peer, Flag* flag, uint32_t epoch) const {
  __atomic_store_n(&flag->place, place_, __ATOMIC_RELAXED);
  __atomic_store_n(&flag->note, note_, __ATOMIC_RELAXED);
  __atomic_store_n(&flag->epoch, epoch, __ATOMIC_SEQ_CST);
  if (peer != seat_) channel_.ring(peer);
}

bool Port::patience(int64_t polls) {
  if (polls == 0) patience_.emplace(view_.ranks - 1 < all_cores());
  return asleep_ ? sleep() : patience_->spin() || sleep();
}

// One nap, or the announcement of it: the caller looks at the flags in between.
bool Port::sleep() {
  const auto* const bell = reinterpret_cast<const uint32_t*>(&state_.bell);
  if (asleep_) {
    sleep_on(bell, bell_, /*shared=*/true);
  } else {
    asleep_ = true;
    state_.sleeping.store(1, std::memory_order_seq_cst);
  }
  bell_ = state_.bell.load(std::memory_order_seq_cst);
  if (have_all_come()) return true;
  if (channel_.is_closed()) {
    status_ = channel_.closed();
    // If others have gone on since, all that live come here, too.
    if (!channel_.closed_after(epoch_)) return false;
  }
  for (int peer = 0; peer < view_.ranks; ++peer) {
    // A rank may end after it has come; what it left is still there.
    if (has_come(peer) || !channel_.is_dead(peer) || has_come(peer)) continue;
    status_ = channel_.close({Failure::kDied, "[BACKEND_RANK_DIED] " + channel_.rank_name(peer) +
                                                  " " + channel_.fate(peer) + collective() +
                                                  "; it " + channel_.whereabouts(peer)},
                             epoch_);
    return false;
  }
  if (!patience_->over(channel_.timeout())) return true;
  status_ = channel_.close(late(), epoch_);
  return false;
}

bool Port::has_come(int peer) const {
  const Flag* const inbox = view_.flags[seat_] + epoch_ % Channel::kSlots * view_.ranks;
  return static_cast<int32_t>(load_acquire(&inbox[peer].epoch) - (epoch_ + 1)) >= 0;
}

bool Port::have_all_come() const {
  for (int peer = 0; peer < view_.ranks; ++peer) {
    if (!has_come(peer)) return false;
  }
  return true;
}

Status Port::late() const {
  std::string missing;
  for (int peer = 0; peer < view_.ranks; ++peer) {
    if (has_come(peer)) continue;
    missing += (missing.empty() ? "" : "; ") + channel_.rank_name(peer) + ", which " +
               channel_.whereabouts(peer);
  }
  return {Failure::kTimeout, "[BACKEND_TIMEOUT] " + collective() + " waited " +
                                 seconds(channel_.timeout()) + " (JAXCC_TIMEOUT_S) for " + missing};
}

}  // namespace jaxcc
