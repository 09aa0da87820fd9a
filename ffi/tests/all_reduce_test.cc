// Reductions over ranks and the kernels of all-reduce against double, out of place and in place,
// with the special values.

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "../kernels.h"
#include "testing.h"

namespace jaxcc::testing {
namespace {

// Half types are written out here, one bit pattern at a time, so as not to check element.h with
// itself.
double from_half(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct Bf16 {
  uint16_t bits;
  double value() const { return from_half(bits, 8); }
  static constexpr double kEpsilon = 1.0 / 256, kTiny = 1e-38;
};
struct F16 {
  uint16_t bits;
  double value() const { return from_half(bits, 5); }
  static constexpr double kEpsilon = 1.0 / 2048, kTiny = 6e-8;
};
template <class T>
struct Number {
  T bits;
  double value() const { return static_cast<double>(bits); }
  static constexpr double kEpsilon =
      std::is_integral_v<T> ? 0 : 8 * std::numeric_limits<T>::epsilon();
  static constexpr double kTiny = std::is_integral_v<T> ? 0 : std::numeric_limits<T>::min();
};

double combine(const std::string& op, double a, double b) {
  if (op == "sum") return a + b;
  if (op == "prod") return a * b;
  return op == "max" ? std::fmax(a, b) : std::fmin(a, b);  // NaN is left out
}

template <class Type>
Type sample(Random& random) {
  using Bits = decltype(Type::bits);
  if constexpr (std::is_floating_point_v<Bits>) {
    const int64_t kind = random.integer(0, 40);
    if (kind == 0) return {std::numeric_limits<Bits>::quiet_NaN()};
    if (kind == 1) return {std::numeric_limits<Bits>::infinity()};
    if (kind == 2) return {-Bits{0}};
    return {static_cast<Bits>(random.normal())};
  } else if constexpr (std::is_same_v<Type, Number<Bits>>) {
    return {static_cast<Bits>(random.integer(std::is_signed_v<Bits> ? -9 : 0, 9))};
  } else {
    return {static_cast<Bits>(random.integer(0, 0xffff))};  // every number, infinity and NaN
  }
}

bool close(double got, double wanted, double scale, double epsilon, double tiny) {
  if (std::isnan(wanted)) return std::isnan(got);
  return got == wanted || std::abs(got - wanted) <= epsilon * scale + tiny;
}

template <class Type>
void check(const std::string& op, const std::string& dtype, double largest) {
  const jaxcc_tile_fn kernel = find_kernel("all_reduce." + op + "." + dtype).tile;
  CHECK(kernel);
  Random random(7);
  const double lowest = -std::numeric_limits<double>::infinity();
  for (int ranks : {1, 2, 3, 8}) {
    for (bool in_place : {false, true}) {
      for (bool stream : {false, true}) {
        const int64_t size = random.integer(1, 3000);
        const int64_t begin = random.integer(0, size - 1);
        std::vector<std::vector<Type>> in(ranks, std::vector<Type>(size)), out(ranks);
        for (auto& buffer : in) {
          for (Type& x : buffer) x = sample<Type>(random);
        }
        const auto before = in;
        std::vector<std::vector<void*>> buffers(ranks);
        std::vector<void* const*> views;
        for (int r = 0; r < ranks; ++r) {
          out[r] = std::vector<Type>(size, Type{static_cast<decltype(Type::bits)>(77)});
          buffers[r] = {in[r].data(), in_place ? in[r].data() : out[r].data()};
          views.push_back(buffers[r].data());
        }
        jaxcc_tile tile{};
        tile.buffers = views.data();
        tile.ranks = ranks;
        tile.first_result = 1;
        tile.begin = begin;
        tile.end = size;
        tile.stream = stream;
        const auto untouched = in_place ? before : out;
        kernel(&tile);
        const auto& after = in_place ? in : out;
        for (int r = 0; r < ranks; ++r) {
          for (int64_t i = 0; i < size; ++i) {
            if (i < begin) {
              CHECK(!std::memcmp(&after[r][i], &untouched[r][i], sizeof(Type)));
              continue;
            }
            double wanted = before[0][i].value(), scale = std::abs(wanted);
            if (ranks > 1 && op == "max") wanted = std::fmax(lowest, wanted);
            if (ranks > 1 && op == "min") wanted = std::fmin(-lowest, wanted);
            bool in_range = true;  // beyond, float and double part
            for (int peer = 1; peer < ranks; ++peer) {
              wanted = combine(op, wanted, before[peer][i].value());
              scale = std::max({scale, std::abs(wanted), std::abs(before[peer][i].value())});
              const double size = std::abs(wanted);
              in_range &= size == 0 || !std::isfinite(size) ||
                          (size > Type::kTiny && size < 0.99 * largest);
            }
            if (!in_range) continue;
            CHECK(close(after[r][i].value(), wanted, scale, Type::kEpsilon, Type::kTiny));
            CHECK(!std::memcmp(&after[r][i], &after[0][i], sizeof(Type)));
          }
        }
      }
    }
  }
}

// Three ranks' numbers put together by `op`.
template <class T>
std::vector<T> combined(const std::string& key, const std::vector<T> (&in)[3]) {
  std::vector<T> out(in[0].size());
  const void* from[] = {in[0].data(), in[1].data(), in[2].data()};
  find_combine(key).run(out.data(), from, 3, static_cast<int64_t>(out.size() * sizeof(T)));
  return out;
}

template <class T>
void check_bits(const std::string& dtype) {
  Random random(11);
  std::vector<T> in[3];
  for (auto& x : in) {
    for (int64_t i = 0; i < 700; ++i)
      x.push_back(static_cast<T>(random.integer(INT64_MIN, INT64_MAX)));
  }
  const auto all = combined("and." + dtype, in), any = combined("or." + dtype, in),
             odd = combined("xor." + dtype, in);
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i] == static_cast<T>(in[0][i] & in[1][i] & in[2][i]));
    CHECK(any[i] == static_cast<T>(in[0][i] | in[1][i] | in[2][i]));
    CHECK(odd[i] == static_cast<T>(in[0][i] ^ in[1][i] ^ in[2][i]));
  }
}

