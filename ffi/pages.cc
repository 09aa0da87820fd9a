#include "pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

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

}  // namespace

void use_huge_pages(void* data, size_t bytes) { advise(data, bytes, MADV_HUGEPAGE); }

void Resident::seen(void* data, size_t bytes) {
  if (data != data_) {
    data_ = data;
    calls_ = 0;
  }
  if (calls_ > kCallsToSettle || merges_ >= kMerges) return;
  if (++calls_ == kCallsToSettle) {
    ++merges_;
    advise(data, bytes, MADV_COLLAPSE);
  }
}

}  // namespace jaxcc
