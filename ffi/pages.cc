#include "pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older kernels refuse it, and nothing is lost
#endif

namespace jaxcc {

namespace {

// madvise over whole pages; its failure only costs speed.
void advise(void* data, size_t bytes, int advice) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  // Rounded down: from a start inside a page the kernel would leave the first 2 MiB small.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) & ~(page - 1);
  madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(data) + bytes - begin,
          advice);
}

char* end_of(const Span& span) { return static_cast<char*>(span.data) + span.bytes; }

// Between neighbours there may be those of another rank: arrays are handed out to ranks in turns.
constexpr ptrdiff_t kGap = 1 << 21;

// Merges the pages of buffers, taking neighbours together: each may be a part of a page of 2 MiB.
void merge(std::vector<Span> buffers) {
  std::sort(buffers.begin(), buffers.end(),
            [](const Span& a, const Span& b) { return std::less<>()(a.data, b.data); });
  for (size_t i = 0; i < buffers.size();) {
    Span hull = buffers[i];
    while (++i < buffers.size() && static_cast<char*>(buffers[i].data) - end_of(hull) <= kGap) {
      const char* end = std::max(end_of(hull), end_of(buffers[i]));
      hull.bytes = end - static_cast<char*>(hull.data);
    }
    if (hull.bytes >= kHugePageBytes) advise(hull.data, hull.bytes, MADV_COLLAPSE);
  }
}

}  // namespace

void use_huge_pages(void* data, size_t bytes) { advise(data, bytes, MADV_HUGEPAGE); }

void Residents::seen(const std::vector<Span>& buffers) {
  watched_.resize(buffers.size());
  bool settled = false;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Watched& watched = watched_[i];
    if (buffers[i].data != watched.data) {
      watched.data = buffers[i].data;
      watched.calls = 0;
    }
    if (watched.calls > kCallsToSettle || watched.merges >= kMerges) continue;
    if (++watched.calls != kCallsToSettle) continue;
    ++watched.merges;
    settled = true;
  }
  if (!settled) return;
  std::vector<Span> held;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (watched_[i].calls >= kCallsToSettle) held.push_back(buffers[i]);
  }
  merge(std::move(held));
}

}  // namespace jaxcc
