// What ranks that share no buffers leave for each other: parts of operands before the work, parts
// of results after it, a window of the geometry at a time.
//
// An outbox begins with a section for each other rank of the team: its part of each whole operand.
// After those lies the rank's own part of each result that others get, for the team, and then for
// the team that it sends to. A part is laid out as the owner's block is, of one tensor after
// another.
#pragma once

#include "geometry.h"

namespace jaxcc {

// Whose a buffer is.
enum Reach : int32_t {
  kOwner,      // read or written by its owner alone
  kTeam,       // an operand that the whole team reads, or a result that all of it gets
  kReceiver,   // a result for the rank in the owner's place of the team that receives it
  kReceivers,  // a result for all ranks of that team
  kTotal,      // a number for all ranks
};

struct Buffer {
  int32_t reach;
  int32_t size;  // bytes of an element
};

// Parts begin at cache lines.
constexpr int64_t kPartAlign = 64;

struct Staging {
  const Kind* kinds;
  const Buffer* buffers;  // in the order that abi.h gives
  int64_t units;          // of each rank's slices, in a window; 0 if not even one fits
  int64_t section;        // bytes of one rank's section
  int64_t results;        // bytes of the results for one team
};

JAXCC_FN int64_t part_bytes(int64_t elements, int32_t size) {
  return (elements * size + kPartAlign - 1) / kPartAlign * kPartAlign;
}

// Divides the geometry into windows that fit into an outbox of so many bytes.
JAXCC_FN Staging plan_staging(const Geometry& geometry, const Kind* kinds, const Buffer* buffers,
                              int64_t outbox) {
  int64_t section = 0, results = 0;  // of one unit
  for (int32_t t = 0; t < geometry.count; ++t) {
    const Tensor& tensor = geometry.tensors[t];
    const Kind& kind = kinds[tensor.kind];
    int64_t read = 0, written = 0;
    for (int32_t k = 0; k < kind.operands; ++k) {
      const Buffer& buffer = buffers[tensor.first_operand + k];
      if (buffer.reach == kTeam) read += part_bytes(tensor.unit, buffer.size);
    }
    for (int32_t k = 0; k < kind.results; ++k) {
      const Buffer& buffer = buffers[tensor.first_result + k];
      if (buffer.reach != kOwner && buffer.reach != kTotal) {
        written += part_bytes(tensor.unit, buffer.size);
      }
    }
    if (read > section) section = read;
    if (written > results) results = written;
  }
  const int64_t teams = geometry.targets ? 2 : 1;
  const int64_t need = (geometry.ranks - 1) * section + teams * results;
  // Windows end where chunks do, or divide them: a chunk's parts of totals are made in one order.
  const int64_t all = geometry.units > 0 ? geometry.units : 1;
  int64_t units = need ? outbox / need : all;
  if (units >= all) {
    units = all;
  } else if (units >= kChunkUnits) {
    units -= units % kChunkUnits;
  } else {
    while (units & (units - 1)) units &= units - 1;
  }
  return {kinds, buffers, units, units * section, units * results};
}

JAXCC_FN int64_t windows(const Geometry& geometry, const Staging& staging) {
  return (geometry.units + staging.units - 1) / staging.units;
}

// Where the parts of a window's tensors lie in a section, and in the results.
class Window {
 public:
  JAXCC_FN Window(const Geometry& geometry, const Staging& staging, int64_t index)
      : geometry_(geometry), staging_(staging), first_(index * staging.units) {
    end_ = first_ + staging.units;
    if (end_ > geometry.units) end_ = geometry.units;
  }

  JAXCC_FN int64_t first_unit() const { return first_; }
  JAXCC_FN int64_t end_unit() const { return end_; }

  // Goes on to a tensor of the window, none before the one asked for last.
  JAXCC_FN void go_to(int32_t t) {
    if (t == tensor_) return;
    if (tensor_ < 0) tensor_ = t;  // the window's first tensor that has elements
    for (;; ++tensor_) {
      const Tensor& tensor = geometry_.tensors[tensor_];
      const int64_t from = first_ > tensor.first_unit ? first_ - tensor.first_unit : 0;
      const int64_t size = tensor.outer * tensor.block;
      int64_t end = (end_ - tensor.first_unit) * tensor.unit;
      begin_ = from * tensor.unit;
      if (end > size) end = size;
      elements_ = end > begin_ ? end - begin_ : 0;
      if (tensor_ == t) return;
      const Kind& kind = staging_.kinds[tensor.kind];
      operands_ += bytes(tensor.first_operand, kind.operands);
      results_ += bytes(tensor.first_result, kind.results);
    }
  }

  // The first element of the owner's block that is in the window.
  JAXCC_FN int64_t begin() const { return begin_; }

  // Calls part(buffer, offset) for those of the tensor's operands, or results, that `wanted` takes.
  template <class Wanted, class F>
  JAXCC_FN void each_operand(const Wanted& wanted, const F& part) const {
    const Tensor& tensor = geometry_.tensors[tensor_];
    const Kind& kind = staging_.kinds[tensor.kind];
    each(tensor.first_operand, kind.operands, operands_, wanted, part);
  }
  template <class Wanted, class F>
  JAXCC_FN void each_result(const Wanted& wanted, const F& part) const {
    const Tensor& tensor = geometry_.tensors[tensor_];
    const Kind& kind = staging_.kinds[tensor.kind];
    each(tensor.first_result, kind.results, results_, wanted, part);
  }

 private:
  JAXCC_FN bool staged(int32_t buffer) const {
    const int32_t reach = staging_.buffers[buffer].reach;
    return reach != kOwner && reach != kTotal;
  }

  JAXCC_FN int64_t bytes(int32_t first, int32_t count) const {
    int64_t sum = 0;
    for (int32_t b = first; b < first + count; ++b) {
      if (staged(b)) sum += part_bytes(elements_, staging_.buffers[b].size);
    }
    return sum;
  }

  template <class Wanted, class F>
  JAXCC_FN void each(int32_t first, int32_t count, int64_t offset, const Wanted& wanted,
                     const F& part) const {
    for (int32_t b = first; b < first + count; ++b) {
      if (!staged(b)) continue;
      if (wanted(staging_.buffers[b].reach)) part(b, offset);
      offset += part_bytes(elements_, staging_.buffers[b].size);
    }
  }

  const Geometry& geometry_;
  const Staging& staging_;
  int64_t first_;
  int64_t end_;
  int32_t tensor_ = -1;
  int64_t begin_ = 0;
  int64_t elements_ = 0;  // of the current tensor in the window
  int64_t operands_ = 0;  // bytes of the tensors before it
  int64_t results_ = 0;
};

}  // namespace jaxcc
