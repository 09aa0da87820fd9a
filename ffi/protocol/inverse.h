// Inverse and hyperbolic functions, on the terms of math.h: float ones without branches, within 4
// ulp, double ones from the C library.
//
// The inverse of erf is x times a function of log(1 - x^2), as in M. Giles, Approximating the
// erfinv function, GPU Computing Gems, 2011, whose polynomials are fitted anew.
#pragma once

#include "trig64.h"

namespace jaxcc {

constexpr float kHalfPi = 1.57079633f, kPi = 3.14159265f, kLn2 = 0.693147181f;

// atan(t) for 0 <= t <= 1.
JAXCC_FN float atan_reduced(float t) {
  const float z = t * t;
  const float p =
      polynomial(z, -0.333332986f, 0.199985489f, -0.142642424f, 0.109521858f, -0.0840344951f,
                 0.0579575822f, -0.0311778337f, 0.0109145995f, -0.00179362029f);
  return fma(t * z, p, t);
}

JAXCC_FN float atan(float x) {
  const float a = abs(x);
  const float t = atan_reduced(select(a > 1.0f, 1.0f / a, a));
  return copy_sign(a > 1.0f ? kHalfPi - t : t, x);
}

JAXCC_FN float atan2(float y, float x) {
  const float a = abs(y), b = abs(x);
  const float low = select(a < b, a, b), high = select(a < b, b, a);
  // 0 / 0 is 0 and infinity / infinity 1.
  const float quotient = low / high;
  const float t = atan_reduced(high == 0.0f ? 0.0f : low == high ? 1.0f : quotient);
  const float first = a > b ? kHalfPi - t : t;
  const bool left = (bits_of(x) & 0x80000000u) != 0;
  const float angle = copy_sign(left ? kPi - first : first, y);
  return x == x && y == y ? angle : x + y;
}

// asin(x) for |x| <= 1/2.
JAXCC_FN float asin_reduced(float x) {
  const float z = x * x;
  const float p =
      polynomial(z, 0.166667521f, 0.0749529749f, 0.0454703756f, 0.0241795164f, 0.0421663076f);
  return fma(x * z, p, x);
}

// asin(s) = pi / 2 - 2 asin(sqrt((1 - s) / 2)).
JAXCC_FN float asin(float x) {
  const float a = abs(x);
  const bool outer = a > 0.5f;
  const float root = sqrt(0.5f - 0.5f * a);
  const float t = asin_reduced(select(outer, root, a));
  return copy_sign(outer ? kHalfPi - 2.0f * t : t, x);
}

JAXCC_FN float acos(float x) {
  const float a = abs(x);
  const bool outer = a > 0.5f;
  const float root = sqrt(0.5f - 0.5f * a);
  const float t = asin_reduced(select(outer, root, x));
  return outer ? (x < 0.0f ? kPi - 2.0f * t : 2.0f * t) : kHalfPi - t;
}

// Above 2^28, where squares are out of reach, both are log(2 x).
JAXCC_FN float acosh(float x) {
  const bool large = x > 0x1p28f;
  const float t = x - 1.0f;
  const float rest = t + sqrt(t) * sqrt(t + 2.0f);
  return log1p(select(large, x, rest)) + (large ? kLn2 : 0.0f);
}

JAXCC_FN float asinh(float x) {
  const float a = abs(x);
  const bool large = a > 0x1p28f;
  const float s = select(large, 1.0f, a);
  const float rest = s + s * s / (1.0f + sqrt(fma(s, s, 1.0f)));
  return copy_sign(log1p(select(large, a, rest)) + (large ? kLn2 : 0.0f), x);
}

JAXCC_FN float atanh(float x) {
  const float a = abs(x);
  return copy_sign(0.5f * log1p(2.0f * a / (1.0f - a)), x);
}

// e^|x| / 2, up to where it is infinite.
struct HalfExp {
  float value;
  float r;
  int32_t n;
};

JAXCC_FN HalfExp half_exp(float x) {
  const float a = abs(x);
  const Reduced by = by_ln2(select(a > 90.0f, 90.0f, a));
  return {scaled(1.0f + expm1_reduced(by.r), by.n - 1), by.r, by.n};
}

JAXCC_FN float cosh(float x) {
  const HalfExp half = half_exp(x);
  return half.value + 0.25f / half.value;
}

JAXCC_FN float sinh(float x) {
  const HalfExp half = half_exp(x);
  const float large = half.value - 0.25f / half.value;
  const float scale = power_of_two(half.n);
  const float e = fma(expm1_reduced(half.r), scale, scale - 1.0f);  // e^|x| - 1
  const float small = 0.5f * (e + e / (e + 1.0f));
  return copy_sign(abs(x) < 1.0f ? small : large, x);
}

// erf_inv(x) / x for w = -log(1 - x^2) < 5, and for sqrt(w) up to 4.
JAXCC_FN float erf_inv_middle(float w) {
  return polynomial(w - 2.5f, 1.50140941f, 0.24664028f, -0.00417738687f, -0.0012527419f,
                    0.000218344445f, -4.96334542e-06f, -3.4627044e-06f, 4.66170121e-07f,
                    2.32326247e-08f, -8.79101769e-09f);
}

JAXCC_FN float erf_inv_tail(float root) {
  return polynomial(root - 3.0f, 2.83297682f, 1.00167513f, 0.00944568869f, -0.00763940578f,
                    0.00568312919f, -0.0035869889f, 0.00149599114f, -7.6674718e-05f,
                    -0.000318853417f, 0.000129051317f);
}

JAXCC_FN float erf_inv(float x) {
  const float a = abs(x);
  const float w = -log((1.0f - a) * (1.0f + a));
  const float ratio = w < 5.0f ? erf_inv_middle(w) : erf_inv_tail(sqrt(w));
  return a == 1.0f ? copy_sign(float_of(0x7f800000u), x) : x * ratio;
}

JAXCC_FN double erf_inv(double x) {
  const double a = abs(x);
  const double w = -JAXCC_LIBM(log)((1.0 - a) * (1.0 + a));
  if (!(w < 1e3)) return a == 1.0 ? x * double_of(0x7ff0000000000000ull) : x * w;
  const float root = sqrt((float)w);
  double y = w < 5.0    ? a * (double)erf_inv_middle((float)w)
             : w < 16.0 ? a * (double)erf_inv_tail(root)
                        : JAXCC_LIBM(sqrt)(w - 0.5 * JAXCC_LIBM(log)(3.14159265358979324 * w));
  // Halley's method, in erfc where erf is close to 1.
  for (int step = 0; step < 2; ++step) {
    const double off = a < 0.5 ? JAXCC_LIBM(erf)(y) - a : (1.0 - a) - JAXCC_LIBM(erfc)(y);
    const double newton = off * 0.886226925452758014 * JAXCC_LIBM(exp)(y * y);
    y -= newton / (1.0 + y * newton);
  }
  return JAXCC_LIBM(copysign)(y, x);
}

JAXCC_FN float tan(float x) { return JAXCC_LIBM(tanf)(x); }
JAXCC_FN double atan(double x) { return JAXCC_LIBM(atan)(x); }
JAXCC_FN double atan2(double y, double x) { return JAXCC_LIBM(atan2)(y, x); }
JAXCC_FN double asin(double x) { return JAXCC_LIBM(asin)(x); }
JAXCC_FN double acos(double x) { return JAXCC_LIBM(acos)(x); }
JAXCC_FN double acosh(double x) { return JAXCC_LIBM(acosh)(x); }
JAXCC_FN double asinh(double x) { return JAXCC_LIBM(asinh)(x); }
JAXCC_FN double atanh(double x) { return JAXCC_LIBM(atanh)(x); }
JAXCC_FN double cosh(double x) { return JAXCC_LIBM(cosh)(x); }
JAXCC_FN double sinh(double x) { return JAXCC_LIBM(sinh)(x); }

}  // namespace jaxcc
