// A group whose ranks do not agree, or do not come: every rank gets an error, soon, and the group
// works again in the next execution. So where ranks use one another's buffers, and where they
// exchange.

#include <algorithm>
#include <atomic>

#include "../exchanger.h"
#include "testing.h"

namespace jaxcc::testing {
namespace {

constexpr auto kTimeout = std::chrono::milliseconds(300);

struct Nothing {
  void tile(const jaxcc_tile&, Participant::Lanes) const {}
  void total(const jaxcc_parts&) const {}
};

// Of the groups of this pass; with some, their ranks exchange.
int64_t outbox = 0;

// Two phases, each of which says whose outbox is whose.
Status exchange(Exchanger& rank) {
  Status status = rank.begin();
  if (status.failure != Failure::kNone) return status;
  int phase;
  do {
    for (phase = 0; phase < 2; ++phase) {
      *rank.out() = static_cast<char>(2 * rank.rank() + phase);
      if (!rank.meet()) break;
      for (int peer = 0; peer < rank.ranks(); ++peer) CHECK(*rank.in(peer) == 2 * peer + phase);
    }
  } while (phase < 2 && rank.again());
  if (phase < 2) status = rank.status();
  rank.end();
  return status;
}

Status run(Group& group, int rank, const FusedSignature& signature, int64_t execution,
           int64_t place = -1) {
  const Call call{&signature, execution, nullptr, false, nullptr, place};
  if (outbox) {
    Exchanger exchanger(group, rank, call);
    return exchange(exchanger);
  }
  Participant participant(group, rank, call);
  const bool good = two_shot(participant, Nothing(), participant.view(), signature.geometry);
  CHECK(good == (participant.status().failure == Failure::kNone));
  return participant.status();
}

bool says(const Status& status, const std::string& text) {
  return status.message.find(text) != std::string::npos;
}

void check_works(Group& group, const FusedSignature& signature, int64_t execution) {
  on_ranks(group.ranks(), [&](int rank) {
    for (int i = 0; i < 100; ++i) {
      CHECK(run(group, rank, signature, execution).failure == Failure::kNone);
    }
  });
}

void check_mismatch() {
  Group group({0, 1, 2}, kTimeout, outbox);
  const auto good = make_signature("mean", {{4, 100}}, 3, 0, 1, 1);
  const auto other = make_signature("norm", {{4, 101}}, 3, 0, 1, 1);
  on_ranks(3, [&](int rank) {
    const Status status = run(group, rank, rank == 1 ? *other : *good, 1);
    CHECK(status.failure == Failure::kMismatch);
    CHECK(says(status, "BACKEND_MISMATCH"));
    CHECK(says(status, "rank 0 to mean of 4x100"));
    CHECK(says(status, "rank 1 to norm of 4x101"));
    CHECK(run(group, rank, *good, 1).failure == Failure::kAbandoned);
  });
  check_works(group, *good, 2);
  on_ranks(3,
           [&](int rank) { CHECK(says(run(group, rank, *good, rank == 2 ? 4 : 3), "execution")); });
  check_works(group, *good, 5);
}

// Ranks that came return after the limit; one that comes later, in the same execution, returns at
// once.
void check_timeout(int ranks, int absent) {
  std::vector<int64_t> devices(ranks);
  for (int rank = 0; rank < ranks; ++rank) devices[rank] = 10 + rank;
  Group group(devices, kTimeout, outbox);
  const auto signature = make_signature("sum", {{1, 100'000}}, ranks, 0, 1, 1);
  check_works(group, *signature, 1);
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> failed{0};
  on_ranks(ranks, [&](int rank) {
    if (rank == absent) {
      while (failed < ranks - 1) std::this_thread::yield();
      CHECK(run(group, rank, *signature, 2).failure == Failure::kAbandoned);
      return;
    }
    const Status status = run(group, rank, *signature, 2);
    CHECK(status.failure == Failure::kTimeout);
    CHECK(says(status, "[BACKEND_TIMEOUT] sum: rank " + std::to_string(absent) + " (device " +
                           std::to_string(10 + absent) + ")"));
    CHECK(says(status, "within 0.3 s"));
    ++failed;
  });
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= kTimeout && took < std::chrono::seconds(20));
  check_works(group, *signature, 3);
}

// A rank that comes just as the others give up either completes the collective or fails; nobody
// hangs.
void check_close_call() {
  Group group({0, 1}, std::chrono::milliseconds(100), outbox);
  const auto signature = make_signature("sum", {{1, 64}}, 2, 0, 1, 1);
  for (int execution = 1; execution <= 8; ++execution) {
    std::atomic<int> good{0};
    on_ranks(2, [&](int rank) {
      if (rank) std::this_thread::sleep_for(std::chrono::microseconds(100'000 + 40 * execution));
      if (run(group, rank, *signature, execution).failure == Failure::kNone) ++good;
    });
    CHECK(good == 0 || good == 2);
  }
  check_works(group, *signature, 100);
}

// Devices that the program has in other groups, or twice as one rank.
void check_strangers() {
  Group group({4, 5, 6}, kTimeout, outbox);
  const auto signature = make_signature("sum", {{1, 100}}, 3, 0, 1, 1);
  int64_t execution = 0;
  for (const std::vector<int64_t>& places : {std::vector<int64_t>{0, 1, 5}, {2, 3, 4}, {0, 1, 1}}) {
    ++execution;
    on_ranks(3, [&](int seat) {
      const Status status = run(group, seat, *signature, execution, places[seat]);
      CHECK(status.failure == Failure::kMismatch);
      CHECK(says(status, "[BACKEND_MESH] sum was made for the group of devices 4, 5, 6"));
      CHECK(says(status, "device 6 is rank " + std::to_string(places[2] % 3) + " of group " +
                             std::to_string(places[2] / 3)));
    });
    check_works(group, *signature, ++execution);
  }
}

// A rank that fails before it comes releases the others before their limit.
void check_spoilt() {
  Group group({0, 1, 2}, std::chrono::seconds(60), outbox);
  const auto signature = make_signature("sum", {{1, 64}}, 3, 0, 1, 1);
  on_ranks(3, [&](int rank) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      group.spoil(1, "out of luck");
      return;
    }
    const Status status = run(group, rank, *signature, 1);
    CHECK(status.failure == Failure::kAbandoned);
    CHECK(says(status, "failed in this execution: out of luck"));
  });
  check_works(group, *signature, 2);
}

// One rank in two collectives at once, which have no order: all ranks of that execution are told,
// long before the limit, whether they wait already or come later.
void check_busy() {
  Group group({0, 1, 2}, std::chrono::seconds(20), outbox);
  const auto signature = make_signature("sum", {{1, 64}}, 3, 0, 1, 1);
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> busy{0}, abandoned{0};
  on_ranks(4, [&](int thread) {
    if (thread == 3) {
      while (!busy) std::this_thread::yield();
    }
    const Status status = run(group, std::max(0, thread - 1), *signature, 1);
    CHECK(status.failure != Failure::kNone);
    CHECK(says(status, "BACKEND_BUSY") || says(status, "BACKEND_ABANDONED"));
    CHECK(says(status, "rank 0 of the group"));  // The others quote it.
    ++(says(status, "BACKEND_ABANDONED") ? abandoned : busy);
  });
  CHECK(busy == 1 && abandoned == 3);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  check_works(group, *signature, 2);
}

}  // namespace
}  // namespace jaxcc::testing

int main() {
  using namespace jaxcc::testing;
  for (int64_t bytes : {0, 64}) {
    outbox = bytes;
    check_mismatch();
    check_timeout(2, 1);
    check_timeout(4, 2);
    check_close_call();
    check_strangers();
    check_spoilt();
    check_busy();
  }
  return 0;
}
