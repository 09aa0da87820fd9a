// Elements: how each dtype is stored and computed, with XLA's meaning where C++ leaves it open
// (integer overflow and division by zero, NaN in max and in casts). The same text serves g++,
// clang++ and NVRTC.
//
// bf16 and f16 are stored as uint16_t and computed as float; round_* is the rounding after each
// operation. While XLA runs, the processor takes subnormal floats and doubles for 0; what is only
// selected or negated keeps them.
#pragma once

#include "abi.h"

// Before a loop: an iteration may store to what it has loaded itself, never to what another one
// loads.
#if defined(__CUDACC__)
#define JAXCC_INDEPENDENT
#elif defined(__clang__)
#define JAXCC_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAXCC_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jaxcc {

JAXCC_FN float float_of(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

JAXCC_FN uint32_t bits_of(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

JAXCC_FN double double_of(uint64_t bits) {
#ifdef __CUDACC__
  return __longlong_as_double((long long)bits);
#else
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

JAXCC_FN uint64_t bits_of(double x) {
#ifdef __CUDACC__
  return (uint64_t)__double_as_longlong(x);
#else
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

// bfloat16: the upper half of a float.
JAXCC_FN float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

JAXCC_FN uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (uint16_t)(x != x ? (bits >> 16) | 0x40u : even);
}

JAXCC_FN float round_bf16(float x) { return from_bf16(to_bf16(x)); }

// IEEE binary16. Adding and subtracting a power of two lets the adder align (and round) what is
// subnormal in f16, also where the processor flushes subnormal floats to zero, as it does while XLA
// runs.
JAXCC_FN float from_f16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  const float subnormal = float_of(magnitude + (113u << 23)) - float_of(113u << 23);
  const uint32_t finite = magnitude < (1u << 23) ? bits_of(subnormal) : normal;
  return float_of(sign | (magnitude >= (31u << 23) ? magnitude + (224u << 23) : finite));
}

JAXCC_FN uint16_t to_f16(float x) {
  const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t bounded = magnitude >= (143u << 23) ? 0x7c00u : finite;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  return (uint16_t)(sign | (magnitude > 0x7f800000u ? nan : bounded));
}

JAXCC_FN float round_f16(float x) { return from_f16(to_f16(x)); }

// Whether a type holds whole numbers only.
template <class T>
constexpr bool kWhole = T(0.5) == T(0);
template <>
constexpr bool kWhole<bool> = true;

template <class T>
JAXCC_FN T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

// A number of the sign bits of `sign` where x is 0, else x: so also where the processor takes a
// subnormal x for 0.
JAXCC_FN float zero_as(float sign, float x) {
  return float_of(x == 0 ? bits_of(sign) & 0x80000000u : bits_of(x));
}

JAXCC_FN double zero_as(double sign, double x) {
  return double_of(x == 0 ? bits_of(sign) & 0x8000000000000000ull : bits_of(x));
}

// x, or 0 of its sign where the processor takes it for 0.
template <class T>
JAXCC_FN T normal_of(T x) {
  if constexpr (kWhole<T>) {
    return x;
  } else {
    return zero_as(x, x);
  }
}

JAXCC_FN float both_signs(float a, float b) { return float_of(bits_of(a) & bits_of(b)); }
JAXCC_FN double both_signs(double a, double b) { return double_of(bits_of(a) & bits_of(b)); }
JAXCC_FN float either_sign(float a, float b) { return float_of(bits_of(a) | bits_of(b)); }
JAXCC_FN double either_sign(double a, double b) { return double_of(bits_of(a) | bits_of(b)); }

// The larger and the smaller of two numbers. Of floats NaN wins, and 0 is above -0.
template <class T>
JAXCC_FN T maximum(T a, T b) {
  if constexpr (kWhole<T>) {
    return a > b ? a : b;
  } else {
    const T larger = a > b || a != a ? a : b;
    return zero_as(a == b ? both_signs(a, b) : larger, larger);
  }
}

template <class T>
JAXCC_FN T minimum(T a, T b) {
  if constexpr (kWhole<T>) {
    return a < b ? a : b;
  } else {
    const T smaller = a < b || a != a ? a : b;
    return zero_as(a == b ? either_sign(a, b) : smaller, smaller);
  }
}

template <class T>
JAXCC_FN T clamp(T low, T x, T high) {
  return minimum(maximum(x, low), high);
}

// -1, 0 (of the sign of x) or 1; NaN for NaN.
template <class T>
JAXCC_FN T sign(T x) {
  // Times 0: a denormal, which compares as 0, comes out as 0 where the processor flushes them.
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(x * T(0));
}

// x / 0 is all ones and the lowest value / -1 itself. Division by 1 stands in where C++ has no
// answer.
template <class T>
JAXCC_FN T integer_div(T a, T b) {
  const bool negates = T(-1) < T(0) && b == T(-1);
  const T quotient = (T)(a / (b == T(0) || negates ? T(1) : b));
  return b == T(0) ? T(-1) : negates ? (T)(T(0) - (uint64_t)a) : quotient;
}

// x % 0 is x.
template <class T>
JAXCC_FN T integer_rem(T a, T b) {
  const bool negates = T(-1) < T(0) && b == T(-1);
  const T rest = (T)(a % (b == T(0) || negates ? T(1) : b));
  return b == T(0) ? a : negates ? T(0) : rest;
}

// Shifts by the width or more leave nothing, or the sign.
template <class T>
JAXCC_FN T shift_left(T a, T by) {
  const uint64_t bits = 8 * sizeof(T);
  return (uint64_t)by < bits ? (T)((uint64_t)a << ((uint64_t)by & (bits - 1))) : T(0);
}

// Filled: the signed type of the same size for an arithmetic shift, the unsigned one for a logical
// shift.
template <class T, class Filled>
JAXCC_FN T shift_right(T a, T by) {
  const uint64_t bits = 8 * sizeof(T);
  const Filled filled = (Filled)a;
  const Filled nothing = (Filled)(filled < Filled(0) ? -1 : 0);
  return (T)((uint64_t)by < bits ? (Filled)(filled >> ((uint64_t)by & (bits - 1))) : nothing);
}

// Ones, and leading zeros, of an integer that has the bits of the unsigned type Bits.
template <class T, class Bits>
JAXCC_FN T population_count(T a) {
#ifdef __CUDACC__
  return (T)__popcll((Bits)a);
#else
  return (T)__builtin_popcountll((Bits)a);
#endif
}

template <class T, class Bits>
JAXCC_FN T leading_zeros(T a) {
  const uint64_t bits = (Bits)a;
  const int above = 64 - 8 * (int)sizeof(T);
#ifdef __CUDACC__
  return (T)(__clzll((long long)bits) - above);
#else
  return (T)((bits ? __builtin_clzll(bits) : 64) - above);
#endif
}

// The bits of the number next to the one with bits `from`, on the way to `to`; `equal` says that
// the processor finds the two numbers equal.
template <class Bits>
JAXCC_FN Bits next_bits(Bits from, Bits to, Bits infinity, bool equal) {
  const Bits sign = (Bits)(Bits(1) << (8 * sizeof(Bits) - 1)), magnitude = (Bits)(sign - 1);
  const Bits a = from & magnitude, b = to & magnitude;
  const Bits nan = a > infinity ? from : to;
  const Bits least = (Bits)((to & sign) | 1);
  // Toward zero if `to` is nearer to it, or on its other side.
  const bool inward = a > b || ((from ^ to) & sign) != 0;
  const Bits next = (Bits)(inward ? from - 1 : from + 1);
  return a > infinity || b > infinity ? nan : equal ? to : a == 0 ? least : next;
}

// `bits`, of a float with `own_mantissa` bits after the point, rounded to `mantissa` such bits and
// an exponent of `exponent` bits: infinite above the range, 0 of its sign below the normal numbers.
template <class Bits, int own_exponent, int own_mantissa, int exponent, int mantissa>
JAXCC_FN Bits reduced_precision(Bits bits) {
  const Bits sign = (Bits)(Bits(1) << (own_exponent + own_mantissa));
  const Bits infinity = (Bits)(sign - (Bits(1) << own_mantissa));
  Bits rounded = bits;
  if constexpr (mantissa < own_mantissa) {
    const Bits last = (Bits)(Bits(1) << (own_mantissa - mantissa));
    const Bits odd = (Bits)((bits & last) != 0);
    // A carry raises the exponent, as it must.
    rounded = (Bits)((bits + (last >> 1) - 1 + odd) & ~(last - 1));
  }
  if constexpr (exponent < own_exponent) {
    constexpr int bias = (1 << (own_exponent - 1)) - 1, less = (1 << (exponent - 1)) - 1;
    const Bits power = rounded & infinity;
    const Bits signed_zero = rounded & sign;
    const bool over = power > (Bits)(Bits(bias + less) << own_mantissa);
    const bool under = power <= (Bits)(Bits(bias - less) << own_mantissa);
    rounded = over ? (Bits)(signed_zero | infinity) : under ? signed_zero : rounded;
  }
  return (Bits)(bits & ~sign) > infinity ? bits : rounded;
}

// x^n by squaring, times `product`; each product is passed through `round`.
template <int n, class T, class Round>
JAXCC_FN T integer_pow(T product, T x, Round round) {
  if constexpr (n == 0) {
    return product;
  } else if constexpr (n == 1) {
    return round(T(product * x));
  } else {
    const T odd = n % 2 ? round(T(product * x)) : product;
    return integer_pow<n / 2, T>(odd, round(T(x * x)), round);
  }
}

// A float as an integer: toward zero, saturated, 0 for NaN.
template <class T, class F>
JAXCC_FN T saturate(F x) {
  const bool has_sign = T(-1) < T(0);
  const int bits = 8 * (int)sizeof(T) - has_sign;
  const F end = F(2) * F(uint64_t(1) << (bits - 1)), low = has_sign ? -end : F(0);
  const T highest = (T)(((uint64_t(1) << (bits - 1)) - 1) * 2 + 1),
          lowest = (T)(has_sign ? ~highest : T(0));
  const T whole = (T)(x >= low && x < end ? x : F(0));
  return x >= end ? highest : x < low ? lowest : whole;
}

}  // namespace jaxcc
