#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef F_SEAL_SEAL
#include <linux/fcntl.h>
#endif

namespace jaxcc {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Locks lie behind all data: they guard no bytes.
constexpr off_t kLocks = off_t{1} << 60;

std::string failed(const std::string& call) { return call + ": " + std::strerror(errno); }

struct flock lock_of(int number) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLocks + number;
  lock.l_len = 1;
  return lock;
}

std::string distrust(int file, int64_t bytes) {
  struct stat found;
  if (fstat(file, &found)) return failed("fstat");
  if (!S_ISREG(found.st_mode)) return "it is no memory file";
  if (found.st_uid != geteuid()) return "it belongs to user " + std::to_string(found.st_uid);
  if (found.st_mode & 077) return "other users may open it";
  if (found.st_size != bytes) {
    return "it has " + std::to_string(found.st_size) + " bytes, not " + std::to_string(bytes);
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return "its size is not fixed";
  return "";
}

}  // namespace

std::unique_ptr<Segment> Segment::create(int64_t bytes, std::string* problem) {
  const int file = memfd_create("jaxcc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) {
    *problem = failed("memfd_create");
    return nullptr;
  }
  if (fchmod(file, 0600) || ftruncate(file, bytes) || fcntl(file, F_ADD_SEALS, kSeals)) {
    *problem = failed("making shared memory of " + std::to_string(bytes) + " bytes");
    close(file);
    return nullptr;
  }
  return map(file, bytes, problem);
}

std::unique_ptr<Segment> Segment::attach(const std::string& path, int64_t bytes,
                                         std::string* problem) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    *problem = failed("opening " + path);
    return nullptr;
  }
  *problem = distrust(file, bytes);
  if (!problem->empty()) {
    *problem = path + " is not trusted: " + *problem;
    close(file);
    return nullptr;
  }
  return map(file, bytes, problem);
}

std::unique_ptr<Segment> Segment::map(int file, int64_t bytes, std::string* problem) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    *problem = failed("mmap");
    close(file);
    return nullptr;
  }
  return std::unique_ptr<Segment>(new Segment(file, static_cast<char*>(data), bytes));
}

Segment::~Segment() {
  munmap(data_, bytes_);
  close(file_);
}

std::string Segment::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_);
}

std::string Segment::reserve(int64_t offset, int64_t bytes) {
  while (fallocate(file_, 0, offset, bytes)) {
    if (errno != EINTR) return failed(std::to_string(bytes) + " bytes of shared memory");
  }
  return "";
}

std::string Segment::hold(int number) {
  struct flock lock = lock_of(number);
  return fcntl(file_, F_SETLK, &lock) ? failed("locking shared memory") : "";
}

bool Segment::held(int number) const {
  struct flock lock = lock_of(number);
  // If it cannot be told, the rank is taken to live: its limit of time still holds.
  return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace jaxcc
