// Elementary functions: float ones without branches, so that a loop over them becomes vector code.
// Those of doubles are in math64.h and trig64.h. NaN, infinities and signed zeros as in C; each
// float function within 4 ulp of the true value (tests/codegen/test_math.py measures it), also if
// the processor flushes subnormal numbers to zero.
//
// Polynomials are minimax fits on the stated interval, made for this file in double precision.
// Argument reductions: W. Cody and W. Waite, Software Manual for the Elementary Functions, 1980
// (exp, log); erfc(x) as exp(-x^2) times a function of (x - 2) / (x + 2): M. Shepherd and J.
// Laframboise, Math. Comp. 36, 1981.
#pragma once

#include "element.h"

#ifdef __CUDACC__
#define JAXCC_LIBM(function) ::function
#else
#define JAXCC_LIBM(function) __builtin_##function
#endif

namespace jaxcc {

JAXCC_FN float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDACC__)
  return JAXCC_LIBM(fmaf)(a, b, c);
#else
  return a * b + c;
#endif
}

// Horner's scheme, constant term first.
JAXCC_FN float polynomial(float, float c0) { return c0; }

template <class... Rest>
JAXCC_FN float polynomial(float x, float c0, Rest... rest) {
  return fma(polynomial(x, rest...), x, c0);
}

