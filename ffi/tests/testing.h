// What the C++ tests share: a check that fails the program with its place, seeded random numbers,
// and threads that act as ranks.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../participant.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

namespace jaxcc::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  float normal() { return std::normal_distribution<float>()(engine_); }
  std::vector<float> normals(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal();
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

struct Shape {
  int64_t outer;
  int64_t extent;
  int64_t more = 0;  // elements of a rank's block beyond an even division
};

// Tensors divided among the `ranks` of a team; tensor t is of kind t % kinds.
inline std::unique_ptr<FusedSignature> make_signature(const std::string& op,
                                                      const std::vector<Shape>& shapes, int ranks,
                                                      int scalars, const std::vector<Kind>& kinds) {
  auto signature = std::make_unique<FusedSignature>();
  signature->op = op;
  signature->text = op + " of";
  signature->kinds = kinds;
  for (const Shape& shape : shapes) {
    const int32_t kind = static_cast<int32_t>(signature->tensors.size() % kinds.size());
    const int64_t block = (shape.extent + ranks - 1) / ranks + shape.more;
    signature->tensors.push_back({shape.outer, shape.extent, block, kind, 0, 0, 0, 0, 0});
    signature->text += " " + std::to_string(shape.outer) + "x" + std::to_string(shape.extent);
    signature->elements += shape.outer * shape.extent;
  }
  signature->divide_among(ranks, 1, scalars);
  return signature;
}

inline std::unique_ptr<FusedSignature> make_signature(const std::string& op,
                                                      const std::vector<Shape>& shapes, int ranks,
                                                      int scalars, int operands, int results,
                                                      int totals = 0) {
  return make_signature(op, shapes, ranks, scalars, {{operands, results, totals, 1}});
}

// Runs body(rank) on a thread for each rank.
template <class Body>
void on_ranks(int ranks, Body body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace jaxcc::testing
