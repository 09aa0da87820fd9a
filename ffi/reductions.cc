// Reductions over ranks, for every dtype, and the kernels of a plain all-reduce.

#include "protocol/reductions.h"

#include <map>

#include "kernels.h"
#include "protocol/element.h"
#include "protocol/stream.h"
#include "rendezvous.h"

// The library itself is built for any processor of its kind; these loops also for newer ones.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define JAXCC_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define JAXCC_CLONES
#endif

namespace jaxcc {
namespace {

constexpr int64_t kBlock = 512;

template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Value = float;
  static float load(uint16_t x) { return from_bf16(x); }
  static uint16_t store(float x) { return to_bf16(x); }
};

struct F16 {
  using Stored = uint16_t;
  using Value = float;
  static float load(uint16_t x) { return from_f16(x); }
  static uint16_t store(float x) { return to_f16(x); }
};

template <class T>
struct Complex {
  T re, im;

  constexpr Complex(T re = 0, T im = 0) : re(re), im(im) {}
  constexpr bool operator==(const Complex& b) const { return re == b.re && im == b.im; }
  Complex operator+(const Complex& b) const { return {re + b.re, im + b.im}; }
  Complex operator*(const Complex& b) const {
    return {re * b.re - im * b.im, re * b.im + im * b.re};
  }
};

template <class Op, class Type>
__attribute__((always_inline)) inline void combine(void* to, const void* const* from, int32_t ranks,
                                                   int64_t bytes) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  Value sum[kBlock];
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Stored));
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = count - begin < kBlock ? count - begin : kBlock;
    const auto operand = [&](int32_t rank) {
      return static_cast<const Stored*>(from[rank]) + begin;
    };
    const Stored* first = operand(0);
    if (ranks == 1) {
      for (int64_t i = 0; i < size; ++i) sum[i] = Type::load(first[i]);
    } else {
      const Stored* second = operand(1);
      for (int64_t i = 0; i < size; ++i) {
        sum[i] = over_ranks<Op>(Type::load(first[i]), Type::load(second[i]));
      }
    }
    for (int32_t rank = 2; rank < ranks; ++rank) {
      const Stored* next = operand(rank);
      for (int64_t i = 0; i < size; ++i) sum[i] = Op::apply(sum[i], Type::load(next[i]));
    }
    Stored* out = static_cast<Stored*>(to) + begin;
    for (int64_t i = 0; i < size; ++i) out[i] = Type::store(sum[i]);
  }
}

// Reads a block of all ranks before it writes any of it, so operands and results may be the same
// buffers.
void all_reduce(const jaxcc_tile* tile, Combine combine) {
  alignas(64) char out[kBlock * sizeof(Complex<double>)];
  const void* in[kMaxRanks];
  for (int64_t begin = tile->begin; begin < tile->end; begin += kBlock) {
    const int64_t left = tile->end - begin;
    const int64_t bytes = (left < kBlock ? left : kBlock) * combine.size;
    const auto place = [&](int32_t rank, int32_t index) {
      return static_cast<char*>(tile->buffers[rank][index]) + begin * combine.size;
    };
    for (int32_t rank = 0; rank < tile->ranks; ++rank) in[rank] = place(rank, tile->first_operand);
    combine.run(out, in, tile->ranks, bytes);
    for (int32_t rank = 0; rank < tile->ranks; ++rank) {
      copy(place(rank, tile->first_result), out, bytes, tile->stream);
    }
  }
}

// X(op, Op, dtype, Type) for every reduction.
#define JAXCC_INTEGERS(X, op, Op) \
  X(op, Op, i8, Plain<int8_t>)    \
  X(op, Op, i16, Plain<int16_t>)  \
  X(op, Op, i32, Plain<int32_t>)  \
  X(op, Op, i64, Plain<int64_t>)  \
  X(op, Op, u8, Plain<uint8_t>)   \
  X(op, Op, u16, Plain<uint16_t>) \
  X(op, Op, u32, Plain<uint32_t>) \
  X(op, Op, u64, Plain<uint64_t>)
#define JAXCC_ORDERED(X, op, Op) \
  JAXCC_INTEGERS(X, op, Op)      \
  X(op, Op, f32, Plain<float>)   \
  X(op, Op, f64, Plain<double>)  \
  X(op, Op, bf16, Bf16)          \
  X(op, Op, f16, F16)
#define JAXCC_NUMBERS(X, op, Op)        \
  JAXCC_ORDERED(X, op, Op)              \
  X(op, Op, c64, Plain<Complex<float>>) \
  X(op, Op, c128, Plain<Complex<double>>)
#define JAXCC_ALL(X)             \
  JAXCC_NUMBERS(X, sum, Sum)     \
  JAXCC_NUMBERS(X, prod, Prod)   \
  JAXCC_ORDERED(X, max, RankMax) \
  JAXCC_ORDERED(X, min, RankMin) \
  JAXCC_INTEGERS(X, and, And)    \
  JAXCC_INTEGERS(X, or, Or)      \
  JAXCC_INTEGERS(X, xor, Xor)

#define JAXCC_FUNCTIONS(op, Op, dtype, Type)                                                \
  JAXCC_CLONES void combine_##op##_##dtype(void* out, const void* const* in, int32_t ranks, \
                                           int64_t bytes) {                                 \
    combine<Op, Type>(out, in, ranks, bytes);                                               \
  }                                                                                         \
  void all_reduce_##op##_##dtype(const jaxcc_tile* tile) {                                  \
    all_reduce(tile, {combine_##op##_##dtype, sizeof(Type::Stored)});                       \
  }
#define JAXCC_COMBINE(op, Op, dtype, Type) \
  {#op "." #dtype, {combine_##op##_##dtype, sizeof(Type::Stored)}},
#define JAXCC_KERNEL(op, Op, dtype, Type) \
  {"all_reduce." #op "." #dtype,          \
   {all_reduce_##op##_##dtype, nullptr, {combine_##op##_##dtype, sizeof(Type::Stored)}}},

JAXCC_ALL(JAXCC_FUNCTIONS)

}  // namespace

Combine find_combine(const std::string& key) {
  static const auto& all = *new std::map<std::string, Combine>{JAXCC_ALL(JAXCC_COMBINE)};
  const auto found = all.find(key);
  return found == all.end() ? Combine{} : found->second;
}

const std::vector<std::pair<std::string, Kernel>>& all_reduce_kernels() {
  static const auto& kernels =
      *new std::vector<std::pair<std::string, Kernel>>{JAXCC_ALL(JAXCC_KERNEL)};
  return kernels;
}

}  // namespace jaxcc
