// What the ranks of a group compute together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/collective.h"

namespace jaxcc {

// What all ranks of a group must agree on before one touches another's buffers.
struct Signature {
  std::string op;    // for messages
  std::string text;  // everything that must agree, readable
  std::vector<Kind> kinds;
  std::vector<Tensor> tensors;
  std::vector<int32_t> targets;  // of each team; empty if none sends
  Geometry geometry;
  int64_t elements = 0;  // of all tensors of all teams together
};

// Integers that someone else owns.
struct Integers {
  const int64_t* data;
  size_t count;

  size_t size() const { return count; }
  int64_t operator[](size_t i) const { return data[i]; }
  const int64_t* begin() const { return data; }
  const int64_t* end() const { return data + count; }
};

// Adds to a signature what the attributes of a fused call say (see fused.h) of its kinds, tensors
// and teams. Returns what is wrong with them, or an empty string.
std::string describe(Signature& signature, int64_t ranks, int64_t team, Integers targets,
                     int64_t scalars, Integers kinds, Integers geometry);

}  // namespace jaxcc
