// The rendezvous of threads, as it is written, in every interleaving: arrival, claims, outboxes,
// sleep, a rank that gives up against one that comes late, and ranks that do not agree.

#include <sched.h>

#include <array>
#include <chrono>
#include <memory>

#include "model.h"

// What follows means the model by the names of the standard library and of the system.
namespace jaxcc {
namespace std {
using namespace ::std;
template <class T>
using atomic = model::Atomic<T>;
namespace chrono {
using namespace ::std::chrono;
// Stands still until a thread loses its patience.
struct steady_clock {
  using duration = ::std::chrono::nanoseconds;
  using time_point = ::std::chrono::time_point<::std::chrono::steady_clock, duration>;
  static inline ::std::array<duration, model::kMostThreads> times{};
  static time_point now() { return time_point(times[model::world->thread()]); }
};
}  // namespace chrono

// The outboxes of the one group that there is.
alignas(64) inline char outboxes[64 * 16];
inline void* aligned_alloc(size_t, size_t) { return outboxes; }
inline void free(void*) {}
}  // namespace std

inline void sched_yield() { model::world->poll_again(/*patient=*/true); }
}  // namespace jaxcc

#include "../exchanger.cc"
#include "../participant.cc"
#include "../rendezvous.cc"

namespace jaxcc {

Patience::Patience(bool) : start_(Clock::now()), pausing_(false) {}
bool Patience::spin() { return false; }
int own_cores() { return 1; }
void drain_streaming_stores() {}
std::string seconds(std::chrono::nanoseconds) { return ""; }

// The word is the upper half of an atomic.
void sleep_on(const uint32_t* word, uint32_t seen, bool) {
  if (model::world->sleep(model::world->at(word - 1), 32, seen)) return;
  std::chrono::steady_clock::times[model::world->thread()] += std::chrono::hours(1);
}
void wake_all(const uint32_t* word, bool) { model::world->wake(model::world->at(word - 1)); }

namespace model {
namespace {

struct Calls {
  int ranks = 2;
  int executions = 1;
  int64_t chunks = 1;  // of each rank; many, and sleepers are woken to help
  bool small = false;
  int phases = 0;  // of an exchange; 0: they use one another's buffers
  int impatient = 0;
  int hasty = -1;       // the only execution in which a rank, the first, is; -1: all are, in all
  int liar = -1;        // a rank that comes to another collective in the first execution
  int absent = -1;      // a rank that does not come in the last one
  bool spoils = false;  // but says that it failed
  Orders orders = Orders::kAsWritten;
};

// All that the runs of one program share.
struct State {
  explicit State(const Calls& how)
      : group(std::vector<int64_t>(how.ranks), std::chrono::minutes(1), how.phases ? kOutbox : 0),
        good(how.executions) {
    for (int box = 0; how.phases && box < how.ranks * Outboxes::kSlots; ++box) {
      world->cell(std::outboxes + box * kOutbox, 0);
    }
    for (int rank = 0; !how.phases && rank < how.ranks; ++rank) {
      operands.push_back(world->cell(0));
      for (int64_t i = 0; i < how.ranks * how.chunks; ++i) results.push_back(world->cell(0));
    }
    for (int& count : good) count = world->cell(0);
  }

  static constexpr int64_t kOutbox = 64;

