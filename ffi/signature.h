// What the ranks of a group compute together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "protocol/collective.h"
#include "protocol/moves.h"

namespace jaxcc {

constexpr int kMaxRanks = 32;

// What all ranks of a group must agree on before one touches another's buffers.
struct Signature {
  std::string op;      // for messages
  std::string text;    // everything that must agree, readable: the op, and details in a second line
  int64_t chunks = 0;  // of the work; each rank begins with as many
  int64_t parts = 0;   // of totals
  bool small = false;  // less work than it takes to tell another rank of it
};

// Of a fused call.
struct FusedSignature : Signature {
  // Up to this many elements the last rank to come does all the work.
  static constexpr int64_t kSmallElements = 4096;

  std::vector<Kind> kinds;
  std::vector<Tensor> tensors;
  std::vector<int32_t> targets;  // of each team; empty if none sends
  Geometry geometry;
  int64_t elements = 0;  // of all tensors of all teams together

  // Fills `geometry`, and what follows from it; `scalars` as in divide.
  void divide_among(int64_t team, int64_t teams, int64_t scalars);
};

// Of a list of moves.
struct MoveSignature : Signature {
  // Up to this many bytes the last rank to come does all the work.
  static constexpr int64_t kSmallBytes = 1 << 14;

  std::vector<Move> list;
  Moves moves;
  int64_t operand_bytes = 0;
  int64_t result_bytes = 0;
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

// The op of a signature's text.
std::string op_of(const std::string& text);

// The message that two ranks of `group` came to collectives with these unlike texts.
std::string unlike(const std::string& group, int rank, const std::string& text, int peer,
                   const std::string& peer_text);

// Adds to a signature what the attributes of a fused call say (see fused.h) of its kinds, tensors
// and teams. Returns what is wrong with them, or an empty string.
std::string describe(FusedSignature& signature, int64_t ranks, int64_t team, Integers targets,
                     int64_t scalars, Integers kinds, Integers geometry);

// Adds the moves of `list` (see move.h), which reduce with `combine`, if at all. Each rank's
// operand and result must have been given their sizes.
std::string describe(MoveSignature& signature, int64_t ranks, Combine combine, Integers list);

}  // namespace jaxcc
