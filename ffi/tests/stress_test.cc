// Random collectives on random groups of up to 16 threads, which come late at random, for a given
// time: stress_test [SECONDS [SEED]]. Every rank holds its results against a plain sum in double.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "../kernels.h"
#include "../staged.h"
#include "testing.h"

namespace jaxcc::testing {
namespace {

constexpr int kMostRanks = 16;
constexpr int kSteps = 300;  // of a round, whose threads and groups stay
constexpr int64_t kOutbox = 256 << 10;

struct Dtype {
  const char* name;
  int64_t size;
  void (*put)(void*, double);
  double (*get)(const void*);
};

template <class T>
Dtype number(const char* name) {
  return {name, sizeof(T), [](void* at, double x) { *static_cast<T*>(at) = static_cast<T>(x); },
          [](const void* at) { return static_cast<double>(*static_cast<const T*>(at)); }};
}

// The upper half of an f32.
void put_bf16(void* at, double x) {
  const float wide = static_cast<float>(x);
  std::memcpy(at, reinterpret_cast<const char*>(&wide) + 2, 2);
}
double get_bf16(const void* at) {
  float wide = 0;
  std::memcpy(reinterpret_cast<char*>(&wide) + 2, at, 2);
  return wide;
}

const Dtype kDtypes[] = {number<float>("f32"),
                         number<double>("f64"),
                         number<int32_t>("i32"),
                         {"bf16", 2, put_bf16, get_bf16}};

enum Kind { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kPermute, kKinds };
enum Op { kSum, kMax, kMin };
const char* const kOps[] = {"sum", "max", "min"};

struct Step {
  int group;
  Kind kind;
  Op op;
  const Dtype* dtype;
  int64_t count;  // elements of one rank's block
  int ranks;
  int root;  // or how far a permutation shifts; whoever would get the root's gets zeros
  bool stream;
  bool in_place;
  bool exchange;  // by outboxes
  int liar;       // the rank that brings another signature; -1: none does
  uint64_t seed;
  std::shared_ptr<const Signature> signature;
  Signature other;

