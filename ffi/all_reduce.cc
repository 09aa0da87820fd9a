// The kernels of a plain all-reduce.

#include <cstring>

#include "kernels.h"
#include "protocol/element.h"
#include "protocol/reductions.h"
#include "protocol/stream.h"

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

// Reads a block of all ranks before it writes any of it, so operands and results may be the same
// buffers.
template <class Op, class Type>
__attribute__((always_inline)) inline void reduce(const jaxcc_tile* tile) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  Value sum[kBlock];
  alignas(64) Stored out[kBlock];
  for (int64_t begin = tile->begin; begin < tile->end; begin += kBlock) {
    const int64_t left = tile->end - begin;
    const int64_t size = left < kBlock ? left : kBlock;
    const auto operand = [&](int32_t rank) {
      return static_cast<const Stored*>(tile->buffers[rank][tile->first_operand]) + begin;
    };
    const Stored* first = operand(0);
    for (int64_t i = 0; i < size; ++i) sum[i] = Type::load(first[i]);
    for (int32_t rank = 1; rank < tile->ranks; ++rank) {
      const Stored* next = operand(rank);
      for (int64_t i = 0; i < size; ++i) sum[i] = Op::apply(sum[i], Type::load(next[i]));
    }
    for (int64_t i = 0; i < size; ++i) out[i] = Type::store(sum[i]);
    for (int32_t rank = 0; rank < tile->ranks; ++rank) {
      Stored* result = static_cast<Stored*>(tile->buffers[rank][tile->first_result]) + begin;
      if (tile->stream) {
        stream(result, out, size * sizeof(Stored));
      } else {
        std::memcpy(result, out, size * sizeof(Stored));
      }
    }
  }
}

#define JAXCC_KERNEL(op, Op, dtype, Type) \
  JAXCC_CLONES void op##_##dtype(const jaxcc_tile* tile) { reduce<Op, Type>(tile); }
#define JAXCC_ENTRY(op, Op, dtype, Type) {"all_reduce." #op "." #dtype, op##_##dtype},
#define JAXCC_DTYPES(X, op, Op)   \
  X(op, Op, f32, Plain<float>)    \
  X(op, Op, f64, Plain<double>)   \
  X(op, Op, i32, Plain<int32_t>)  \
  X(op, Op, i64, Plain<int64_t>)  \
  X(op, Op, u32, Plain<uint32_t>) \
  X(op, Op, bf16, Bf16)           \
  X(op, Op, f16, F16)
#define JAXCC_ALL(X)        \
  JAXCC_DTYPES(X, sum, Sum) \
  JAXCC_DTYPES(X, max, Max) \
  JAXCC_DTYPES(X, min, Min) \
  JAXCC_DTYPES(X, prod, Prod)

JAXCC_ALL(JAXCC_KERNEL)

}  // namespace

const std::vector<std::pair<std::string, jaxcc_tile_fn>>& all_reduce_kernels() {
  static const auto& kernels =
      *new std::vector<std::pair<std::string, jaxcc_tile_fn>>{JAXCC_ALL(JAXCC_ENTRY)};
  return kernels;
}

}  // namespace jaxcc
