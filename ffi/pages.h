// Huge pages for large buffers. Without them a kernel that streams through memory spends half its
// time on page tables.
#pragma once

#include <cstddef>

namespace jaxcc {

constexpr size_t kHugePageBytes = size_t{1}
                                  << 20;  // buffers from this size on gain from huge pages

// Asks for huge pages where nothing has been touched yet.
void use_huge_pages(void* data, size_t bytes);

// Watches one buffer of a program that runs again and again. XLA lets donated arrays keep their
// memory, which came in 4 KiB pages; once a buffer has proved to stay, its pages are merged, which
// costs about a copy of it.
class Resident {
 public:
  // Called before each execution, by one thread at a time.
  void seen(void* data, size_t bytes);

 private:
  static constexpr int kCallsToSettle = 4;
  static constexpr int kMerges = 2;  // a buffer that moves time and again is left alone

  void* data_ = nullptr;
  int calls_ = 0;
  int merges_ = 0;
};

}  // namespace jaxcc