  bool whole() const { return kind == kAllToAll || kind == kReduceScatter; }
  int64_t operand() const { return whole() ? ranks * count : count; }
  int64_t result() const { return kind == kAllGather || kind == kAllToAll ? ranks * count : count; }
};

// Element i of a rank's operand: a whole number, whose sums every dtype holds exactly.
double value(const Step& step, int rank, int64_t i) {
  uint64_t x = step.seed + static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15 +
               static_cast<uint64_t>(i) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 31) * 0x94d049bb133111eb;
  return static_cast<double>((x >> 40) % 17) - 8;
}

double reduced(const Step& step, int64_t i) {
  double all = value(step, 0, i);
  for (int rank = 1; rank < step.ranks; ++rank) {
    const double x = value(step, rank, i);
    all = step.op == kSum ? all + x : step.op == kMax ? std::max(all, x) : std::min(all, x);
  }
  return all;
}

// Element i of a rank's result.
double expected(const Step& step, int rank, int64_t i) {
  const int source = static_cast<int>(i / step.count);
  const int before = (rank + step.ranks - step.root) % step.ranks;
  switch (step.kind) {
    case kAllReduce:
      return reduced(step, i);
    case kReduceScatter:
      return reduced(step, rank * step.count + i);
    case kAllGather:
      return value(step, source, i % step.count);
    case kAllToAll:
      return value(step, source, rank * step.count + i % step.count);
    case kBroadcast:
      return value(step, step.root, i);
    default:
      return before == step.root ? 0 : value(step, before, i);
  }
}

// The moves that bring every rank its result.
std::vector<int64_t> moves(const Step& step) {
  const int64_t block = step.count * step.dtype->size;
  std::vector<int64_t> list;
  const auto move = [&](int source, int rank, int64_t from, int64_t to) {
    list.insert(list.end(),
                {source, rank, block, from * block, block, block, to * block, block, block});
  };
  for (int rank = 0; rank < step.ranks; ++rank) {
    const int before = (rank + step.ranks - step.root) % step.ranks;
    if (step.kind == kReduceScatter) move(kEveryone, rank, rank, 0);
    if (step.kind == kBroadcast) move(step.root, rank, 0, 0);
    if (step.kind == kPermute) move(before == step.root ? kNobody : before, rank, 0, 0);
    for (int source = 0; source < step.ranks; ++source) {
      if (step.kind == kAllGather) move(source, rank, 0, source);
      if (step.kind == kAllToAll) move(source, rank, rank, source);
    }
  }
  return list;
}

void describe(Step& step) {
  const std::string reduction = std::string(kOps[step.op]) + "." + step.dtype->name;
  if (step.kind == kAllReduce) {
    step.signature =
        make_signature("all_reduce." + reduction, {{1, step.count}}, step.ranks, 0, 1, 1);
  } else {
    auto signature = std::make_unique<MoveSignature>();
    signature->op = signature->text = "moves";
    signature->operand_bytes = step.operand() * step.dtype->size;
    signature->result_bytes = step.result() * step.dtype->size;
    const bool reduces = step.kind == kReduceScatter;
    const auto list = moves(step);
    const std::string problem =
        jaxcc::describe(*signature, step.ranks, reduces ? find_combine(reduction) : Combine{},
                        {list.data(), list.size()});
    CHECK(problem.empty());
    step.signature = std::move(signature);
  }
  step.other = *step.signature;
  step.other.text += " and more";
}

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

Status run_on(const Call& call, Group& group, const Step& step, int rank) {
  Participant participant(group, rank, call);
  Exchanger exchanger(group, rank, call);
  if (step.kind != kAllReduce) {
    const auto& signature = static_cast<const MoveSignature&>(*step.signature);
    if (step.exchange) return run_staged(exchanger, signature, call.buffers, call.stream);
    move_all(participant, participant.view(), signature.moves);
    return participant.status();
  }
  const auto& signature = static_cast<const FusedSignature&>(*step.signature);
  const Kernel kernel = find_kernel(signature.op);
  if (!step.exchange) {
    two_shot(participant, Tile{kernel.tile}, participant.view(), signature.geometry);
    return participant.status();
  }
  StagedKernel staged;
  const int32_t size = static_cast<int32_t>(step.dtype->size);
  CHECK(staged.plan(signature, kernel, {{kTeam, size}, {kTeam, size}}, kOutbox).empty());
  return staged.run(exchanger, call.buffers, call.stream);
}

void run(Group& group, const Step& step, int rank, int64_t execution, Random& random) {
  const int64_t size = step.dtype->size;
  std::vector<char> in(step.operand() * size), out(step.result() * size, 0x5a);
  for (int64_t i = 0; i < step.operand(); ++i) {
    step.dtype->put(&in[i * size], value(step, rank, i));
  }
  char* const result = step.in_place ? in.data() : out.data();
  void* const buffers[] = {in.data(), result};
  const Signature* brought = rank == step.liar ? &step.other : step.signature.get();
  come_late(random);
  const Status status = run_on({brought, execution, buffers, step.stream}, group, step, rank);
  const bool good = status.failure == Failure::kNone;
  CHECK(good == (step.liar < 0));
  if (!good) {
    CHECK(status.failure == Failure::kMismatch);
    return;
  }
  const int64_t stride = step.result() < 5000 ? 1 : random.integer(100, 300);
  for (int64_t i = 0; i < step.result(); i += stride) {
    CHECK(step.dtype->get(result + i * size) == expected(step, rank, i));
  }
  const int64_t last = step.result() - 1;
  CHECK(step.dtype->get(result + last * size) == expected(step, rank, last));
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
  std::vector<Step> steps(kSteps);
  for (Step& step : steps) {
    step.group = static_cast<int>(random.integer(0, 4));
    step.ranks = groups[step.group]->ranks();
    step.kind = static_cast<Kind>(random.integer(0, kKinds - 1));
    step.op = static_cast<Op>(random.integer(kSum, kMin));
    step.dtype = &kDtypes[random.integer(0, 3)];
    step.count = random_count(random, step.ranks);
    step.root = static_cast<int>(random.integer(0, step.ranks - 1));
    step.stream = random.integer(0, 3) == 0;
    step.in_place = step.kind == kAllReduce && random.integer(0, 1);
    step.exchange = random.integer(0, 1);
    const bool lies = step.ranks > 1 && random.integer(0, 49) == 0;
    step.liar = lies ? static_cast<int>(random.integer(0, step.ranks - 1)) : -1;
    step.seed = random.integer(0, INT64_MAX);
    describe(step);
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
