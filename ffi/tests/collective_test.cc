// The two-shot template on both of its host platforms, against sums in double: ranks that claim
// work from each other, and ranks with a fixed part that meet at flag barriers, as on a GPU.

#include "../protocol/barrier.h"
#include "problems.h"
#include "worlds.h"

namespace jaxcc::testing {
namespace {

// What a GPU does, on threads: `threads` blocks per rank, each with every threads-th chunk of the
// rank's own slice.
class FlagsPlatform {
 public:
  using Lanes = OneLane;
  FlagsPlatform(const PeerView& view, int block, int blocks, uint32_t call)
      : view_(view), block_(block), blocks_(blocks), epoch_(2 * call), next_(block) {}

  bool enter() { return flag_barrier(*this, view_, block_, epoch_ + 1); }
  template <class F>
  bool leave(const F&) {
    return flag_barrier(*this, view_, block_, epoch_ + 2);
  }
  bool claim(int64_t count, Chunk* chunk) {
    if (next_ >= count) return false;
    *chunk = {view_.rank, next_};
    next_ += blocks_;
    return true;
  }
  Lanes lanes() const { return {}; }

  int32_t thread() const { return 0; }
  int32_t threads() const { return 1; }
  bool all(bool good) const { return good; }
  uint32_t load_acquire(const uint32_t* word) const {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  void post(int32_t, Flag* flag, uint32_t epoch) const {
    __atomic_store_n(&flag->epoch, epoch, __ATOMIC_RELEASE);
  }
  bool patience(int64_t polls) const {
    if (polls > 100) std::this_thread::yield();
    return polls < 100'000'000;
  }

 private:
  const PeerView& view_;
  int block_;
  int blocks_;
  uint32_t epoch_;
  int64_t next_;
};

void check_flags(int ranks, int blocks, int trials) {
  Random random(200 + ranks);
  std::vector<std::vector<Flag>> inboxes(ranks, std::vector<Flag>(blocks * ranks));
  std::vector<Flag*> flags;
  // Epochs wrap around during the test.
  const uint32_t first_call = (uint32_t{0} - trials) / 2;
  for (auto& inbox : inboxes) {
    for (Flag& flag : inbox) flag.epoch = 2 * first_call;
    flags.push_back(inbox.data());
  }
  std::vector<std::vector<Shape>> shapes;
  std::vector<Problem> before, after;
  for (int trial = 0; trial < trials; ++trial) {
    shapes.push_back(random_shapes(random, trial));
    before.push_back(make_problem(shapes.back(), ranks, random));
    after.push_back(copy(before.back(), shapes.back()));
  }
  on_ranks(ranks * blocks, [&](int thread) {
    const int r = thread / blocks;
    for (int trial = 0; trial < trials; ++trial) {
      Problem& problem = after[trial];
      const PeerView view{r, ranks, problem.views.data(), flags.data(), 0, nullptr};
      FlagsPlatform platform(view, thread % blocks, blocks, first_call + trial);
      CHECK(two_shot(platform, Update(), view, problem.signature->geometry));
    }
  });
  for (int trial = 0; trial < trials; ++trial) check_update(before[trial], after[trial]);
}

}  // namespace
}  // namespace jaxcc::testing

int main(int, char** argv) {
  using namespace jaxcc::testing;
  const int trials = argv[1] ? std::atoi(argv[1]) : 40;
  for (int ranks : {1, 2, 3, 4, 8}) check_updates<Threads>(ranks, trials);
  for (int ranks : {1, 2, 3, 4, 8}) check_totals<Threads>(ranks, trials);
  for (int teams : {1, 2, 3, 4}) {
    for (int ranks : {1, 2, 3}) check_sends<Threads>(ranks, teams, trials);
  }
  for (int ranks : {1, 2, 3, 4}) check_flags(ranks, 1 + ranks % 2, trials);
  return 0;
}
