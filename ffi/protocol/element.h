// Elements: how each dtype is stored and computed, with XLA's meaning where C++ leaves it open
// (integer overflow and division by zero, NaN in max and in casts). The same text serves g++,
// clang++ and NVRTC.
//
// bf16 and f16 are stored as uint16_t and computed as float; round_* is the rounding after each
// operation.
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

// `rounded`, which x came to in a narrower type; 0 of its sign where that would be subnormal there:
// where the bits of x are below those of the least number that rounds to a normal one.
JAXCC_FN float flushed(float x, float rounded, uint32_t least) {
  const uint32_t bits = bits_of(x);
  return (bits & 0x7fffffffu) < least ? float_of(bits & 0x80000000u) : rounded;
}

JAXCC_FN float round_bf16(float x) { return from_bf16(to_bf16(x)); }
JAXCC_FN float reduced_bf16(float x) { return flushed(x, round_bf16(x), 0x007f8000u); }

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
JAXCC_FN float reduced_f16(float x) { return flushed(x, round_f16(x), 0x387ff000u); }

template <class T>
JAXCC_FN T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

// NaN wins.
template <class T>
JAXCC_FN T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}

template <class T>
JAXCC_FN T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}

// Of floats, 0 is above -0: among equal ones the sign bits decide.
template <>
JAXCC_FN float maximum(float a, float b) {
  const float equal = float_of(bits_of(b) & (bits_of(a) | 0x7fffffffu));
  return a == b ? equal : a > b || a != a ? a : b;
}

template <>
JAXCC_FN float minimum(float a, float b) {
  const float equal = float_of(bits_of(b) | (bits_of(a) & 0x80000000u));
  return a == b ? equal : a < b || a != a ? a : b;
}

template <>
JAXCC_FN double maximum(double a, double b) {
  const double equal = double_of(bits_of(b) & (bits_of(a) | 0x7fffffffffffffffull));
  return a == b ? equal : a > b || a != a ? a : b;
}

template <>
JAXCC_FN double minimum(double a, double b) {
  const double equal = double_of(bits_of(b) | (bits_of(a) & 0x8000000000000000ull));
  return a == b ? equal : a < b || a != a ? a : b;
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

// The bits of the number next to the one with bits `from`, on the way to `to`.
template <class Bits>
JAXCC_FN Bits next_bits(Bits from, Bits to, Bits infinity) {
  const Bits sign = (Bits)(Bits(1) << (8 * sizeof(Bits) - 1)), magnitude = (Bits)(sign - 1);
  const Bits a = from & magnitude, b = to & magnitude;
  const Bits nan = a > infinity ? from : to;
  const Bits least = (Bits)((to & sign) | 1);
  // Toward zero if `to` is nearer to it, or on its other side.
  const bool inward = a > b || ((from ^ to) & sign) != 0;
  const Bits next = (Bits)(inward ? from - 1 : from + 1);
  const bool same = from == to || (a == 0 && b == 0);
  return a > infinity || b > infinity ? nan : same ? to : a == 0 ? least : next;
}

// x^n by squaring, times `product`.
template <int n, class T>
JAXCC_FN T integer_pow(T product, T x) {
  if constexpr (n == 0) {
    return product;
  } else {
    return integer_pow<n / 2, T>(n % 2 ? T(product * x) : product, T(x * x));
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
