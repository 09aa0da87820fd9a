// sin, cos and tan of doubles, on the terms of math64.h: one reduction for every argument, by as
// many bits of 2 / pi as matter to it: M. Payne and R. Hanek, Radian reduction for trigonometric
// functions, ACM SIGNUM 18, 1983.
#pragma once

#include "math64.h"

namespace jaxcc {

#ifdef JAXCC_VECTOR_DOUBLE

// Bits 16 j + 1 to 16 j + 48 of 2 / pi behind the point, times 2^(16 j).
constexpr double kTwoOverPi[] = {
    0xa2f9836e4e44p-48, 0x836e4e441529p-48, 0x4e441529fc27p-48, 0x1529fc2757d1p-48,
    0xfc2757d1f534p-48, 0x57d1f534ddc0p-48, 0xf534ddc0db62p-48, 0xddc0db629599p-48,
    0xdb6295993c43p-48, 0x95993c439041p-48, 0x3c439041fe51p-48, 0x9041fe5163abp-48,
    0xfe5163abdebbp-48, 0x63abdebbc561p-48, 0xdebbc561b724p-48, 0xc561b7246e3ap-48,
    0xb7246e3a424dp-48, 0x6e3a424dd2e0p-48, 0x424dd2e00649p-48, 0xd2e006492eeap-48,
    0x06492eea09d1p-48, 0x2eea09d1921cp-48, 0x09d1921cfe1dp-48, 0x921cfe1deb1cp-48,
    0xfe1deb1cb129p-48, 0xeb1cb129a73ep-48, 0xb129a73ee882p-48, 0xa73ee88235f5p-48,
    0xe88235f52ebbp-48, 0x35f52ebb4484p-48, 0x2ebb4484e99cp-48, 0x4484e99c7026p-48,
    0xe99c7026b45fp-48, 0x7026b45f7e41p-48, 0xb45f7e413991p-48, 0x7e413991d639p-48,
    0x3991d6398353p-48, 0xd639835339f4p-48, 0x835339f49c84p-48, 0x39f49c845f8bp-48,
    0x9c845f8bbdf9p-48, 0x5f8bbdf9283bp-48, 0xbdf9283b1ff8p-48, 0x283b1ff897ffp-48,
    0x1ff897ffde05p-48, 0x97ffde05980fp-48, 0xde05980fef2fp-48, 0x980fef2f118bp-48,
    0xef2f118b5a0ap-48, 0x118b5a0a6d1fp-48, 0x5a0a6d1f6d36p-48, 0x6d1f6d367ecfp-48,
    0x6d367ecf27cbp-48, 0x7ecf27cb09b7p-48, 0x27cb09b74f46p-48, 0x09b74f463f66p-48,
    0x4f463f669e5fp-48, 0x3f669e5fea2dp-48, 0x9e5fea2d7527p-48, 0xea2d7527bac7p-48,
    0x7527bac7ebe5p-48, 0xbac7ebe5f17bp-48, 0xebe5f17b3d07p-48, 0xf17b3d0739f7p-48,
    0x3d0739f78a52p-48, 0x39f78a5292eap-48, 0x8a5292ea6bfbp-48, 0x92ea6bfb5fb1p-48,
    0x6bfb5fb11f8dp-48, 0x5fb11f8d5d08p-48, 0x1f8d5d085603p-48, 0x5d0856033046p-48,
    0x56033046fc7bp-48};

// x - 4 k, where k is whole.
JAXCC_FN double modulo_4(double x) { return x - 4.0 * __builtin_rint(0.25 * x); }

JAXCC_FN void add_to(Pair& sum, double x) {
  const double high = sum.high + x, part = high - sum.high;
  sum.low += (sum.high - (high - part)) + (x - part);
  sum.high = high;
}

// x = (4 k + quarter) pi / 2 + high + low, |high| <= pi / 4.
struct Angle {
  double high;
  double low;
  uint64_t quarter;
};

JAXCC_FN Angle reduced_angle(double x) {
  // x is a multiple of 2^(e - 52): the bits of 2 / pi before the j-th group make multiples of 4.
  const uint64_t exponent = (bits_of(x) >> 52) & 0x7ff, first = 1023 + 54;
  const uint64_t above = select(exponent < first, first, exponent) - first;
  const uint64_t j = above >> 4;
  const double y = x * double_of((1023 - 16 * j) << 52);
  const Pair a = product_of(y, kTwoOverPi[j]);
  const Pair b = product_of(y * 0x1p-48, kTwoOverPi[j + 3]);
  const Pair c = product_of(y * 0x1p-96, kTwoOverPi[j + 6]);
  const double d = y * 0x1p-144 * kTwoOverPi[j + 9];
  const double a0 = modulo_4(a.high), a1 = modulo_4(a.low), b0 = modulo_4(b.high);
  const WholeDouble quarter = nearest(a0 + a1 + b0);
  // What the angle loses where it is next to a multiple of pi / 2, the later terms have.
  Pair part = {a0 - quarter.value, c.low + d};
  add_to(part, a1);
  add_to(part, b0);
  add_to(part, c.high);
  add_to(part, b.low);
  const double high = part.high + part.low, low = part.low - (high - part.high);
  const double half_pi = 0x1.921fb54442d18p+0, half_pi_low = 0x1.1a62633145c07p-54;
  const Pair angle = product_of(high, half_pi);
  return {angle.high, fma(high, half_pi_low, fma(low, half_pi, angle.low)), (uint64_t)quarter.n};
}

// For |angle| <= pi / 4.
JAXCC_FN double sin_reduced(Angle angle) {
  const double r = angle.high, z = r * r;
  const double p =
      polynomial(z, -0.16666666666666632, 0.00833333333332237, -0.0001984126982977116,
                 2.755731367866252e-06, -2.5050755960832514e-08, 1.5896666471479474e-10);
  return r + fma(z * r, p, angle.low * fma(-0.5, z, 1.0));
}

JAXCC_FN double cos_reduced(Angle angle) {
  const double r = angle.high, z = r * r, half = 0.5 * z;
  const double p =
      polynomial(z, 0.0416666666666666, -0.0013888888888874064, 2.4801587289443458e-05,
                 -2.7557314340653896e-07, 2.0875721623042755e-09, -1.1359559298486424e-11);
  const double first = 1.0 - half;
  return first + ((1.0 - first) - half + fma(z * z, p, -r * angle.low));
}

// Negative if bit 1 of `quarter` is set.
JAXCC_FN double of_quarter(double x, uint64_t quarter) {
  return double_of(bits_of(x) ^ (quarter & 2) << 62);
}

// Below this an angle is its sine, and the bits of the product with 2 / pi may be out of range.
constexpr double kSmallAngle = 0x1p-27;

JAXCC_FN double sin(double x) {
  const Angle angle = reduced_angle(x);
  const double y = angle.quarter & 1 ? cos_reduced(angle) : sin_reduced(angle);
  return abs(x) < kSmallAngle ? x : of_quarter(y, angle.quarter);
}

JAXCC_FN double cos(double x) {
  const Angle angle = reduced_angle(x);
  const double y = angle.quarter & 1 ? sin_reduced(angle) : cos_reduced(angle);
  return abs(x) < kSmallAngle ? 1.0 : of_quarter(y, angle.quarter + 1);
}

JAXCC_FN double tan(double x) {
  const Angle angle = reduced_angle(x);
  const double s = sin_reduced(angle), c = cos_reduced(angle);
  const double y = angle.quarter & 1 ? -c / s : s / c;
  return abs(x) < kSmallAngle ? x : y;
}

#else

JAXCC_FN double sin(double x) { return JAXCC_LIBM(sin)(x); }
JAXCC_FN double cos(double x) { return JAXCC_LIBM(cos)(x); }
JAXCC_FN double tan(double x) { return JAXCC_LIBM(tan)(x); }

#endif

}  // namespace jaxcc
