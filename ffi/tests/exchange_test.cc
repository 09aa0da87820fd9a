// Ranks that leave each other what they need, in a channel or in outboxes of a group: every
// collective of problems.h, all-reduces by either protocol against sums in double, and epochs that
// wrap around.

#include <cmath>

#include "problems.h"
#include "worlds.h"

namespace jaxcc::testing {
namespace {

// In place on some ranks, at sizes on both sides of every limit.
template <class World>
void check_all_reduce(int ranks) {
  Random random(500 + ranks);
  World world(ranks);
  const Kernel kernel = find_kernel("all_reduce.sum.f32");
  std::vector<int64_t> sizes = {0, 1, 7, 32768, 32769, 100'003, 1'000'000};
  if (ranks == 2) sizes.push_back((25 << 20) / 4 + 1);
  for (int i = 0; i < 40; ++i) sizes.push_back(random.integer(1, i % 10 ? 9000 : 300'000));
  struct One {
    std::unique_ptr<FusedSignature> signature;
    StagedKernel call;
    std::vector<std::vector<float>> given, got;
  };
  std::vector<One> all(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    One& one = all[i];
    one.signature = make_signature("all_reduce", {{1, sizes[i]}}, ranks, 0, 1, 1);
    CHECK(one.call.plan(*one.signature, kernel, {{kTeam, 4}, {kTeam, 4}}, kSmallOutbox).empty());
    for (int r = 0; r < ranks; ++r) {
      one.given.push_back(random.normals(sizes[i]));
      one.got.push_back(r % 2 ? one.given.back() : std::vector<float>(sizes[i], NAN));
    }
  }
  on_ranks(ranks, [&](int r) {
    for (size_t i = 0; i < all.size(); ++i) {
      float* const got = all[i].got[r].data();
      void* const buffers[] = {r % 2 ? got : all[i].given[r].data(), got};
      CHECK(world.run(r, all[i].call, *all[i].signature, buffers, i % 2));
    }
  });
  for (const One& one : all) {
    for (size_t i = 0; i < one.got[0].size(); ++i) {
      double sum = 0, size = 1;
      for (const auto& given : one.given) sum += given[i], size += std::abs(given[i]);
      CHECK(std::abs(one.got[0][i] - sum) < 1e-6 * size);
      for (const auto& got : one.got) CHECK(got[i] == one.got[0][i]);
    }
  }
}

template <class World>
void check_all(int trials) {
  for (int ranks : {1, 2, 3, 4, 8}) check_all_reduce<World>(ranks);
  for (int ranks : {1, 2, 3, 4}) check_updates<World>(ranks, trials);
  for (int ranks : {1, 2, 3, 4}) check_totals<World>(ranks, trials);
  for (int teams : {1, 2, 3}) {
    for (int ranks : {1, 2, 3}) check_sends<World>(ranks, teams, trials);
  }
}

}  // namespace
}  // namespace jaxcc::testing

int main(int, char** argv) {
  using namespace jaxcc::testing;
  const int trials = argv[1] ? std::atoi(argv[1]) : 30;
  check_all<Processes>(trials);
  check_all<Exchanges>(trials);
  return 0;
}
