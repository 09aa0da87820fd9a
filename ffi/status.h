// How a collective ends.
#pragma once

#include <string>

namespace jaxcc {

enum class Failure { kNone, kTimeout, kMismatch, kAbandoned, kDied };

struct Status {
  Failure failure = Failure::kNone;
  std::string message;
};

}  // namespace jaxcc
