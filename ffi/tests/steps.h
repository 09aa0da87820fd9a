// Random collectives of small whole numbers, whose results every dtype holds exactly.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "../kernels.h"
#include "../staged.h"
#include "testing.h"

namespace jaxcc::testing {

struct Dtype {
  const char* name;
  int64_t size;
  void (*put)(void*, double);
  double (*get)(const void*);
};

template <class T>
Dtype number(const char* name) {
  return {name, sizeof(T), [](void* at, double x) { *static_cast<T*>(at) = static_cast<T>(x); },
          [](const void* at) { return static_cast<double>(*static_cast<const T*>(at)); }};
}

// The upper half of an f32.
inline void put_bf16(void* at, double x) {
  const float wide = static_cast<float>(x);
  std::memcpy(at, reinterpret_cast<const char*>(&wide) + 2, 2);
}
inline double get_bf16(const void* at) {
  float wide = 0;
  std::memcpy(reinterpret_cast<char*>(&wide) + 2, at, 2);
  return wide;
}

inline const Dtype kDtypes[] = {number<float>("f32"),
                                number<double>("f64"),
                                number<int32_t>("i32"),
                                {"bf16", 2, put_bf16, get_bf16}};

enum Collective { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kPermute, kMany };
enum Op { kSum, kMax, kMin };
inline const char* const kOps[] = {"sum", "max", "min"};

struct Step {
  Collective kind = kAllReduce;
  Op op = kSum;
  const Dtype* dtype = nullptr;
  int64_t count = 0;  // elements of one rank's block
  int ranks = 0;
  int root = 0;  // or how far a permutation shifts; whoever would get the root's gets zeros
  bool stream = false;
  bool in_place = false;
  uint64_t seed = 0;
  std::shared_ptr<const Signature> signature;

  bool whole() const { return kind == kAllToAll || kind == kReduceScatter; }
  int64_t operand() const { return whole() ? ranks * count : count; }
  int64_t result() const { return kind == kAllGather || kind == kAllToAll ? ranks * count : count; }
};

// Element i of a rank's operand: a whole number, whose sums every dtype holds exactly.
inline double value(const Step& step, int rank, int64_t i) {
  uint64_t x = step.seed + static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15 +
               static_cast<uint64_t>(i) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 31) * 0x94d049bb133111eb;
  return static_cast<double>((x >> 40) % 17) - 8;
}

inline double reduced(const Step& step, int64_t i) {
  double all = value(step, 0, i);
  for (int rank = 1; rank < step.ranks; ++rank) {
    const double x = value(step, rank, i);
    all = step.op == kSum ? all + x : step.op == kMax ? std::max(all, x) : std::min(all, x);
  }
  return all;
}

// Element i of a rank's result.
inline double expected(const Step& step, int rank, int64_t i) {
  const int source = static_cast<int>(i / step.count);
  const int before = (rank + step.ranks - step.root) % step.ranks;
  switch (step.kind) {
    case kAllReduce:
      return reduced(step, i);
    case kReduceScatter:
      return reduced(step, rank * step.count + i);
    case kAllGather:
      return value(step, source, i % step.count);
    case kAllToAll:
      return value(step, source, rank * step.count + i % step.count);
    case kBroadcast:
      return value(step, step.root, i);
    default:
      return before == step.root ? 0 : value(step, before, i);
  }
}

// The moves that bring every rank its result.
inline std::vector<int64_t> moves(const Step& step) {
  const int64_t block = step.count * step.dtype->size;
  std::vector<int64_t> list;
  const auto move = [&](int source, int rank, int64_t from, int64_t to) {
    list.insert(list.end(),
                {source, rank, block, from * block, block, block, to * block, block, block});
  };
  for (int rank = 0; rank < step.ranks; ++rank) {
    const int before = (rank + step.ranks - step.root) % step.ranks;
    if (step.kind == kReduceScatter) move(kEveryone, rank, rank, 0);
    if (step.kind == kBroadcast) move(step.root, rank, 0, 0);
    if (step.kind == kPermute) move(before == step.root ? kNobody : before, rank, 0, 0);
    for (int source = 0; source < step.ranks; ++source) {
      if (step.kind == kAllGather) move(source, rank, 0, source);
      if (step.kind == kAllToAll) move(source, rank, rank, source);
    }
  }
  return list;
}

