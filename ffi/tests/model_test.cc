// The flag barrier in every interleaving, and that the explorer sees what is wrong with variants.

#include "model.h"

#include "../protocol/barrier.h"

namespace jaxcc::model {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed, kAcquire = std::memory_order_acquire,
               kRelease = std::memory_order_release, kConsistent = std::memory_order_seq_cst;

// One thread writes and publishes; the other polls and reads.
Result message(std::memory_order publish, std::memory_order look) {
  return World().explore([=](World& w) {
    const int data = w.cell(0), flag = w.cell(0);
    return World::Bodies{[=, &w] {
                           w.write(data, 7);
                           w.store(flag, 1, publish);
                         },
                         [=, &w] {
                           while (w.load(flag, look) == 0) w.poll_again();
                           w.check(w.read(data) == 7, "the message is another");
                         }};
  });
}

// Each thread stores its flag and looks at the other's: one of them sees the other.
Result dekker(std::memory_order store, std::memory_order load) {
  return World().explore([=](World& w) {
    const int a = w.cell(0), b = w.cell(0), missed = w.cell(0);
    const auto body = [=, &w](int mine, int other) {
      return [=, &w] {
        w.store(mine, 1, store);
        if (w.load(other, load)) return;
        w.check(w.update(
                    missed, [](uint64_t x) { return x + 1; }, kRelaxed) == 0,
                "neither saw the other");
      };
    };
    return World::Bodies{body(a, b), body(b, a)};
  });
}

// A sleeper counts itself and looks again before it sleeps; the waker skips the call if none is
// counted.
Result sleeper(bool looks_again, std::memory_order order) {
  return World().explore([=](World& w) {
    const int word = w.cell(0), sleepers = w.cell(0);
    return World::Bodies{[=, &w] {
                           if (!looks_again) {
                             if (w.load(word, kAcquire)) return;
                             w.update(sleepers, [](uint64_t x) { return x + 1; }, order);
                             w.sleep(word, 0, 0);
                             return;
                           }
                           w.update(sleepers, [](uint64_t x) { return x + 1; }, order);
                           while (w.load(word, order) == 0) w.sleep(word, 0, 0);
                         },
                         [=, &w] {
                           w.store(word, 1, order);
                           if (w.load(sleepers, order)) w.wake(word);
                         }};
  });
}

struct Barriers {
  int ranks = 2;
  int calls = 2;
  bool second = true;  // a barrier after what a call's peers read, too
  int outboxes = 1;    // used in turn
  std::memory_order publish = kRelease;
  std::memory_order look = kAcquire;
  uint32_t epoch = 0;
  int impatient = 0;
  int absent = -1;  // a rank that does not come to the last call
};

class Platform {
 public:
  explicit Platform(const Barriers& how) : how_(how) {}
  int32_t thread() const { return 0; }
  int32_t threads() const { return 1; }
  bool all(bool good) const { return good; }
  uint32_t load_acquire(const uint32_t* word) const {
    return static_cast<uint32_t>(world->load(world->at(word), how_.look));
  }
  void post(int32_t, Flag* flag, uint32_t epoch) const {
    world->store(world->at(&flag->epoch), epoch, how_.publish);
  }
  bool patience(int64_t) const { return world->poll_again(); }

 private:
  const Barriers& how_;
};

// Each rank writes its part, and reads all ranks' after the barrier, call after call.
Result barriers(const Barriers& how) {
  std::vector<std::vector<Flag>> flags(how.ranks, std::vector<Flag>(how.ranks));
  std::vector<Flag*> inboxes;
  for (auto& inbox : flags) inboxes.push_back(inbox.data());
  return World().explore(
      [&](World& w) {
        std::vector<std::vector<int>> parts(how.outboxes);
        for (int rank = 0; rank < how.ranks; ++rank) {
          for (auto& outbox : parts) outbox.push_back(w.cell(0));
          for (Flag& flag : flags[rank]) w.cell(&flag.epoch, how.epoch);
        }
        World::Bodies bodies;
        for (int rank = 0; rank < how.ranks; ++rank) {
          bodies.push_back([&, parts, rank] {
            Platform platform(how);
            const PeerView view{rank, how.ranks, nullptr, inboxes.data(), 0, nullptr};
            uint32_t epoch = how.epoch;
            for (int call = 0; call < how.calls; ++call) {
              const bool last = call + 1 == how.calls;
              if (last && rank == how.absent) return;
              const auto& outbox = parts[call % how.outboxes];
              w.write(outbox[rank], 10 * call + rank);
              if (!flag_barrier(platform, view, 0, ++epoch)) return;
              w.check(!last || how.absent < 0, "a rank that did not come was not missed");
              for (int peer = 0; peer < how.ranks; ++peer) {
                w.check(w.read(outbox[peer]) == static_cast<uint64_t>(10 * call + peer),
                        "reads the part of another call");
              }
              if (how.second && !flag_barrier(platform, view, 0, ++epoch)) return;
              w.forget(call, how.impatient);
            }
          });
        }
        return bodies;
      },
      how.impatient);
}

void check_explorer() {
  const std::string race = "beside another's";
  expect("a message, released and acquired", message(kRelease, kAcquire), "");
  expect("a message, published relaxed", message(kRelaxed, kAcquire), race);
  expect("a message, looked at relaxed", message(kRelease, kRelaxed), race);
  expect("two flags, consistent", dekker(kConsistent, kConsistent), "");
  expect("two flags, released and acquired", dekker(kRelease, kAcquire), "neither saw");
  expect("two flags, looked at by acquire", dekker(kConsistent, kAcquire), "neither saw");
  expect("a sleeper, consistent", sleeper(true, kConsistent), "");
  expect("a sleeper, released and acquired", sleeper(true, std::memory_order_acq_rel),
         "no thread can go on");
  expect("a sleeper that leaves looking again to the kernel", sleeper(false, kConsistent), "");
}

void check_barrier() {
  Barriers how;
  expect("2 ranks, two barriers a call", barriers(how), "");
  how.calls = 3;
  how.second = false;
  how.outboxes = 2;
  expect("2 ranks, one barrier a call, two outboxes", barriers(how), "");
  how.epoch = UINT32_MAX - 1;
  expect("the same, epochs wrap around", barriers(how), "");
  how.outboxes = 1;
  expect("one barrier a call, one outbox", barriers(how), "another");
  how = {};
  how.publish = kRelaxed;
  expect("flags published relaxed", barriers(how), "another");
  how = {};
  how.look = kRelaxed;
  expect("flags looked at relaxed", barriers(how), "another");
  how = {};
  how.impatient = 1;
  expect("2 ranks that may give up at any time", barriers(how), "");
  how.absent = 1;
  expect("a rank that does not come to the second call", barriers(how), "");
  how = {};
  how.ranks = 3;
  how.calls = 1;
  expect("3 ranks, two barriers in a call", barriers(how), "");
  how.calls = 2;
  how.second = false;
  how.outboxes = 2;
  expect("3 ranks, one barrier a call, two outboxes", barriers(how), "");
  how.outboxes = 1;
  expect("3 ranks, one barrier a call, one outbox", barriers(how), "another");
}

}  // namespace
}  // namespace jaxcc::model

int main() {
  jaxcc::model::check_explorer();
  jaxcc::model::check_barrier();
  return 0;
}
