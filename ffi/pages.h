// Huge pages for large buffers. Without them a kernel that streams through memory spends half its
// time on page tables.
#pragma once

#include <cstddef>
#include <vector>

namespace jaxcc {

// Memory from this size on gains from huge pages.
constexpr size_t kHugePageBytes = size_t{1} << 20;

// Asks for huge pages where nothing has been touched yet.
void use_huge_pages(void* data, size_t bytes);

// A buffer.
struct Span {
  void* data;
  size_t bytes;
};

// Watches the buffers of a program that runs again and again. XLA lets donated arrays keep their
// memory, which came in 4 KiB pages; once buffers have proved to stay, the pages of those that are
// large, or that lie beside one another, are merged, which costs about a copy of them.
class Residents {
 public:
  // Called before each execution, by one thread at a time, with the same buffers or others in their
  // places.
  void seen(const std::vector<Span>& buffers);

 private:
  static constexpr int kCallsToSettle = 4;
  static constexpr int kMerges = 2;  // a buffer that moves time and again is left alone

  struct Watched {
    void* data = nullptr;
    int calls = 0;
    int merges = 0;
  };
  std::vector<Watched> watched_;
};

}  // namespace jaxcc
