// What puts two numbers together, for reductions of rows and tensors, and over ranks. Integers wrap
// around.
#pragma once

#include "element.h"

namespace jaxcc {

// The lowest, or the highest, number of a type.
template <class T>
JAXCC_FN T extreme(bool highest) {
  if constexpr (!kWhole<T>) {
    const T infinity = T(float_of(0x7f800000u));
    return highest ? infinity : -infinity;
  } else {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr T top = is_signed ? T((uint64_t{1} << (8 * sizeof(T) - 1)) - 1) : T(-1);
    return highest ? top : T(is_signed ? -top - 1 : 0);
  }
}

struct Sum {
  template <class T>
  JAXCC_FN static T neutral() {
    return T(0);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>) {
      return T(uint64_t(a) + uint64_t(b));
    } else {
      return a + b;
    }
  }
};

struct Prod {
  template <class T>
  JAXCC_FN static T neutral() {
    return T(1);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>) {
      return T(uint64_t(a) * uint64_t(b));
    } else {
      return a * b;
    }
  }
};

// Max and Min are those of an array's elements: NaN wins, and 0 is above -0.
struct Max {
  template <class T>
  JAXCC_FN static T neutral() {
    return extreme<T>(false);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return maximum(a, b);
  }
};

struct Min {
  template <class T>
  JAXCC_FN static T neutral() {
    return extreme<T>(true);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return minimum(a, b);
  }
};

struct And {
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return T(a & b);
  }
};

struct Or {
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return T(a | b);
  }
};

struct Xor {
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return T(a ^ b);
  }
};

// What XLA's all-reduces have for max and min: NaN never wins, so that of NaN alone an infinity is
// left, and of two zeros the earlier rank's stays.
struct RankMax : Max {
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return normal_of(a < b ? b : a);
  }
};

struct RankMin : Min {
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return normal_of(b < a ? b : a);
  }
};

// Whether XLA's all-reduces start from the neutral element where the result may tell: a sum of -0
// is 0.
template <class Op>
constexpr bool kFromNeutral = false;
template <>
constexpr bool kFromNeutral<Sum> = true;
template <>
constexpr bool kFromNeutral<RankMax> = true;
template <>
constexpr bool kFromNeutral<RankMin> = true;

// The terms of all ranks, the first to the last, reduced as XLA's all-reduces do it. One rank's
// term stays what it is.
template <class Op, class T>
JAXCC_FN T over_ranks(T term) {
  return term;
}

template <class Op, class T, class... Rest>
JAXCC_FN T over_ranks(T first, T second, Rest... rest) {
  T all = first;
  if constexpr (kFromNeutral<Op>) all = Op::apply(Op::template neutral<T>(), first);
  all = Op::apply(all, second);
  ((all = Op::apply(all, rest)), ...);
  return all;
}

}  // namespace jaxcc
