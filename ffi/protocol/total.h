// Reductions: over a row, and totals, over all elements of a tensor. A block's elements are reduced
// in the type that they are computed in, blocks and ranks in a wider one, always in one order.
#pragma once

#include "gather.h"

#ifndef __CUDACC__

namespace jaxcc {

template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<float> {
  using Type = double;
};

template <class T>
constexpr bool kWhole = T(0.5) == T(0);

// The lowest, or the highest, number of a type.
template <class T>
constexpr T extreme(bool highest) {
  if constexpr (!kWhole<T>) {
    return highest ? T(__builtin_inf()) : -T(__builtin_inf());
  } else {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr T top = is_signed ? T((uint64_t{1} << (8 * sizeof(T) - 1)) - 1) : T(-1);
    return highest ? top : T(is_signed ? -top - 1 : 0);
  }
}

// Integers wrap around; a NaN stays one, as in XLA.
struct Sum {
  template <class T>
  static constexpr T neutral() {
    return T(0);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>) {
      T sum;
      __builtin_add_overflow(a, b, &sum);
      return sum;
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <class T>
  static constexpr T neutral() {
    return T(1);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>) {
      T product;
      __builtin_mul_overflow(a, b, &product);
      return product;
    } else {
      return a * b;
    }
  }
};

struct Max {
  template <class T>
  static constexpr T neutral() {
    return extreme<T>(false);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <class T>
  static constexpr T neutral() {
    return extreme<T>(true);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
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

  // Over all parts; `totals` in a kernel.
  JAXCC_FN static T of(const jaxcc_parts& parts, int number, int totals) {
    Wide sum = Op::template neutral<Wide>();
    for (int32_t r = 0; r < parts.ranks; ++r) {
      for (int64_t k = 0; k < parts.count; ++k) {
        const jaxcc_part& part = parts.first[r * parts.stride + k * totals + number];
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
