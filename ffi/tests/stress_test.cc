// Random collectives on random groups of up to 16 threads, which come late at random, for a given
// time: stress_test [SECONDS [SEED]]. Every rank holds its results against a plain sum in double.

#include <algorithm>
#include <numeric>

#include "../exchanger.h"
#include "steps.h"

namespace jaxcc::testing {
namespace {

constexpr int kMostRanks = 16;
constexpr int kSteps = 300;  // of a round, whose threads and groups stay
constexpr int64_t kOutbox = 256 << 10;

struct Tile {
  jaxcc_tile_fn run;
  void tile(const jaxcc_tile& tile, Participant::Lanes) const { run(&tile); }
  void total(const jaxcc_parts&) const {}
};

// Now, or soon, or so late that the others sleep.
void come_late(Random& random) {
  const int64_t kind = random.integer(0, 99);
  if (kind < 60) return;
  if (kind < 85) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(random.integer(1, kind < 99 ? 60 : 2000)));
}

// A step of one of a round's groups.
struct Call : Step {
  int group;
  bool exchange;  // by outboxes
  int liar;       // the rank that brings another signature; -1: none does
  Signature other;
};

Status run_on(Group& group, int rank, const Call& step, const jaxcc::Call& call) {
  if (step.exchange) {
    Exchanger exchanger(group, rank, call);
    return run_by_outboxes(exchanger, step, call.buffers);
  }
  Participant participant(group, rank, call);
  if (step.kind == kAllReduce) {
    const auto& signature = static_cast<const FusedSignature&>(*step.signature);
    const Tile tile{find_kernel(signature.op).tile};
    two_shot(participant, tile, participant.view(), signature.geometry);
  } else {
    const auto& signature = static_cast<const MoveSignature&>(*step.signature);
    move_all(participant, participant.view(), signature.moves);
  }
  return participant.status();
}

void run(Group& group, const Call& step, int rank, int64_t execution, Random& random) {
  const Buffers buffers(step, rank);
  const Signature* brought = rank == step.liar ? &step.other : step.signature.get();
  come_late(random);
  const Status status =
      run_on(group, rank, step, {brought, execution, buffers.both(), step.stream});
  CHECK((status.failure == Failure::kNone) == (step.liar < 0));
  if (step.liar < 0) return buffers.check(random);
  CHECK(status.failure == Failure::kMismatch);
}

int64_t random_count(Random& random, int ranks) {
  const int64_t kind = random.integer(0, 99);
  if (kind < 60) return random.integer(1, 64);
  if (kind < 98) return random.integer(1, 3000);
  return random.integer(1, 400'000 / ranks);
}

// One round: threads, groups of them, and what they do, in one order for all.
int64_t round(Random& random) {
  const int threads = static_cast<int>(random.integer(1, kMostRanks));
  std::vector<std::vector<int>> members;
  std::vector<std::unique_ptr<Group>> groups;
  for (int g = 0; g < 5; ++g) {
    std::vector<int> order(threads);
    std::iota(order.begin(), order.end(), 0);
    for (int i = threads - 1; i > 0; --i) std::swap(order[i], order[random.integer(0, i)]);
    if (g > 0) order.resize(random.integer(1, threads));
    groups.push_back(std::make_unique<Group>(std::vector<int64_t>(order.begin(), order.end()),
                                             std::chrono::seconds(60), kOutbox));
    members.push_back(order);
  }
  std::vector<Call> steps(kSteps);
  for (Call& step : steps) {
    const int group = static_cast<int>(random.integer(0, 4));
    const int ranks = groups[group]->ranks();
    static_cast<Step&>(step) = random_step(random, ranks, random_count(random, ranks));
    step.group = group;
    step.exchange = random.integer(0, 1);
    const bool lies = ranks > 1 && random.integer(0, 49) == 0;
    step.liar = lies ? static_cast<int>(random.integer(0, ranks - 1)) : -1;
    step.other = *step.signature;
    step.other.text += " and more";
  }
  const uint64_t seed = random.integer(0, INT64_MAX);
  on_ranks(threads, [&](int thread) {
    Random own(seed + thread);
    for (size_t s = 0; s < steps.size(); ++s) {
      const auto& order = members[steps[s].group];
      const auto found = std::find(order.begin(), order.end(), thread);
      if (found == order.end()) continue;
      const int rank = static_cast<int>(found - order.begin());
      run(*groups[steps[s].group], steps[s], rank, static_cast<int64_t>(s), own);
    }
  });
  return kSteps;
}

}  // namespace
}  // namespace jaxcc::testing

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  jaxcc::testing::Random random(seed);
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  do {
    done += jaxcc::testing::round(random);
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
           seconds);
  std::printf("%lld collectives\n", static_cast<long long>(done));
  return 0;
}
