// Collectives that copy: every byte of every rank's result comes from one rank's operand, from the
// reduction of what all operands have at that place, or is zero.
//
// They are told as a list of moves, which knows nothing of threads or processes. Whoever has time
// takes the next chunk of the bytes to be written, wherever they come from.
#pragma once

#include "geometry.h"
#include "stream.h"

namespace jaxcc {

// Where the bytes of a move lie in a buffer: in runs, `stride` bytes from one to the next.
struct Side {
  int64_t offset;
  int64_t run;
  int64_t stride;
};

// Sources that are no rank.
constexpr int32_t kNobody = -1;    // zeros
constexpr int32_t kEveryone = -2;  // the reduction of all operands

struct Move {
  int32_t source;
  int32_t target;
  int64_t bytes;
  Side from;
  Side to;
  int64_t before;  // bytes of the moves before this one
};

// Reduces `bytes` bytes of the ranks' numbers, in the order of ranks. `out` may be one of `in`.
typedef void (*jaxcc_combine_fn)(void* out, const void* const* in, int32_t ranks, int64_t bytes);

struct Moves {
  const Move* moves;  // in the order of targets, so that ranks begin with results of their own
  int32_t count;
  int32_t ranks;
  int64_t bytes;  // of all moves
  jaxcc_combine_fn combine;
};

// Ranks that a list may name.
constexpr int32_t kMoveRanks = 64;

// Bytes in a chunk: divisible by the size of every element.
constexpr int64_t kMoveChunk = 1 << 16;

// Bytes that one rank begins with.
inline int64_t share(const Moves& moves) {
  const int64_t even = (moves.bytes + moves.ranks - 1) / moves.ranks;
  return (even + 63) / 64 * 64;
}

// Chunks that each rank begins with.
inline int64_t chunks(const Moves& moves) { return (share(moves) + kMoveChunk - 1) / kMoveChunk; }

// A place in a Side, which moves on.
class Place {
 public:
  Place(const Side& side, int64_t at) : side_(side), row_(at / side.run), in_(at % side.run) {}

  int64_t offset() const { return side_.offset + row_ * side_.stride + in_; }
  int64_t left() const { return side_.run - in_; }  // in the run
  void advance(int64_t bytes) {
    in_ += bytes;
    if (in_ == side_.run) {
      in_ = 0;
      ++row_;
    }
  }

 private:
  const Side& side_;
  int64_t row_;
  int64_t in_;
};

// A copy of a few bytes, in one or two instructions where it is one number.
inline void copy_run(char* to, const char* from, int64_t bytes, bool past_cache) {
  switch (bytes) {
    case 4:
      __builtin_memcpy(to, from, 4);
      return;
    case 8:
      __builtin_memcpy(to, from, 8);
      return;
    case 16:
      __builtin_memcpy(to, from, 16);
      return;
  }
  copy(to, from, bytes, past_cache && bytes >= 1024);
}

// Stores the bytes [begin, end) of one move. Buffer 0 of a rank is its operand, 1 its result.
inline void store_part(const PeerView& view, const Moves& moves, const Move& move, int64_t begin,
                       int64_t end) {
  char* const result = static_cast<char*>(view.buffers[move.target][1]);
  Place to(move.to, begin);
  Place from(move.source == kNobody ? move.to : move.from, begin);
  for (int64_t at = begin; at < end;) {
    int64_t bytes = end - at;
    if (to.left() < bytes) bytes = to.left();
    if (from.left() < bytes) bytes = from.left();
    char* const out = result + to.offset();
    if (move.source == kNobody) {
      __builtin_memset(out, 0, bytes);
    } else if (move.source == kEveryone) {
      const void* in[kMoveRanks];
      for (int32_t r = 0; r < moves.ranks; ++r) {
        in[r] = static_cast<const char*>(view.buffers[r][0]) + from.offset();
      }
      moves.combine(out, in, moves.ranks, bytes);
    } else {
      const char* const operand = static_cast<const char*>(view.buffers[move.source][0]);
      copy_run(out, operand + from.offset(), bytes, view.stream);
    }
    to.advance(bytes);
    from.advance(bytes);
    at += bytes;
  }
}

// Stores the bytes of a chunk.
inline void store(const PeerView& view, const Moves& moves, const Chunk& chunk) {
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  const int64_t first = chunk.owner * share(moves);
  const int64_t begin = first + chunk.index * kMoveChunk;
  const int64_t end = least(least(begin + kMoveChunk, first + share(moves)), moves.bytes);
  if (begin >= end) return;
  int32_t low = 0;
  int32_t high = moves.count;  // the last move that starts at or before `begin` is in [low, high)
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (moves.moves[middle].before <= begin ? low : high) = middle;
  }
  for (int64_t at = begin; at < end; ++low) {
    const Move& move = moves.moves[low];
    const int64_t last = least(end, move.before + move.bytes);
    store_part(view, moves, move, at - move.before, last - move.before);
    at = last;
  }
}

// Runs the moves on a platform as collective.h describes it.
template <class Platform>
bool move_all(Platform& platform, const PeerView& view, const Moves& moves) {
  if (!platform.enter()) return false;
  const int64_t count = chunks(moves);
  Chunk chunk;
  while (platform.claim(count, &chunk)) store(view, moves, chunk);
  return platform.leave([] {});
}

}  // namespace jaxcc
