// Collectives between ranks that share no buffers.
//
// Each rank has two outboxes. What it writes into one of them in one phase, the others read in the
// next, while it writes into the other; ranks meet between phases. So one barrier a phase is all.
//
// A platform has
//   char* out()                  where the rank writes in this phase
//   const char* in(int32_t r)    what rank r of the group wrote in the phase before
//   bool meet()                  ends the phase; false if the group failed
//   void copy(void* to, const void* from, int64_t bytes, bool stream)
//   lanes()                      how the caller's threads share a tile
#pragma once

#include "moves.h"
#include "staging.h"
#include "stream.h"

namespace jaxcc {

// What kernels get in place of the other ranks' buffers.
struct Stands {
  void*** team;     // of each rank of the team its buffers; the rank's own are there already
  void*** targets;  // of each rank of the team that receives: one list, however many they are
};

// The two-shot collective. While a window's parts are computed, the next one's operands go out, and
// the last one's results come in.
template <class Platform, class Epilogue>
class TwoShot {
 public:
  TwoShot(Platform& platform, const Epilogue& epilogue, const PeerView& view,
          const Geometry& geometry, const Staging& staging, int64_t outbox, const Stands& stands)
      : platform_(platform),
        epilogue_(epilogue),
        view_(view),
        geometry_(geometry),
        staging_(staging),
        outbox_(outbox),
        stands_(stands),
        team_(view.rank / geometry.ranks),
        place_(view.rank % geometry.ranks) {
    for (int32_t k = 0; geometry.targets && k < geometry.teams; ++k) {
      if (geometry.targets[k] == team_) source_ = k;
    }
  }

  bool run() {
    const int64_t count = windows(geometry_, staging_);
    for (int64_t w = 0;; ++w) {
      if (w < count) give(w);
      if (w > 0 && w <= count) compute(w - 1);
      if (w > 1) take(w - 2);
      if (w > count) break;
      if (!platform_.meet()) return false;
    }
    return geometry_.totals == 0 || total();
  }

 private:
  static bool is_read(int32_t reach) { return reach == kTeam; }

  // Where rank `of` of the team has what rank `reader` of it reads.
  int64_t section(int32_t of, int32_t reader) const {
    return (reader < of ? reader : reader - 1) * staging_.section;
  }
  int64_t results(bool sent) const {
    return (geometry_.ranks - 1) * staging_.section + (sent ? staging_.results : 0);
  }

  // The other ranks' parts of this one's operands go out.
  void give(int64_t w) {
    for (int32_t reader = 0; reader < geometry_.ranks; ++reader) {
      if (reader == place_) continue;
      char* const to = platform_.out() + section(place_, reader);
      each_tile(team_ * geometry_.ranks + reader, w, [&](const jaxcc_tile& tile, Window& window) {
        window.each_operand(is_read, [&](int32_t b, int64_t offset) {
          const int64_t size = staging_.buffers[b].size;
          platform_.copy(to + offset + (tile.begin - tile.shift - window.begin()) * size,
                         static_cast<const char*>(own()[b]) + tile.begin * size,
                         (tile.end - tile.begin) * size, false);
        });
      });
    }
  }

  void compute(int64_t w) {
    Window window(geometry_, staging_, w);
    for (int64_t first = window.first_unit(); first < window.end_unit();) {
      int64_t end = (first / kChunkUnits + 1) * kChunkUnits;
      if (end > window.end_unit()) end = window.end_unit();
      for (Tiles tiles(view_, geometry_, view_.rank, first, end); tiles.next();) {
        jaxcc_tile tile = tiles.tile();
        window.go_to(tiles.tensor());
        stand_in(tile, window);
        tile.buffers = stands_.team;
        if (tile.targets) tile.targets = stands_.targets;
        tile.stream = 0;  // what the others take comes out of the cache
        epilogue_.tile(tile, platform_.lanes());
      }
      first = end;
    }
  }

  // Points the other ranks' buffers at outboxes, so that the index that a kernel uses for the whole
  // array, or for a slice, falls on the part that is there.
  void stand_in(const jaxcc_tile& tile, const Window& window) {
    const auto at = [&](const char* part, int64_t first, int32_t b) {
      const uintptr_t address = reinterpret_cast<uintptr_t>(part);
      return reinterpret_cast<void*>(address - first * staging_.buffers[b].size);
    };
    const int64_t flat = tile.shift + window.begin();
    for (int32_t r = 0; r < geometry_.ranks; ++r) {
      if (r == place_) continue;
      const char* const in = platform_.in(team_ * geometry_.ranks + r) + section(r, place_);
      window.each_operand(is_read, [&](int32_t b, int64_t offset) {
        stands_.team[r][b] = at(in + offset, flat, b);
      });
      window.each_result([](int32_t) { return true; },
                         [&](int32_t b, int64_t offset) {
                           stands_.team[r][b] =
                               at(platform_.out() + results(false) + offset, flat, b);
                         });
    }
    if (!tile.targets) return;
    window.each_result(
        [](int32_t reach) { return reach != kTeam; },
        [&](int32_t b, int64_t offset) {
          const int64_t first = staging_.buffers[b].reach == kReceiver ? window.begin() : flat;
          stands_.targets[0][b] = at(platform_.out() + results(true) + offset, first, b);
        });
  }

