// What puts two numbers together, for reductions over ranks, rows and tensors. Integers wrap
// around; max and min of a NaN are NaN, as in XLA.
#pragma once

#include "abi.h"

namespace jaxcc {

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

struct Sum {
  template <class T>
  static constexpr T neutral() {
    return T(0);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>)
      __builtin_add_overflow(a, b, &a);
    else
      a += b;
    return a;
  }
};

struct Prod {
  template <class T>
  static constexpr T neutral() {
    return T(1);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    if constexpr (kWhole<T>)
      __builtin_mul_overflow(a, b, &a);
    else
      a *= b;
    return a;
  }
};

struct Max {
  template <class T>
  static constexpr T neutral() {
    return extreme<T>(false);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return a != a || a > b ? a : b;
  }
};

struct Min {
  template <class T>
  static constexpr T neutral() {
    return extreme<T>(true);
  }
  template <class T>
  JAXCC_FN static T apply(T a, T b) {
    return a != a || a < b ? a : b;
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

}  // namespace jaxcc
