// Elementary functions of doubles, on the terms of math.h: without branches, so that a loop over
// them becomes vector code, and within 4 ulp. Where the processor cannot fuse a product with a sum
// they are the C library's, on CUDA its own.
//
// Polynomials are minimax fits on the stated interval, made for this file by Remez's algorithm in
// 240 bits. Log from s = f / (2 + f): P. Tang, Table-driven implementation of the logarithm
// function, ACM TOMS 16, 1990; sums and products in two parts: T. Dekker, Numer. Math. 18, 1971.
#pragma once

#include "math.h"

#if !defined(__CUDACC__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define JAXCC_VECTOR_DOUBLE
#endif

namespace jaxcc {

#ifdef JAXCC_VECTOR_DOUBLE

JAXCC_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

JAXCC_FN double polynomial(double, double c0) { return c0; }

template <class... Rest>
JAXCC_FN double polynomial(double x, double c0, Rest... rest) {
  return fma(polynomial(x, rest...), x, c0);
}

JAXCC_FN double copy_sign(double magnitude, double sign) {
  const uint64_t bit = 0x8000000000000000ull;
  return double_of((bits_of(magnitude) & ~bit) | (bits_of(sign) & bit));
}

constexpr double kLn2High = 0x1.62e42fefa3800p-1;  // 42 bits: products with exponents are exact
constexpr double kLn2Low = 0x1.ef35793c76730p-45;
constexpr double kLog2E = 1.4426950408889634;

// 2^n, -1022 <= n <= 1023.
JAXCC_FN double power_of_two(int64_t n) { return double_of((uint64_t)(n + 1023) << 52); }

struct WholeDouble {
  double value;
  int64_t n;
};

// As for float, for |x| < 2^51.
JAXCC_FN WholeDouble nearest(double x) {
  const double magic = 0x1.8p52;
  const double sum = x + magic;
  return {sum - magic, (int64_t)(bits_of(sum) - 0x4338000000000000ull)};
}

// e^r - 1 for |r| <= ln(2) / 2.
JAXCC_FN double expm1_reduced(double r) {
  const double q = polynomial(r, 0.5, 0.16666666666666677, 0.04166666666666669, 0.00833333333332159,
                              0.0013888888888870055, 0.00019841269886289922, 2.4801587356322798e-05,
                              2.7557243996906413e-06, 2.755724538077685e-07, 2.5109124881618136e-08,
                              2.0923824767930353e-09);
  return fma(r * r, q, r);
}

struct ReducedDouble {
  double r;
  int64_t n;
};

JAXCC_FN ReducedDouble by_ln2(double x) {
  const WholeDouble whole = nearest(x * kLog2E);
  return {fma(whole.value, -kLn2Low, fma(whole.value, -kLn2High, x)), whole.n};
}

// x 2^n in two steps, for -2000 <= n <= 2000. Shifts are of unsigned numbers: signed ones are no
// vector code on AVX2.
JAXCC_FN double scaled(double x, int64_t n) {
  const uint64_t exponents = (uint64_t)(n + 2046);
  const uint64_t half = exponents >> 1;
  return x * double_of(half << 52) * double_of((exponents - half) << 52);
}

JAXCC_FN double between(double low, double x, double high) {
  const double above = select(x < low, low, x);
  return select(above > high, high, above);
}

JAXCC_FN double exp(double x) {
  const ReducedDouble by = by_ln2(between(-746.0, x, 710.0));
  return scaled(1.0 + expm1_reduced(by.r), by.n);
}

JAXCC_FN double exp2(double x) {
  const double bounded = between(-1080.0, x, 1025.0);
  const WholeDouble whole = nearest(bounded);
  return scaled(1.0 + expm1_reduced((bounded - whole.value) * 0.6931471805599453), whole.n);
}

JAXCC_FN double expm1(double x) {
  const ReducedDouble by = by_ln2(between(-40.0, x, 710.0));
  // 2^n as the product of two factors.
  const uint64_t exponents = (uint64_t)(by.n + 2046);
  const uint64_t half = exponents >> 1, other = exponents - half;
  const double a = double_of(half << 52), b = double_of(other << 52);
  const double y = fma(expm1_reduced(by.r), a, a - double_of((2046 - other) << 52)) * b;
  return x == 0.0 ? x : y;
}

// |x| = 2^n m, sqrt(1/2) <= m < sqrt(2), for x that is neither 0 nor subnormal.
struct Split {
  double n;
  double m;
};

JAXCC_FN Split split(double x) {
  const uint64_t root = 0x3fe6a09e667f3bcdull, low = 0x000fffffffffffffull;
  const uint64_t from_root = bits_of(x) - root + 0x4000000000000000ull;
  // 2^52 + n + 1024, whose low bits are the integer.
  const double n = double_of(0x4330000000000000ull | (from_root >> 52)) - (0x1p52 + 1024.0);
  return {n, double_of((from_root & low) + root)};
}

// log(x) for normal x > 0, plus `e` ln 2.
JAXCC_FN double log_normal(double x, double e) {
  const Split parts = split(x);
  const double n = parts.n + e, f = parts.m - 1.0;
  const double s = f / (2.0 + f), z = s * s;
  // log(1 + f) = 2 s + s r, s^2 < 0.0295.
  const double r = z * polynomial(z, 0.6666666666666735, 0.3999999999941313, 0.2857142874276586,
                                  0.22222198531153883, 0.18183566668110784, 0.15313986800711618,
                                  0.14796624246180978);
  const double half = 0.5 * f * f;
  const double tail = fma(n, kLn2Low, s * (half + r));
  return fma(n, kLn2High, f - (half - tail));
}

JAXCC_FN double log(double x) {
  const bool subnormal = x < 0x1p-1022;
  const double y = log_normal(subnormal ? x * 0x1p54 : x, subnormal ? -54.0 : 0.0);
  const double infinity = double_of(0x7ff0000000000000ull), nan = double_of(0x7ff8000000000000ull);
  const double positive = x < infinity ? y : x;
  return x > 0.0 ? positive : x == 0.0 ? -infinity : nan;
}

JAXCC_FN double log1p(double x) {
  const double u = 1.0 + x;
  const double y = log(u) + (x - (u - 1.0)) / u;
  const double infinity = double_of(0x7ff0000000000000ull);
  const bool exact = x == 0.0 || x == infinity;
  return exact ? x : x == -1.0 ? -infinity : y;
}

JAXCC_FN double tanh(double x) {
  const double magnitude = abs(x);
  const ReducedDouble by = by_ln2(2.0 * select(magnitude > 20.0, 20.0, magnitude));
  const double scale = power_of_two(by.n);
  const double t = fma(expm1_reduced(by.r), scale, scale - 1.0);  // e^(2 |x|) - 1
  return copy_sign(t / (t + 2.0), x);
}

// erf(x) for |x| < 0.95.
JAXCC_FN double erf_small(double x) {
  const double p =
      polynomial(x * x, 0.12837916709551256, -0.3761263890318368, 0.1128379167095143,
                 -0.026866170644362444, 0.005223977617173857, -0.0008548326498291073,
                 0.00012055311804332016, -1.4925086795351187e-05, 1.6452068371128647e-06,
                 -1.6246683306476467e-07, 1.3897369132936384e-08, -8.150811058250204e-10);
  return fma(x, p, x);
}

// erfc(a) for 0.5 <= a <= 27.3; see math.h.
JAXCC_FN double erfc_upper(double a) {
  const double reciprocal = 1.0 / (a + 2.0);
  const double p = polynomial(
      (a - 2.0) * reciprocal, 1.2769783815525286, -0.09276382658574601, -0.16603039761528776,
      0.16405128003344424, -0.05422000099217899, -0.008034015082507178, 0.00872265388060232,
      0.001271338966579164, -0.0014568140339147678, -0.0004543408113422626, 0.0002063681162132771,
      0.00015103868601677826, -1.5157321180783194e-06, -3.64184221366381e-05,
      -1.3468386455138004e-05, 3.6831748695150836e-06, 5.159605036552521e-06,
      1.5967473634615185e-06, -5.968257343907263e-07, -1.0233331088132268e-06,
      -3.3097186547832474e-07, 3.549679878130487e-07, 1.506200913489903e-07,
      -9.046275569971909e-08);
  const double h = double_of(bits_of(a) & 0xfffffffff8000000ull);
  const ReducedDouble by = by_ln2(-h * h);
  const double gauss = scaled(1.0 + expm1_reduced(by.r - (a - h) * (a + h)), by.n);
  return gauss * p / (1.0 + 2.0 * a);
}

JAXCC_FN double erf(double x) {
  const double magnitude = abs(x);
  const double tail = copy_sign(1.0 - erfc_upper(between(0.5, magnitude, 6.0)), x);
  return magnitude < 0.94 ? erf_small(x) : x == x ? tail : x;
}

JAXCC_FN double erfc(double x) {
  const double magnitude = abs(x);
  const double upper = erfc_upper(between(0.5, magnitude, 27.3));
  const double bounded = magnitude > 27.3 ? 0.0 : upper;
  const double middle = 1.0 - erf_small(x);
  return magnitude < 0.5 ? middle : x < 0.0 ? 2.0 - bounded : x == x ? bounded : x;
}

// One step of Newton's method from e^(log(x) / 3), on x 2^54 or x 2^-54, of which no cube is out of
// range.
JAXCC_FN double cbrt(double x) {
  const double magnitude = abs(x);
  const bool small = magnitude < 1.0;
  const double a = magnitude * (small ? 0x1p54 : 0x1p-54);
  const double t = exp(log_normal(a, 0.0) * (1.0 / 3.0)), square = t * t;
  const double root = t - fma(square, t, -a) / (3.0 * square);
  const double y = copy_sign(root * (small ? 0x1p-18 : 0x1p18), x);
  return x == 0.0 || x - x != 0.0 ? x : y;
}

struct Pair {
  double high;
  double low;
};

// a + b, where |a| >= |b| or a = 0.
JAXCC_FN Pair sum_of(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

JAXCC_FN Pair product_of(double a, double b) {
  const double product = a * b;
  return {product, fma(a, b, -product)};
}

// log(x) to 2^-65 of it, for normal x > 0, plus `e` ln 2.
JAXCC_FN Pair log_pair(double x, double e) {
  const Split parts = split(x);
  const double n = parts.n + e, f = parts.m - 1.0;
  const Pair divisor = sum_of(2.0, f);
  const double s = f / divisor.high;
  const double s_low = fma(-s, divisor.low, fma(-s, divisor.high, f)) / divisor.high;
  Pair z = product_of(s, s);
  z.low = fma(2.0 * s, s_low, z.low);
  // atanh(s) = s + s (z / 3 + z^2 q), z = s^2 < 0.0295.
  const double q = polynomial(z.high, 0.1999999999999999, 0.14285714285722576, 0.11111111108763447,
                              0.09090909435745353, 0.0769227839531924, 0.0666816025802032,
                              0.05837377762329178, 0.0599476934385395);
  const double third = 0x1.5555555555555p-2, third_low = 0x1.5555555555555p-56;
  const Pair first = product_of(z.high, third);
  const double small = fma(z.high, third_low, fma(z.low, third, first.low));
  const Pair t = sum_of(first.high, fma(z.high * z.high, q, small));
  const Pair w = product_of(s, t.high);
  const double w_low = fma(s, t.low, fma(s_low, t.high, w.low));
  const Pair large = sum_of(n * kLn2High, 2.0 * s);
  const Pair sum = sum_of(large.high, 2.0 * w.high);
  return sum_of(sum.high, fma(n, kLn2Low, large.low + sum.low + 2.0 * (s_low + w_low)));
}

JAXCC_FN double pow(double x, double exponent) {
  const double infinity = double_of(0x7ff0000000000000ull), nan = double_of(0x7ff8000000000000ull);
  // An exponent that the processor takes for 0, and that is not, does what the least normal does.
  const bool vanishes = exponent == 0.0 && bits_of(exponent) << 1 != 0;
  const double y = vanishes ? copy_sign(0x1p-1022, exponent) : exponent;
  const double a = abs(x);
  const uint64_t bits = bits_of(a);
  const bool subnormal = bits >> 52 == 0, negative = bits_of(x) != bits && bits != 0;
  // 2^1022 times a subnormal one, also where the processor takes that for 0.
  const double normal = double_of(bits | 0x3ff0000000000000ull) - 1.0;
  const Pair log = log_pair(subnormal ? normal : a, subnormal ? -1022.0 : 0.0);
  const double high = bits == 0 ? -infinity : a < infinity ? log.high : a;
  // 1 to any power but NaN is 1.
  const double product = a == 1.0 ? y == y ? 0.0 : y : y * high;
  const double rest = fma(y, log.low, fma(y, log.high, -product));
  const ReducedDouble by = by_ln2(between(-746.0, product, 710.0));
  const double r = by.r + (product != 0.0 && abs(product) < 710.0 ? rest : 0.0);
  const double power = scaled(1.0 + expm1_reduced(r), by.n);
  const bool whole = __builtin_rint(y) == y, even = __builtin_rint(0.5 * y) == 0.5 * y;
  const double root = negative && a < infinity && !whole ? nan : power;
  const double signed_power = whole && !even ? copy_sign(root, x) : root;
  return x == 1.0 || y == 0.0 ? 1.0 : signed_power;
}

#else

JAXCC_FN double exp(double x) { return JAXCC_LIBM(exp)(x); }
JAXCC_FN double exp2(double x) { return JAXCC_LIBM(exp2)(x); }
JAXCC_FN double expm1(double x) { return JAXCC_LIBM(expm1)(x); }
JAXCC_FN double log(double x) { return JAXCC_LIBM(log)(x); }
JAXCC_FN double log1p(double x) { return JAXCC_LIBM(log1p)(x); }
JAXCC_FN double tanh(double x) { return JAXCC_LIBM(tanh)(x); }
JAXCC_FN double erf(double x) { return JAXCC_LIBM(erf)(x); }
JAXCC_FN double erfc(double x) { return JAXCC_LIBM(erfc)(x); }
JAXCC_FN double cbrt(double x) { return JAXCC_LIBM(cbrt)(x); }
JAXCC_FN double pow(double x, double y) { return JAXCC_LIBM(pow)(x, y); }

#endif

JAXCC_FN double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }

}  // namespace jaxcc
