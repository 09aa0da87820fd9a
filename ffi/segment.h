// Memory that several processes share. It has no name: a process that knows the number of one that
// has it, and of its file, opens it through /proc. So nothing is left behind, however processes
// end, and it does not depend on the size of /dev/shm, which containers make small.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace jaxcc {

class Segment {
 public:
  // New memory, zero, that only processes of this user may open. Null with a `problem` if there is
  // none.
  static std::unique_ptr<Segment> create(int64_t bytes, std::string* problem);

  // Memory that another process has created, of that size. It is refused if others than this user
  // could have written it or could make it smaller.
  static std::unique_ptr<Segment> attach(const std::string& path, int64_t bytes,
                                         std::string* problem);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* data() const { return data_; }

  // What other processes attach by.
  std::string path() const;

  // Takes memory for a part now, on the caller's NUMA node, so that a lack of it is an error here
  // and no signal later. Returns the problem, or an empty string.
  std::string reserve(int64_t offset, int64_t bytes);

  // Locks that a process has until it ends, however it does; no other process sees its own.
  std::string hold(int number);
  bool held(int number) const;

 private:
  Segment(int file, char* data, int64_t bytes) : file_(file), data_(data), bytes_(bytes) {}
  static std::unique_ptr<Segment> map(int file, int64_t bytes, std::string* problem);

  const int file_;
  char* const data_;
  const int64_t bytes_;
};

}  // namespace jaxcc
