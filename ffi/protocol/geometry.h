// How a list of tensors is divided among ranks, and each rank's part into chunks of work.
//
// A tensor has `outer` rows of `extent` elements. In each row rank r owns [r * block, (r + 1) *
// block), cut off at extent, with block = ceil(extent / ranks); its slice buffers hold outer *
// block elements.
#pragma once

#include "peer_view.h"

namespace jaxcc {

// Chunks begin at a multiple of kUnit elements of a slice, so that they share no vector and no
// page's worth of lines.
constexpr int64_t kUnit = 1024;
constexpr int64_t kChunkUnits = 16;

struct Tensor {
  int64_t outer;
  int64_t extent;
  int64_t block;
  int64_t first_unit;  // units in one rank's slices of the tensors before this one
  int32_t first_operand;
  int32_t first_result;
};

struct Geometry {
  const Tensor* tensors;
  int32_t count;
  int32_t ranks;
  int64_t units;  // in one rank's slices of all tensors
};

struct Chunk {
  int32_t owner;
  int64_t index;  // in [0, chunks(geometry))
};

// Chunks in one rank's part; all ranks have the same number.
JAXCC_FN int64_t chunks(const Geometry& geometry) {
  return (geometry.units + kChunkUnits - 1) / kChunkUnits;
}

// Fills the fields that follow from `outer` and `extent`. Buffers are: `scalars`, then `operands`
// for each tensor, then `results` for each tensor.
JAXCC_FN Geometry divide(Tensor* tensors, int32_t count, int32_t ranks, int32_t scalars,
                         int32_t operands, int32_t results) {
  int64_t units = 0;
  for (int32_t t = 0; t < count; ++t) {
    Tensor& tensor = tensors[t];
    tensor.block = (tensor.extent + ranks - 1) / ranks;
    tensor.first_unit = units;
    tensor.first_operand = scalars + t * operands;
    tensor.first_result = scalars + count * operands + t * results;
    units += (tensor.outer * tensor.block + kUnit - 1) / kUnit;
  }
  return {tensors, count, ranks, units};
}

// Walks the tiles of a chunk. A tile never crosses a row, and a chunk may span many tensors.
class Tiles {
 public:
  JAXCC_FN Tiles(const PeerView& view, const Geometry& geometry, const Chunk& chunk)
      : geometry_(geometry), end_unit_((chunk.index + 1) * kChunkUnits) {
    const int64_t first_unit = chunk.index * kChunkUnits;
    int32_t low = 0;
    int32_t high =
        geometry.count;  // the last tensor that starts at or before the chunk is in [low, high)
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      (geometry.tensors[middle].first_unit <= first_unit ? low : high) = middle;
    }
    tensor_ = low;
    local_ = (first_unit - geometry.tensors[low].first_unit) * kUnit;
    tile_.buffers = view.buffers;
    tile_.ranks = geometry.ranks;
    tile_.owner = chunk.owner;
    tile_.stream = view.stream;
  }

  // Moves to the next tile; false at the end.
  JAXCC_FN bool next() {
    while (tensor_ < geometry_.count) {
      const Tensor& tensor = geometry_.tensors[tensor_];
      if (tensor.first_unit >= end_unit_) return false;
      const int64_t size = tensor.outer * tensor.block;
      const int64_t limit = (end_unit_ - tensor.first_unit) * kUnit;
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
      tile_.first_operand = tensor.first_operand;
      tile_.first_result = tensor.first_result;
      return true;
    }
    return false;
  }

  JAXCC_FN const jaxcc_tile& tile() const { return tile_; }

 private:
  const Geometry& geometry_;
  int64_t end_unit_;
  int32_t tensor_;
  int64_t local_;  // element in the owner's slice of the current tensor
  jaxcc_tile tile_;
};

}  // namespace jaxcc
