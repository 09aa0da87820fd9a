// The two-shot collective: each part is reduced, computed and stored for all ranks by whoever
// claims it.
//
// A platform has
//   bool enter()                         returns when every rank's operands may be read and its
//                                        results written
//   bool claim(int64_t count, Chunk*)    the next chunk for this caller, of `count` for each rank;
//                                        false when none is left
//   Lanes lanes()                        how the caller's threads share a tile
//   bool leave(totals)                   returns when every chunk has been stored and `totals`
//                                        called, by one caller for all ranks
// where enter and leave are false if the group failed; nobody then touches a peer's buffers.
#pragma once

#include "geometry.h"

namespace jaxcc {

template <class Platform, class Epilogue>
JAXCC_FN bool two_shot(Platform& platform, const Epilogue& epilogue, const PeerView& view,
                       const Geometry& geometry) {
  if (!platform.enter()) return false;
  const auto lanes = platform.lanes();
  const int64_t count = chunks(geometry);
  Chunk chunk;
  while (platform.claim(count, &chunk)) {
    for (Tiles tiles(view, geometry, chunk); tiles.next();) epilogue.tile(tiles.tile(), lanes);
  }
  return platform.leave([&] {
    if (geometry.totals == 0) return;
    each_total(view, geometry, [&](const jaxcc_parts& parts) { epilogue.total(parts); });
  });
}

}  // namespace jaxcc
