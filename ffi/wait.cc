#include "wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <thread>

namespace jaxcc {
namespace {

constexpr auto kPauseFor = std::chrono::microseconds(9);
constexpr auto kYieldFor = std::chrono::microseconds(50);
constexpr timespec kSleepFor{0, 100'000'000};
constexpr int kPausesPerLook = 16;  // the clock takes longer to read than a pause

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Patience::Patience(bool may_pause) : start_(Clock::now()), pausing_(may_pause) {}

bool Patience::spin() {
  if (pausing_) {
    pause();
    if (++pauses_ % kPausesPerLook) return true;
    pausing_ = Clock::now() - start_ < kPauseFor;
    return true;
  }
  sched_yield();
  return Clock::now() - start_ < kYieldFor;
}

int own_cores() {
  static const int count = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : all_cores();
  }();
  return count;
}

int all_cores() {
  static const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return count;
}

void sleep_on(const uint32_t* word, uint32_t seen, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &kSleepFor, nullptr, 0);
}

void wake_all(const uint32_t* word, bool shared) {
  syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void drain_streaming_stores() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

std::chrono::nanoseconds time_limit() {
  static const std::chrono::nanoseconds limit = [] {
    const char* text = std::getenv("JAXCC_TIMEOUT_S");
    const double given = text ? std::strtod(text, nullptr) : 0;
    return std::chrono::nanoseconds(
        static_cast<int64_t>(1e9 * (given > 0 && given < 1e9 ? given : 300)));
  }();
  return limit;
}

std::string seconds(std::chrono::nanoseconds limit) {
  std::string text = std::to_string(std::chrono::duration<double>(limit).count());
  text.resize(text.find('.') + 2);
  return text + " s";
}

}  // namespace jaxcc