JAXCC_FN float copy_sign(float magnitude, float sign) {
  return float_of((bits_of(magnitude) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}

JAXCC_FN float abs(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
JAXCC_FN double abs(double x) { return JAXCC_LIBM(fabs)(x); }

// 2^n, -126 <= n <= 127.
JAXCC_FN float power_of_two(int32_t n) { return float_of((uint32_t)(n + 127) << 23); }

// A whole number near x in both types, for |x| < 2^22: the sum's low bits are the integer. No cast,
// so NaN is harmless.
struct Whole {
  float value;
  int32_t n;
};

JAXCC_FN Whole nearest(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  const float sum = x + magic;
  return {sum - magic, (int32_t)(bits_of(sum) - 0x4b400000u)};
}

// e^r - 1 for |r| <= ln(2) / 2; to 0.5 it loses no more than the last bit.
JAXCC_FN float expm1_reduced(float r) {
  const float q =
      polynomial(r, 0.5f, 0.16666667f, 0.041666463f, 0.0083332863f, 0.0013933732f, 0.00019907697f);
  return fma(r * r, q, r);
}

// x = n ln 2 + r.
struct Reduced {
  float r;
  int32_t n;
};

JAXCC_FN Reduced by_ln2(float x) {
  const Whole whole = nearest(x * 1.44269504f);
  // ln 2 in two parts; the first has 15 bits, so that its product with n is exact.
  const float r = fma(whole.value, -0x1.62e4p-1f, x);
  return {fma(whole.value, -0x1.7f7d1cp-20f, r), whole.n};
}

// In two steps, because 2^n itself may be out of range where the result is not.
JAXCC_FN float scaled(float x, int32_t n) {
  const int32_t half = n >> 1;
  return x * power_of_two(half) * power_of_two(n - half);
}

// For -104 <= x <= 89.
JAXCC_FN float exp_in_range(float x) {
  const Reduced by = by_ln2(x);
  return scaled(1.0f + expm1_reduced(by.r), by.n);
}

JAXCC_FN float exp(float x) {
  const float low = select(x < -104.0f, -104.0f, x);
  return exp_in_range(select(low > 89.0f, 89.0f, low));
}

JAXCC_FN float exp2(float x) {
  const float low = select(x < -151.0f, -151.0f, x);
  const float bounded = select(low > 129.0f, 129.0f, low);
  const Whole whole = nearest(bounded);
  return scaled(1.0f + expm1_reduced((bounded - whole.value) * 0.693147181f), whole.n);
}

JAXCC_FN float expm1(float x) {
  const float low = select(x < -20.0f, -20.0f, x);
  const Reduced by = by_ln2(select(low > 89.0f, 89.0f, low));
  const int32_t half = by.n >> 1;
  const float a = power_of_two(half), b = power_of_two(by.n - half);
  const float y = fma(expm1_reduced(by.r), a, a - power_of_two(half - by.n)) * b;
  return x == 0.0f ? x : y;
}

// log(x) for normal x > 0, plus `e` ln 2.
JAXCC_FN float log_normal(float x, float e) {
  // x = 2^n m, sqrt(1/2) <= m < sqrt(2).
  const uint32_t from_root = bits_of(x) - 0x3f3504f3u;
  const float n = e + (float)((int32_t)from_root >> 23);
  const float f = float_of((from_root & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float p = polynomial(f, 0.3333331f, -0.24999985f, 0.20002273f, -0.16669357f, 0.1421771f,
                             -0.12381809f, 0.11877954f, -0.118078545f, 0.06925775f);
  const float f2 = f * f;
  const float tail = fma(n, -0x1.bd0106p-13f, fma(f2 * f, p, -0.5f * f2));
  return fma(n, 0x1.63p-1f, f + tail);
}

JAXCC_FN float log(float x) {
  const bool subnormal = x < 0x1p-126f;
  const float y = log_normal(subnormal ? x * 0x1p23f : x, subnormal ? -23.0f : 0.0f);
  const float infinity = float_of(0x7f800000u), nan = float_of(0x7fc00000u);
  const float positive = x < infinity ? y : x;
  return x > 0.0f ? positive : x == 0.0f ? -infinity : nan;
}

JAXCC_FN float log1p(float x) {
  const float u = 1.0f + x;
  // log(1 + x) = log(u) + (what rounding took from u) / u.
  const float y = log(u) + (x - (u - 1.0f)) / u;
  const bool exact = x == 0.0f || x == float_of(0x7f800000u);
  return exact ? x : x == -1.0f ? -float_of(0x7f800000u) : y;
}

JAXCC_FN float tanh(float x) {
  const float magnitude = abs(x);
  const Reduced by = by_ln2(2.0f * select(magnitude > 10.0f, 10.0f, magnitude));
  const float scale = power_of_two(by.n);
  const float t = fma(expm1_reduced(by.r), scale, scale - 1.0f);  // e^(2 |x|) - 1
  return copy_sign(t / (t + 2.0f), x);
}

JAXCC_FN float logistic(float x) { return 1.0f / (1.0f + exp(-x)); }

// erf(x) for |x| < 0.93.
JAXCC_FN float erf_small(float x) {
  const float p = polynomial(x * x, 0.12837917f, -0.37612635f, 0.11283694f, -0.02685927f,
                             0.005200634f, -0.00081374368f, 8.3452214e-05f);
  return fma(x, p, x);
}

JAXCC_FN float erf(float x) {
  const float magnitude = abs(x);
  const float a = select(magnitude > 4.0f, 4.0f, magnitude);
  // log(erfc(a)) for 0.9 <= a <= 4.
  const float q = polynomial(a, 0.00017055369f, -1.1294951f, -0.63338661f, -0.10823664f,
                             0.025091512f, -0.0041605332f, 0.0004323043f, -2.0909676e-05f);
  const float tail = copy_sign(1.0f - exp_in_range(q), x);
  return magnitude < 0.92f ? erf_small(x) : tail;
}

JAXCC_FN float erfc(float x) {
  const float magnitude = abs(x);
  const float a = select(magnitude > 10.1f, 10.1f, magnitude);
  const float reciprocal = 1.0f / (a + 2.0f);
  // erfc(a) exp(a^2) (1 + 2 a), 0 <= a <= 10.3.
  const float p =
      polynomial((a - 2.0f) * reciprocal, 1.2769784f, -0.092763819f, -0.16603053f, 0.16405103f,
                 -0.054217823f, -0.0080307974f, 0.008709114f, 0.0012524911f, -0.0014209865f,
                 -0.00040058623f, 0.00016968563f, 7.9534468e-05f);
  // a^2 = h^2 + (a - h)(a + h), where h^2 is exact: what exp would make of the rounding of a^2 is
  // many ulp.
  const float h = float_of(bits_of(a) & 0xfffff000u);
  const Reduced by = by_ln2(-h * h);
  const float gauss = scaled(1.0f + expm1_reduced(by.r - (a - h) * (a + h)), by.n);
  const float upper = gauss * p / (1.0f + 2.0f * a);
  const float bounded = magnitude > 10.1f ? 0.0f : upper;
  const float middle = 1.0f - erf_small(x);
  return magnitude < 0.5f ? middle : x < 0.0f ? 2.0f - bounded : x == x ? bounded : x;
}

JAXCC_FN float sqrt(float x) { return JAXCC_LIBM(sqrtf)(x); }
JAXCC_FN double sqrt(double x) { return JAXCC_LIBM(sqrt)(x); }
JAXCC_FN float rsqrt(float x) { return 1.0f / sqrt(x); }
JAXCC_FN double rsqrt(double x) { return 1.0 / sqrt(x); }

JAXCC_FN float floor(float x) { return JAXCC_LIBM(floorf)(x); }
JAXCC_FN float ceil(float x) { return JAXCC_LIBM(ceilf)(x); }
JAXCC_FN float round_even(float x) { return JAXCC_LIBM(rintf)(x); }
JAXCC_FN float round_away(float x) { return JAXCC_LIBM(roundf)(x); }
JAXCC_FN double floor(double x) { return JAXCC_LIBM(floor)(x); }
JAXCC_FN double ceil(double x) { return JAXCC_LIBM(ceil)(x); }
JAXCC_FN double round_even(double x) { return JAXCC_LIBM(rint)(x); }
JAXCC_FN double round_away(double x) { return JAXCC_LIBM(round)(x); }

JAXCC_FN bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }
JAXCC_FN bool is_finite(double x) { return x - x == 0.0; }

// What the C library computes, one element at a time.
JAXCC_FN float pow(float x, float y) { return JAXCC_LIBM(powf)(x, y); }
JAXCC_FN float rem(float x, float y) { return JAXCC_LIBM(fmodf)(x, y); }
JAXCC_FN float cbrt(float x) { return JAXCC_LIBM(cbrtf)(x); }
JAXCC_FN float sin(float x) { return JAXCC_LIBM(sinf)(x); }
JAXCC_FN float cos(float x) { return JAXCC_LIBM(cosf)(x); }
JAXCC_FN double rem(double x, double y) { return JAXCC_LIBM(fmod)(x, y); }

}  // namespace jaxcc
