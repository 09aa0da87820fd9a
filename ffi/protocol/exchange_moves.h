// Moves between ranks that share no buffers.
//
// Each target's result is written from its first move to its last, a window at a time and all
// targets beside one another, so that all ranks have as much to do. An outbox has a section for
// each target: what the rank gives of the target's window, at its place there.
#pragma once

#include "moves.h"

namespace jaxcc {

// A platform is that of exchange.h.
template <class Platform>
class MoveExchange {
 public:
  MoveExchange(Platform& platform, const PeerView& view, const Moves& moves, int64_t outbox)
      : platform_(platform),
        view_(view),
        moves_(moves),
        window_(outbox / view.ranks / kAlign * kAlign) {}

  bool run() {
    int64_t most = 0, first = 0;
    for (int32_t m = 0; m < moves_.count; ++m) {
      const Move& move = moves_.moves[m];
      if (m && move.target != moves_.moves[m - 1].target) first = move.before;
      const int64_t end = move.before + move.bytes - first;
      if (end > most) most = end;
    }
    const int64_t count = most > window_ ? (most + window_ - 1) / window_ : 1;
    for (int64_t w = 0;; ++w) {
      if (w < count) give(w);
      if (w > 0) take(w - 1);
      if (w == count) return true;
      if (!platform_.meet()) return false;
    }
  }

 private:
  static constexpr int64_t kAlign = 64;  // a multiple of every element's size
  static constexpr int32_t kRanks = 64;

  // What a rank gives itself goes straight from its operand to its result, unless it is reduced
  // with what the others give.
  bool gives(const Move& move) const {
    return move.source == kEveryone || (move.source == view_.rank && move.target != view_.rank);
  }

  void give(int64_t w) {
    each_part(w, [&](const Move& move, int64_t place, int64_t begin, int64_t end) {
      if (!gives(move)) return;
      Move out = move;
      out.source = view_.rank;
      out.to = contiguous(move);
      store_at(out, own(0), platform_.out() + move.target * window_, place, begin, end, false);
    });
  }

  void take(int64_t w) {
    each_part(w, [&](const Move& move, int64_t place, int64_t begin, int64_t end) {
      if (move.target != view_.rank) return;
      if (move.source == kNobody || move.source == view_.rank) {
        store_part(view_, moves_, move, begin, end);
        return;
      }
      Move in = move;
      in.from = contiguous(move);
      void* parts[kRanks][2];
      void* const* buffers[kRanks];
      for (int32_t r = 0; r < view_.ranks; ++r) {
        const char* const section = platform_.in(r) + view_.rank * window_;
        parts[r][0] = biased(section, place - begin);
        parts[r][1] = own(1);
        buffers[r] = parts[r];
      }
      PeerView view = view_;
      view.buffers = buffers;
      store_part(view, moves_, in, begin, end);
    });
  }

  // Calls part(move, place, begin, end) for the bytes [begin, end) of each move that are in window
  // w of its target, `place` bytes into it.
  template <class F>
  void each_part(int64_t w, const F& part) const {
    int64_t first = 0;  // byte of all moves, of the target's first
    for (int32_t m = 0; m < moves_.count; ++m) {
      const Move& move = moves_.moves[m];
      if (m && move.target != moves_.moves[m - 1].target) first = move.before;
      const int64_t at = move.before - first;
      const int64_t from = w * window_ > at ? w * window_ - at : 0;
      const int64_t left = (w + 1) * window_ - at;
      const int64_t end = left < move.bytes ? left : move.bytes;
      if (from < end) part(move, at + from - w * window_, from, end);
    }
  }

  // Stores a part of a move from `operand` to `section`, where it begins at `place`.
  void store_at(const Move& move, void* operand, char* section, int64_t place, int64_t begin,
                int64_t end, bool past_cache) const {
    void* buffers[kRanks][2];
    void* const* lists[kRanks];
    buffers[view_.rank][0] = operand;
    buffers[move.target][1] = biased(section, place - begin);
    if (move.target != view_.rank) lists[move.target] = buffers[move.target];
    lists[view_.rank] = buffers[view_.rank];
    PeerView view = view_;
    view.buffers = lists;
    view.stream = past_cache;
    store_part(view, moves_, move, begin, end);
  }

  static Side contiguous(const Move& move) { return {0, move.bytes, move.bytes}; }
  static void* biased(const char* at, int64_t offset) {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) + offset);
  }
  void* own(int32_t buffer) const { return view_.buffers[view_.rank][buffer]; }

  Platform& platform_;
  const PeerView& view_;
  const Moves& moves_;
  const int64_t window_;  // bytes
};

}  // namespace jaxcc
