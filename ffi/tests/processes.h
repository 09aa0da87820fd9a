// What tests ask of processes.
#pragma once

#include <sys/wait.h>

#include <fstream>
#include <string>

#include "testing.h"

namespace jaxcc::testing {

// Waits until a child has ended; minus the signal's number if one has ended it.
inline int exit_code(pid_t pid) {
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Whether this process has memory of a channel.
inline bool has_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  bool found = false;
  while (std::getline(maps, line)) found |= line.find("memfd:jaxcc") != std::string::npos;
  return found;
}

}  // namespace jaxcc::testing
