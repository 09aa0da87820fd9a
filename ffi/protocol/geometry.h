// How a list of tensors is divided among the ranks of a team, and each rank's part into chunks of
// work.
//
// A tensor has `outer` rows of `extent` elements. In each row rank r owns [r * block, (r + 1) *
// block), cut off at extent, with block >= extent / ranks; its slice buffers hold outer * block
// elements.
#pragma once

#include "peer_view.h"

namespace jaxcc {

// Chunks begin at a multiple of kUnit elements of a slice, so that they share no vector and no
// page's worth of lines; for kernels that need whole rows, at a multiple of rows of as many.
constexpr int64_t kUnit = 1024;
constexpr int64_t kChunkUnits = 16;

// What tensors of one kind have in common.
struct Kind {
  int32_t operands;
  int32_t results;
  int32_t totals;  // of the results, reductions over all elements
  int64_t row;     // elements that the kernel needs together
};

struct Tensor {
  int64_t outer;
  int64_t extent;
  int64_t block;
  int32_t kind;
  int32_t first_scalar;
  int64_t unit;        // elements
  int64_t first_unit;  // units in one rank's slices of the tensors before this one
  int32_t first_operand;
  int32_t first_result;
};

struct Geometry {
  const Tensor* tensors;
  int32_t count;
  int32_t ranks;   // in a team
  int32_t totals;  // the most that a tensor has
  int64_t units;   // in one rank's slices of all tensors
  int32_t teams = 1;
  const int32_t* targets =
      nullptr;  // of each team the one that it sends to or -1; null: none sends
};

struct Chunk {
  int32_t owner;  // its rank in the group
  int64_t index;  // in [0, chunks(geometry))
};

// Chunks in one rank's part; all ranks have the same number.
JAXCC_FN int64_t chunks(const Geometry& geometry) {
  return (geometry.units + kChunkUnits - 1) / kChunkUnits;
}

// Tensor t's elements in chunk c make the parts at place c + t of those of the chunk's owner.
JAXCC_FN int64_t places(const Geometry& geometry) { return chunks(geometry) + geometry.count; }

JAXCC_FN int64_t parts(const Geometry& geometry) {
  return geometry.teams * geometry.ranks * places(geometry) * geometry.totals;
}

// Fills the fields that follow from the first five. Buffers are: `scalars`, then each tensor's
// operands, then each tensor's results.
JAXCC_FN Geometry divide(Tensor* tensors, int32_t count, int32_t ranks, int32_t scalars,
                         const Kind* kinds) {
  int64_t units = 0;
  int32_t totals = 0;
  int32_t next = scalars;
  for (int32_t t = 0; t < count; ++t) {
    Tensor& tensor = tensors[t];
    const Kind& kind = kinds[tensor.kind];
    tensor.unit = (kUnit + kind.row - 1) / kind.row * kind.row;
    tensor.first_unit = units;
    tensor.first_operand = next;
    next += kind.operands;
    units += (tensor.outer * tensor.block + tensor.unit - 1) / tensor.unit;
    if (kind.totals > totals) totals = kind.totals;
  }
  for (int32_t t = 0; t < count; ++t) {
    tensors[t].first_result = next;
    next += kinds[tensors[t].kind].results;
  }
  return {tensors, count, ranks, totals, units};
}

// Walks the tiles of a chunk. A tile never crosses a row, and a chunk may span many tensors.
class Tiles {
 public:
  JAXCC_FN Tiles(const PeerView& view, const Geometry& geometry, const Chunk& chunk)
      : Tiles(view, geometry, chunk.owner, chunk.index * kChunkUnits,
              (chunk.index + 1) * kChunkUnits) {}

