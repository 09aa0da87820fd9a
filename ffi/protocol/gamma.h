// The logarithm of the gamma function and its derivative, computed in double.
#pragma once

#include "math.h"

#ifndef __CUDACC__
// Not `lgamma`, which also writes a global variable.
extern "C" double lgamma_r(double x, int* sign) noexcept;
#endif

namespace jaxcc {

JAXCC_FN double lgamma(double x) {
#ifdef __CUDACC__
  return ::lgamma(x);
#else
  int sign;
  return ::lgamma_r(x, &sign);
#endif
}

JAXCC_FN float lgamma(float x) { return (float)lgamma((double)x); }

// Stirling's series from 10 on, to which the recurrence digamma(x) = digamma(x + 1) - 1 / x leads;
// below 0 the reflection digamma(1 - x) - pi / tan(pi x).
JAXCC_FN double digamma(double x) {
  const double infinity = double_of(0x7ff0000000000000ull), nan = double_of(0x7ff8000000000000ull);
  if (!(x < infinity)) return x;
  if (x == 0.0) return -infinity;
  const double side = x - JAXCC_LIBM(rint)(x);  // exact, from the nearest pole
  if (x < 0.0 && side == 0.0) return nan;
  double sum = 0.0, y = x;
  if (x < 0.0) {
    const double pi = 3.14159265358979324;
    sum = -pi / JAXCC_LIBM(tan)(pi * side);
    y = 1.0 - x;
  }
  for (; y < 10.0; y += 1.0) sum -= 1.0 / y;
  const double z = 1.0 / (y * y);
  // Bernoulli numbers B(2 k) / (2 k).
  const double series =
      z * (1.0 / 12 -
           z * (1.0 / 120 -
                z * (1.0 / 252 -
                     z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z * (1.0 / 12)))))));
  return sum + (JAXCC_LIBM(log)(y) - 0.5 / y - series);
}

JAXCC_FN float digamma(float x) { return (float)digamma((double)x); }

}  // namespace jaxcc
