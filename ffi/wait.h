// How a rank waits for others, in this process or another.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace jaxcc {

// One wait. A pause keeps the core and its cache lines, a yield runs the next rank on this core;
// only then sleep, since a core that went idle takes some 20 us to wake.
class Patience {
 public:
  // `may_pause` if nobody needs this rank's core meanwhile.
  explicit Patience(bool may_pause);

  // Pauses or yields. False once it is time to sleep.
  bool spin();

  bool over(std::chrono::nanoseconds limit) const { return Clock::now() - start_ > limit; }

 private:
  using Clock = std::chrono::steady_clock;

  const Clock::time_point start_;
  bool pausing_;
  int pauses_ = 0;
};

// Cores that this process may run on, and that the machine has.
int own_cores();
int all_cores();

// Sleeps until `word`, which was `seen`, changes and is woken; at most a tenth of a second, so that
// the caller can look whether it still makes sense. `shared` words are in memory of several
// processes.
void sleep_on(const uint32_t* word, uint32_t seen, bool shared);
void wake_all(const uint32_t* word, bool shared);

// Makes streaming stores visible to other threads and processes.
void drain_streaming_stores();

// JAXCC_TIMEOUT_S, or 300 s.
std::chrono::nanoseconds time_limit();

// A time limit in messages: "0.3 s".
std::string seconds(std::chrono::nanoseconds limit);

}  // namespace jaxcc