  // Of the units [first_unit, end_unit) of an owner's slices: those of one chunk, or of several if
  // the tiles' parts are not written.
  JAXCC_FN Tiles(const PeerView& view, const Geometry& geometry, int32_t owner, int64_t first_unit,
                 int64_t end_unit)
      : geometry_(geometry), end_unit_(end_unit) {
    int32_t low = 0;
    int32_t high =
        geometry.count;  // the last tensor that starts at or before the chunk is in [low, high)
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      (geometry.tensors[middle].first_unit <= first_unit ? low : high) = middle;
    }
    tensor_ = low;
    if (geometry.count) {
      local_ = (first_unit - geometry.tensors[low].first_unit) * geometry.tensors[low].unit;
    }
    const int32_t ranks = geometry.ranks;
    const int32_t team = owner / ranks;
    tile_.buffers = view.buffers + team * ranks;
    tile_.targets = nullptr;
    tile_.receives = 0;
    if (geometry.targets) {
      const int32_t target = geometry.targets[team];
      if (target >= 0) tile_.targets = view.buffers + target * ranks;
      for (int32_t k = 0; k < geometry.teams; ++k) tile_.receives |= geometry.targets[k] == team;
    }
    tile_.ranks = ranks;
    tile_.owner = owner % ranks;
    tile_.stream = view.stream;
    place_ = owner * places(geometry) + first_unit / kChunkUnits;
    parts_ = view.parts;
  }

  // Moves to the next tile; false at the end.
  JAXCC_FN bool next() {
    while (tensor_ < geometry_.count) {
      const Tensor& tensor = geometry_.tensors[tensor_];
      if (tensor.first_unit >= end_unit_) return false;
      const int64_t size = tensor.outer * tensor.block;
      const int64_t limit = (end_unit_ - tensor.first_unit) * tensor.unit;
      const int64_t end = size < limit ? size : limit;
      if (local_ >= end) {
        ++tensor_;
        local_ = 0;
        continue;
      }
      const int64_t row = local_ / tensor.block;
      const int64_t first = local_ - row * tensor.block;
      int64_t last = first + (end - local_);
      if (last > tensor.block) last = tensor.block;
      local_ += last - first;
      const int64_t offset = tile_.owner * tensor.block;
      if (last > tensor.extent - offset) last = tensor.extent - offset;
      if (first >= last) continue;  // the last ranks' blocks may reach past the row
      tile_.begin = row * tensor.extent + offset + first;
      tile_.end = row * tensor.extent + offset + last;
      tile_.shift = row * (tensor.extent - tensor.block) + offset;
      tile_.kind = tensor.kind;
      tile_.first_scalar = tensor.first_scalar;
      tile_.first_operand = tensor.first_operand;
      tile_.first_result = tensor.first_result;
      tile_.parts = parts_ + (place_ + tensor_) * geometry_.totals;
      return true;
    }
    return false;
  }

  JAXCC_FN const jaxcc_tile& tile() const { return tile_; }

  // Which of the tensors the tile is a part of.
  JAXCC_FN int32_t tensor() const { return tensor_; }

 private:
  const Geometry& geometry_;
  int64_t end_unit_;
  int32_t tensor_;
  int64_t local_ = 0;  // element in the owner's slice of the current tensor
  int64_t place_;
  jaxcc_part* parts_;
  jaxcc_tile tile_;
};

// Calls `total` with the parts of each team's tensors.
template <class F>
JAXCC_FN void each_total(const PeerView& view, const Geometry& geometry, const F& total) {
  const int64_t stride = places(geometry) * geometry.totals;
  for (int32_t team = 0; team < geometry.teams; ++team) {
    const int32_t leader = team * geometry.ranks;
    for (int32_t t = 0; t < geometry.count; ++t) {
      const Tensor& tensor = geometry.tensors[t];
      const int64_t units = (tensor.outer * tensor.block + tensor.unit - 1) / tensor.unit;
      const int64_t first = tensor.first_unit / kChunkUnits;
      const int64_t last = units ? (tensor.first_unit + units - 1) / kChunkUnits + 1 : first;
      total(jaxcc_parts{
          view.buffers + leader, geometry.ranks, tensor.kind, tensor.first_result, geometry.totals,
          view.parts + leader * stride + (first + t) * geometry.totals, stride, last - first});
    }
  }
}

}  // namespace jaxcc
