#include "signature.h"

#include <algorithm>

namespace jaxcc {

void FusedSignature::divide_among(int64_t team, int64_t teams, int64_t scalars) {
  geometry = divide(tensors.data(), static_cast<int32_t>(tensors.size()),
                    static_cast<int32_t>(team), static_cast<int32_t>(scalars), kinds.data());
  geometry.teams = static_cast<int32_t>(teams);
  if (targets.size()) geometry.targets = targets.data();
  chunks = jaxcc::chunks(geometry);
  parts = jaxcc::parts(geometry);
  small = elements <= kSmallElements;
}

std::string op_of(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string unlike(const std::string& group, int rank, const std::string& text, int peer,
                   const std::string& peer_text) {
  // How the op is run is of interest only where the op is the same.
  const bool same_op = op_of(text) == op_of(peer_text);
  const auto shown = [&](std::string whole) {
    const size_t details = whole.find('\n');
    if (!same_op || details == std::string::npos) return op_of(whole);
    return whole.replace(details, 1, ": ");
  };
  return "[BACKEND_MISMATCH] the ranks of " + group + " came to different collectives: rank " +
         std::to_string(rank) + " to " + shown(text) + "; rank " + std::to_string(peer) + " to " +
         shown(peer_text) +
         "; give all ranks the same ones in the same order: look for a branch, a loop's length or "
         "a shape that differs between ranks";
}

std::string describe(FusedSignature& signature, int64_t ranks, int64_t team, Integers targets,
                     int64_t scalars, Integers kinds, Integers shape) {
  const std::string contradict = "the attributes contradict each other";
  if (team < 1 || ranks % team) {
    return "groups of " + std::to_string(ranks) + " ranks are not teams of " + std::to_string(team);
  }
  const int64_t teams = ranks / team;
  const int64_t count = static_cast<int64_t>(shape.size() / 5);
  if (shape.size() % 5 || kinds.size() % 4 || count > INT32_MAX || scalars < 0) return contradict;
  for (size_t k = 0; k < kinds.size(); k += 4) {
    for (size_t n = 0; n < 3; ++n) {
      if (kinds[k + n] < 0 || kinds[k + n] > INT32_MAX) return contradict;
    }
    const int64_t row = kinds[k + 3];
    if (kinds[k + 1] < 1 || kinds[k + 2] > kinds[k + 1] || row < 1 || row > int64_t{1} << 40) {
      return contradict;
    }
    signature.kinds.push_back({static_cast<int32_t>(kinds[k]), static_cast<int32_t>(kinds[k + 1]),
                               static_cast<int32_t>(kinds[k + 2]), row});
  }
  if (targets.size() && static_cast<int64_t>(targets.size()) != teams) return contradict;
  std::vector<bool> receives(teams);
  for (int64_t target : targets) {
    if (target < -1 || target >= teams) return contradict;
    if (target >= 0 && receives[target]) {
      return "two teams send to team " + std::to_string(target);
    }
    if (target >= 0) receives[target] = true;
    signature.targets.push_back(static_cast<int32_t>(target));
  }
  for (int64_t t = 0; t < count; ++t) {
    const int64_t outer = shape[5 * t];
    const int64_t extent = shape[5 * t + 1];
    const int64_t block = shape[5 * t + 2];
    const int64_t kind = shape[5 * t + 3];
    const int64_t first_scalar = shape[5 * t + 4];
    const std::string name = "tensor " + std::to_string(t);
    if (kind < 0 || kind >= static_cast<int64_t>(signature.kinds.size()) || first_scalar < 0 ||
        first_scalar > scalars) {
      return contradict;
    }
    int64_t size, slice;
    if (outer < 0 || extent < 0 || block < 0 || __builtin_mul_overflow(outer, extent, &size) ||
        __builtin_mul_overflow(outer, block, &slice) || slice > INT64_MAX / 4 / ranks ||
        size > INT64_MAX / 4 / ranks - signature.elements) {
      return name + " has an impossible size";
    }
    const int64_t even = (extent + team - 1) / team;
    if (block < even) {
      return name + " has rows of " + std::to_string(extent) + " elements, more than " +
             std::to_string(team) + " blocks of " + std::to_string(block);
    }
    const int64_t row = signature.kinds[kind].row;
    if (extent % row || block % row) {
      return "a rank's part of " + name + " is not whole rows of " + std::to_string(row);
    }
    signature.elements += teams * size;
    signature.tensors.push_back({outer, extent, block, static_cast<int32_t>(kind),
                                 static_cast<int32_t>(first_scalar), 0, 0, 0, 0});
    signature.text += " " + std::to_string(outer) + "x" + std::to_string(extent);
    if (block != even) signature.text += " in blocks of " + std::to_string(block);
    if (signature.kinds.size() > 1) signature.text += " of kind " + std::to_string(kind);
  }
  signature.divide_among(team, teams, scalars);
  if (targets.size()) {
    signature.text += ", sent to teams";
    for (int64_t target : targets) signature.text += " " + std::to_string(target);
  }
  return "";
}

namespace {

// Whether `bytes` bytes in the runs of `side` lie within a buffer.
bool within(const Side& side, int64_t bytes, int64_t buffer) {
  if (side.offset < 0 || side.run < 1 || bytes % side.run || side.stride < side.run) return false;
  const int64_t rows = bytes / side.run;
  int64_t last, end;
  return !__builtin_mul_overflow(rows - 1, side.stride, &last) &&
         !__builtin_add_overflow(last, side.run, &end) &&
         !__builtin_add_overflow(end, side.offset, &end) && end <= buffer;
}

// Rows and columns of a result that is cut into rows of `width` bytes.
struct Rectangle {
  int64_t row, rows, column, columns;

  bool meets(const Rectangle& other) const {
    return row < other.row + other.rows && other.row < row + rows &&
           column < other.column + other.columns && other.column < column + columns;
  }
};

// Whether the moves [first, last) to one result write each of its bytes once.
bool cover(const Move* first, const Move* last, int64_t bytes) {
  int64_t width = bytes;
  for (const Move* move = first; move < last; ++move) {
    if (move->bytes > move->to.run) width = move->to.stride;
  }
  std::vector<Rectangle> seen;
  int64_t written = 0;
  for (const Move* move = first; move < last; ++move) {
    const Side& to = move->to;
    Rectangle next{to.offset / width, move->bytes / to.run, to.offset % width, to.run};
    const bool whole_rows = next.rows == 1 && next.column == 0 && to.run % width == 0;
    if (whole_rows) next = {next.row, to.run / width, 0, width};
    if (next.column + next.columns > width ||
        (next.rows > 1 && !whole_rows && to.stride != width)) {
      return false;
    }
    for (const Rectangle& one : seen) {
      if (one.meets(next)) return false;
    }
    seen.push_back(next);
    written += move->bytes;
  }
  return written == bytes;
}

// Of a list that is too long to be shown.
uint64_t hash(Integers list) {
  uint64_t sum = 0xcbf29ce484222325;
  for (int64_t number : list) {
    for (int shift = 0; shift < 64; shift += 8) {
      sum = (sum ^ (static_cast<uint64_t>(number) >> shift & 0xff)) * 0x100000001b3;
    }
  }
  return sum;
}

}  // namespace

std::string describe(MoveSignature& signature, int64_t ranks, Combine combine, Integers list) {
  constexpr size_t kFields = 9;
  if (list.size() % kFields) return "its moves are not of 9 numbers each";
  int64_t total;
  if (ranks < 1 || ranks > kMoveRanks) return "it has " + std::to_string(ranks) + " ranks";
  if (signature.operand_bytes < 0 || signature.result_bytes < 0 ||
      __builtin_mul_overflow(signature.result_bytes, ranks, &total)) {
    return "its buffers have impossible sizes";
  }
  for (size_t k = 0; k < list.size(); k += kFields) {
    const std::string name = "move " + std::to_string(k / kFields);
    const int64_t source = list[k], target = list[k + 1], bytes = list[k + 2];
    const Side from{list[k + 3], list[k + 4], list[k + 5]};
    const Side to{list[k + 6], list[k + 7], list[k + 8]};
    if (source < kEveryone || source >= ranks || target < 0 || target >= ranks || bytes < 1) {
      return name + " is between ranks that are not there, or of nothing";
    }
    if (!within(to, bytes, signature.result_bytes) ||
        (source != kNobody && !within(from, bytes, signature.operand_bytes))) {
      return name + " does not stay within the buffers";
    }
    if (source == kEveryone) {
      if (!combine.run) return name + " reduces, and no reduction is given";
      for (int64_t place : {bytes, from.offset, from.run, from.stride, to.offset, to.run}) {
        if (place % combine.size) return name + " cuts a number apart";
      }
    }
    signature.list.push_back(
        {static_cast<int32_t>(source), static_cast<int32_t>(target), bytes, from, to, 0});
  }
  std::stable_sort(signature.list.begin(), signature.list.end(),
                   [](const Move& a, const Move& b) { return a.target < b.target; });
  const Move* next = signature.list.data();
  const Move* const end = next + signature.list.size();
  for (int32_t target = 0; target < ranks; ++target) {
    const Move* last = next;
    while (last < end && last->target == target) ++last;
    if (!cover(next, last, signature.result_bytes)) {
      return "the result of rank " + std::to_string(target) + " is not written once everywhere";
    }
    next = last;
  }
  int64_t before = 0;
  for (Move& move : signature.list) {
    move.before = before;
    before += move.bytes;
  }
  signature.moves = {signature.list.data(), static_cast<int32_t>(signature.list.size()),
                     static_cast<int32_t>(ranks), before, combine.run};
  signature.chunks = chunks(signature.moves);
  signature.small = before <= MoveSignature::kSmallBytes;
  signature.text += " " + std::to_string(signature.operand_bytes) + " bytes to " +
                    std::to_string(signature.result_bytes) + ", moves " +
                    std::to_string(hash(list));
  return "";
}

}  // namespace jaxcc