  Group group;
  std::vector<int> operands;  // of each rank, a cell
  std::vector<int> results;   // of each rank, a cell for each chunk
  std::vector<int> good;  // of each execution: ranks for which it was good, and that are through
};

// One rank in one execution: true if it was good. Whoever stores a chunk reads all operands.
bool take_part(State& state, const Calls& how, const Signature& signature, int rank, int run) {
  World& w = *world;
  const int64_t all = how.ranks * how.chunks;
  const auto value = [&](int peer) { return static_cast<uint64_t>(100 * run + peer); };
  w.write(state.operands[rank], value(rank));
  Participant participant(state.group, rank, {&signature, run, nullptr, false});
  if (!participant.enter()) return false;
  Chunk chunk;
  while (participant.claim(how.chunks, &chunk)) {
    uint64_t sum = 0;
    for (int operand : state.operands) sum += w.read(operand);
    for (int peer = 0; peer < how.ranks; ++peer) {
      w.write(state.results[peer * all + chunk.owner * how.chunks + chunk.index], sum);
    }
  }
  if (!participant.leave([] {})) return false;
  uint64_t sum = 0;
  for (int peer = 0; peer < how.ranks; ++peer) sum += value(peer);
  for (int64_t i = 0; i < all; ++i) {
    w.check(w.read(state.results[rank * all + i]) == sum, "a result is wrong or not there");
  }
  return true;
}

// The same, with outboxes.
bool exchange(State& state, const Calls& how, const Signature& signature, int rank, int run) {
  World& w = *world;
  Exchanger exchanger(state.group, rank, {&signature, run, nullptr, false});
  if (exchanger.begin().failure != Failure::kNone) return false;
  int phase = 0;
  do {
    for (phase = 0; phase < how.phases; ++phase) {
      const auto value = [&](int peer) {
        return static_cast<uint64_t>(100 * run + 10 * phase + peer);
      };
      w.write(w.at(exchanger.out()), value(rank));
      if (!exchanger.meet()) break;
      for (int peer = 0; peer < how.ranks; ++peer) {
        w.check(w.read(w.at(exchanger.in(peer))) == value(peer), "an outbox is wrong or not there");
      }
    }
  } while (phase < how.phases && exchanger.again());
  exchanger.end();
  return phase == how.phases;
}

Result calls(const Calls& how) {
  Signature usual, other;
  usual.op = usual.text = "usual";
  usual.chunks = how.chunks;
  usual.small = how.small;
  other = usual;
  other.text = "other";
  return World().explore(
      [&](World& w) {
        std::chrono::steady_clock::times = {};
        const auto state = std::make_shared<State>(how);
        World::Bodies bodies;
        for (int rank = 0; rank < how.ranks; ++rank) {
          bodies.push_back([&, state, rank] {
            const auto impatience = [&](int run) {
              return how.hasty < 0 || (how.hasty == run && rank == 0) ? how.impatient : 0;
            };
            for (int run = 0; run < how.executions; ++run) {
              if (run + 1 == how.executions && rank == how.absent) {
                if (how.spoils) state->group.spoil(run, "why");
                return;
              }
              const bool lies = run == 0 && rank == how.liar;
              const auto part = how.phases ? exchange : take_part;
              const bool good = part(*state, how, lies ? other : usual, rank, run);
              const bool may_fail = how.impatient || (how.liar >= 0 && run == 0) || how.spoils;
              w.check(good || may_fail, "a collective fails for no reason");
              const bool must =
                  (how.liar >= 0 && run == 0) || (how.absent >= 0 && run + 1 == how.executions);
              w.check(!good || !must, "ranks that do not agree, or did not come, are not noticed");
              // Good for all, or for none: of those that are through, all say the same.
              const int said = good ? 1 : 2;
              const uint64_t before = w.update(
                  state->good[run], [&](uint64_t) { return said; }, std::memory_order_relaxed);
              w.check(before == 0 || before == static_cast<uint64_t>(said),
                      "good for one rank and not for another");
              w.forget(run, impatience(run + 1));
            }
          });
        }
        return bodies;
      },
      how.hasty > 0 ? 0 : how.impatient, how.orders);
}

void check_good() {
  Calls how;
  expect("2 ranks", calls(how), "");
  how.executions = 2;
  expect("2 ranks, two executions", calls(how), "");
  how.small = true;
  expect("2 ranks, the last to come does all, two executions", calls(how), "");
  how = {};
  how.chunks = 4;
  expect("2 ranks, sleepers are woken to help", calls(how), "");
  how = {};
  how.ranks = 3;
  how.small = true;
  expect("3 ranks, the last to come does all", calls(how), "");
  how = {};
  how.phases = 2;
  expect("2 ranks, an exchange", calls(how), "");
  how.phases = 1;
  how.executions = 3;
  expect("2 ranks, three exchanges", calls(how), "");
}

void check_failures() {
  Calls how;
  how.impatient = 1;
  expect("2 ranks that may give up", calls(how), "");
  how.executions = 2;
  how.small = true;
  expect("2 ranks that may give up, two executions", calls(how), "");
  how = {};
  how.impatient = 1;
  how.absent = 1;
  how.executions = 2;
  how.small = true;
  expect("a rank that does not come to the second", calls(how), "");
  how = {};
  how.absent = 1;
  how.spoils = true;
  expect("a rank that fails elsewhere releases who waits for it", calls(how), "");
  how.phases = 1;
  expect("the same, of an exchange", calls(how), "");
  how = {};
  how.executions = 2;
  how.liar = 1;
  expect("a rank that comes to another collective, then to its own", calls(how), "");
  how.phases = 1;
  expect("the same, to exchanges", calls(how), "");
  how = {};
  how.impatient = 1;
  how.phases = 1;
  expect("2 ranks that may give up an exchange", calls(how), "");
  how.executions = 3;
  how.hasty = 1;
  expect("a rank that may give up the second of three", calls(how), "");
}

void check_orders() {
  Calls how;
  how.orders = Orders::kNotConsistent;
  expect("sleepers and state not consistent", calls(how), "no thread can go on");
  how.orders = Orders::kNotReleased;
  expect("nothing is released", calls(how), "another");
  how.phases = 1;
  expect("outboxes are not released", calls(how), "another");
}

}  // namespace
}  // namespace model
}  // namespace jaxcc

int main() {
  jaxcc::model::check_good();
  jaxcc::model::check_failures();
  jaxcc::model::check_orders();
  return 0;
}