inline void describe(Step& step) {
  const std::string reduction = std::string(kOps[step.op]) + "." + step.dtype->name;
  if (step.kind == kAllReduce) {
    step.signature =
        make_signature("all_reduce." + reduction, {{1, step.count}}, step.ranks, 0, 1, 1);
  } else {
    auto signature = std::make_unique<MoveSignature>();
    signature->op = signature->text = "moves";
    signature->operand_bytes = step.operand() * step.dtype->size;
    signature->result_bytes = step.result() * step.dtype->size;
    const bool reduces = step.kind == kReduceScatter;
    const auto list = moves(step);
    const std::string problem =
        jaxcc::describe(*signature, step.ranks, reduces ? find_combine(reduction) : Combine{},
                        {list.data(), list.size()});
    CHECK(problem.empty());
    step.signature = std::move(signature);
  }
}

// A step of `count` elements in a block.
inline Step random_step(Random& random, int ranks, int64_t count) {
  Step step;
  step.kind = static_cast<Collective>(random.integer(0, kMany - 1));
  step.op = static_cast<Op>(random.integer(kSum, kMin));
  step.dtype = &kDtypes[random.integer(0, 3)];
  step.count = count;
  step.ranks = ranks;
  step.root = static_cast<int>(random.integer(0, ranks - 1));
  step.stream = random.integer(0, 3) == 0;
  step.in_place = step.kind == kAllReduce && random.integer(0, 1);
  step.seed = random.integer(0, INT64_MAX);
  describe(step);
  return step;
}

// One rank's buffers in a step, the result poisoned.
class Buffers {
 public:
  Buffers(const Step& step, int rank)
      : step_(step),
        rank_(rank),
        in_(step.operand() * step.dtype->size),
        out_(step.result() * step.dtype->size, 0x5a),
        result_(step.in_place ? in_.data() : out_.data()),
        both_{in_.data(), result_} {
    for (int64_t i = 0; i < step.operand(); ++i) {
      step.dtype->put(&in_[i * step.dtype->size], value(step, rank, i));
    }
  }
  Buffers(const Buffers&) = delete;

  void* const* both() const { return both_; }

  // Holds the result against plain sums in double, of many elements at some of them.
  void check(Random& random) const {
    const int64_t size = step_.dtype->size, last = step_.result() - 1;
    const int64_t stride = step_.result() < 5000 ? 1 : random.integer(100, 300);
    for (int64_t i = 0; i < last; i += stride) check(i, size);
    check(last, size);
  }

 private:
  void check(int64_t i, int64_t size) const {
    CHECK(step_.dtype->get(result_ + i * size) == expected(step_, rank_, i));
  }

  const Step& step_;
  const int rank_;
  std::vector<char> in_, out_;
  char* const result_;
  void* const both_[2];
};

// Runs a step by outboxes, on a Port or an Exchanger.
template <class Rank>
Status run_by_outboxes(Rank& rank, const Step& step, void* const* buffers) {
  constexpr bool at_port = std::is_same_v<Rank, Port>;
  if (step.kind != kAllReduce) {
    const auto& signature = static_cast<const MoveSignature&>(*step.signature);
    if constexpr (at_port)
      return run_staged(rank, -1, signature, buffers, step.stream);
    else
      return run_staged(rank, signature, buffers, step.stream);
  }
  const auto& signature = static_cast<const FusedSignature&>(*step.signature);
  const int32_t size = static_cast<int32_t>(step.dtype->size);
  StagedKernel staged;
  const std::string problem = staged.plan(signature, find_kernel(signature.op),
                                          {{kTeam, size}, {kTeam, size}}, rank.outbox_bytes());
  CHECK(problem.empty());
  if constexpr (at_port)
    return staged.run(rank, -1, buffers, step.stream);
  else
    return staged.run(rank, buffers, step.stream);
}

}  // namespace jaxcc::testing