  // The other ranks' results come in: those of the team, zeros for what nobody sends among them,
  // and those of the team that sends to it.
  void take(int64_t w) {
    const bool receives = source_ >= 0;
    for (int32_t r = 0; r < geometry_.ranks; ++r) {
      if (r == place_) continue;
      take_from(team_ * geometry_.ranks + r, w, false, [&](int32_t reach) {
        return reach == kTeam || (reach == kReceivers && !receives);
      });
    }
    for (int32_t r = 0; receives && r < geometry_.ranks; ++r) {
      take_from(source_ * geometry_.ranks + r, w, true, [&](int32_t reach) {
        return reach == kReceivers || (reach == kReceiver && r == place_);
      });
    }
  }

  template <class Wanted>
  void take_from(int32_t rank, int64_t w, bool sent, const Wanted& wanted) {
    const char* const in = platform_.in(rank) + results(sent);
    each_tile(rank, w, [&](const jaxcc_tile& tile, Window& window) {
      window.each_result(wanted, [&](int32_t b, int64_t offset) {
        const int64_t size = staging_.buffers[b].size;
        const int64_t local = tile.begin - tile.shift;
        const int64_t to = staging_.buffers[b].reach == kReceiver ? local : tile.begin;
        platform_.copy(static_cast<char*>(own()[b]) + to * size,
                       in + offset + (local - window.begin()) * size,
                       (tile.end - tile.begin) * size, view_.stream);
      });
    });
  }

  // Every rank makes the totals of its team, of all ranks' parts.
  bool total() {
    const int64_t bytes = places(geometry_) * geometry_.totals * int64_t{sizeof(jaxcc_part)};
    const auto parts = [&](int32_t rank) {
      return reinterpret_cast<char*>(view_.parts) + rank * bytes;
    };
    for (int64_t done = 0; done < bytes; done += outbox_) {
      const int64_t piece = bytes - done < outbox_ ? bytes - done : outbox_;
      platform_.copy(platform_.out(), parts(view_.rank) + done, piece, false);
      if (!platform_.meet()) return false;
      for (int32_t r = team_ * geometry_.ranks; r < (team_ + 1) * geometry_.ranks; ++r) {
        if (r != view_.rank) platform_.copy(parts(r) + done, platform_.in(r), piece, false);
      }
    }
    each_total(view_, geometry_, [&](jaxcc_parts total) {
      if (total.buffers != view_.buffers + team_ * geometry_.ranks) return;
      total.buffers = stands_.team;
      epilogue_.total(total);
    });
    return true;
  }

  template <class F>
  void each_tile(int32_t owner, int64_t w, const F& f) {
    Window window(geometry_, staging_, w);
    Tiles tiles(view_, geometry_, owner, window.first_unit(), window.end_unit());
    while (tiles.next()) {
      window.go_to(tiles.tensor());
      f(tiles.tile(), window);
    }
  }

  void* const* own() const { return view_.buffers[view_.rank]; }

  Platform& platform_;
  const Epilogue& epilogue_;
  const PeerView& view_;
  const Geometry& geometry_;
  const Staging& staging_;
  const int64_t outbox_;
  const Stands& stands_;
  const int32_t team_;
  const int32_t place_;
  int32_t source_ = -1;  // the team that sends to this one
};

// Puts `bytes` bytes of all ranks together: combine(out, in, ranks, bytes) as moves.h has it, with
// `out` past the cache if they are to be streamed.
template <class Combine>
void combine_to(const Combine& combine, char* out, const void** in, int32_t ranks, int64_t bytes,
                bool past_cache) {
  if (!past_cache) {
    combine(out, in, ranks, bytes);
    return;
  }
  constexpr int64_t kBytes = 8192;  // of every element's size a multiple
  alignas(64) char block[kBytes];
  for (int64_t at = 0; at < bytes; at += kBytes) {
    const int64_t size = bytes - at < kBytes ? bytes - at : kBytes;
    combine(block, in, ranks, size);
    stream(out + at, block, size);
    for (int32_t r = 0; r < ranks; ++r) in[r] = static_cast<const char*>(in[r]) + size;
  }
}

// The one-shot all-reduce: each rank gives all that it has, a window at a time, and reduces
// everything itself. Less waiting than the two-shot, and more reading. Buffer 0 of a rank is its
// operand, 1 its result.
template <class Platform, class Combine>
bool one_shot(Platform& platform, const Combine& combine, const PeerView& view, int64_t bytes,
              int64_t window) {
  constexpr int32_t kRanks = 64;
  void* const* const own = view.buffers[view.rank];
  const char* const operand = static_cast<const char*>(own[0]);
  char* const result = static_cast<char*>(own[1]);
  const auto size = [&](int64_t at) { return bytes - at < window ? bytes - at : window; };
  int64_t given = 0;  // an empty one, too, has a phase: ranks compare what they are in
  platform.copy(platform.out(), operand, size(0), false);
  do {
    if (!platform.meet()) return false;
    const int64_t at = given;
    given += size(given);
    if (given < bytes) platform.copy(platform.out(), operand + given, size(given), false);
    const void* in[kRanks];
    for (int32_t r = 0; r < view.ranks; ++r) in[r] = platform.in(r);
    in[view.rank] = operand + at;
    combine_to(combine, result + at, in, view.ranks, given - at, view.stream);
  } while (given < bytes);
  return true;
}

}  // namespace jaxcc