template <class T>
void check_complex(const std::string& dtype) {
  Random random(12);
  std::vector<std::complex<T>> in[3];
  for (auto& x : in) {
    for (int64_t i = 0; i < 700; ++i) x.emplace_back(random.normal(), random.normal());
  }
  const auto sum = combined("sum." + dtype, in), product = combined("prod." + dtype, in);
  for (size_t i = 0; i < sum.size(); ++i) {
    std::complex<double> added = 0, multiplied = 1;
    for (const auto& x : in) {
      added += std::complex<double>(x[i]);
      multiplied *= std::complex<double>(x[i]);
    }
    const double limit = 100 * std::numeric_limits<T>::epsilon();
    CHECK(std::abs(std::complex<double>(sum[i]) - added) < limit);
    CHECK(std::abs(std::complex<double>(product[i]) - multiplied) <
          limit * (1 + std::abs(multiplied)));
  }
}

void check_wrap() {
  int32_t a = INT32_MAX, b = 3, sum, product;
  void *left[] = {&a, &sum}, *right[] = {&b, &sum};
  void* const* views[] = {left, right};
  jaxcc_tile tile{};
  tile.buffers = views;
  tile.ranks = 2;
  tile.first_result = 1;
  tile.end = 1;
  find_kernel("all_reduce.sum.i32").tile(&tile);
  CHECK(sum == INT32_MIN + 2);
  left[1] = right[1] = &product;
  find_kernel("all_reduce.prod.i32").tile(&tile);
  CHECK(product == INT32_MAX - 2);
}

}  // namespace
}  // namespace jaxcc::testing

int main() {
  using namespace jaxcc;
  using namespace jaxcc::testing;
  for (const std::string op : {"sum", "max", "min", "prod"}) {
    check<Number<float>>(op, "f32", 3e38);
    check<Number<double>>(op, "f64", 1e308);
    check<Number<int32_t>>(op, "i32", INFINITY);
    check<Number<int64_t>>(op, "i64", INFINITY);
    check<Number<uint32_t>>(op, "u32", INFINITY);
    check<Number<uint64_t>>(op, "u64", INFINITY);
    check<Number<int8_t>>(op, "i8", INT8_MAX);
    check<Number<int16_t>>(op, "i16", INT16_MAX);
    check<Number<uint8_t>>(op, "u8", UINT8_MAX);
    check<Number<uint16_t>>(op, "u16", UINT16_MAX);
    check<testing::Bf16>(op, "bf16", 3e38);
    check<testing::F16>(op, "f16", 65504);
  }
  check_wrap();
  check_bits<int8_t>("i8");
  check_bits<int16_t>("i16");
  check_bits<int32_t>("i32");
  check_bits<int64_t>("i64");
  check_bits<uint8_t>("u8");
  check_bits<uint16_t>("u16");
  check_bits<uint32_t>("u32");
  check_bits<uint64_t>("u64");
  check_complex<float>("c64");
  check_complex<double>("c128");
  CHECK(find_combine("sum.bf16").size == 2 && find_combine("sum.c128").size == 16);
  CHECK(!find_combine("max.c64").run && !find_combine("and.f32").run && !find_combine("").run);
  CHECK(!find_kernel("all_reduce.max.c64").tile);
  CHECK(load_kernel("none", "/no/such/file.so").find("/no/such/file.so") != std::string::npos);
  CHECK(!find_kernel("none").tile);
  return 0;
}
