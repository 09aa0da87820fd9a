// Reductions: over a row, and totals, over all elements of a tensor. A block's elements are reduced
// in the type that they are computed in, blocks and ranks in a wider one, always in one order.
#pragma once

#include "gather.h"

#ifndef __CUDACC__
#include "reductions.h"

namespace jaxcc {

template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<float> {
  using Type = double;
};

// Enough independent sums for vectors and for the time that an addition takes.
constexpr int64_t kSums = 32;

template <class Op, class T>
__attribute__((noinline)) typename WideOf<T>::Type reduce_block(const T* x, int64_t count) {
  using Wide = typename WideOf<T>::Type;
  T sums[kSums];
  for (T& sum : sums) sum = Op::template neutral<T>();
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k) sums[k] = Op::apply(sums[k], x[i + k]);
  }
  Wide all = Op::template neutral<Wide>();
  for (T sum : sums) all = Op::apply(all, Wide(sum));
  for (; i < count; ++i) all = Op::apply(all, Wide(x[i]));
  return all;
}

// Total `number` of a kernel, over elements of type T; used as a Gather is.
template <class T, class Op, int64_t block_size = kBlock>
class Total {
  using Wide = typename WideOf<T>::Type;
  static_assert(sizeof(Wide) <= sizeof(uint64_t));

 public:
  JAXCC_FN Total(const jaxcc_tile& tile, int number) : part_(tile.parts[number]) {}

  JAXCC_FN Run<T, 1> run(int64_t block, int64_t at) { return {{terms_ + (at - block)}}; }

  JAXCC_FN void finish(int64_t block, int64_t end) {
    Wide sum = reduce_block<Op, T>(terms_, end - block);
    if (part_.seen) sum = Op::apply(load(part_), sum);
    __builtin_memcpy(&part_.value, &sum, sizeof sum);
    part_.seen += end - block;
  }

  // Over all parts.
  JAXCC_FN static T of(const jaxcc_parts& parts, int number) {
    Wide sum = Op::template neutral<Wide>();
    for (int32_t r = 0; r < parts.ranks; ++r) {
      for (int64_t k = 0; k < parts.count; ++k) {
        const jaxcc_part& part = parts.first[r * parts.stride + k * parts.step + number];
        if (part.seen) sum = Op::apply(sum, load(part));
      }
    }
    return T(sum);
  }

 private:
  static Wide load(const jaxcc_part& part) {
    Wide value;
    __builtin_memcpy(&value, &part.value, sizeof value);
    return value;
  }

  jaxcc_part& part_;
  alignas(64) T terms_[block_size];
};

}  // namespace jaxcc

#endif
