// Collectives with known results, for any world of ranks: groups of threads, or channels.
//
// A world (see worlds.h) has
//   World(int ranks)
//   bool run(int seat, const FusedSignature&, void* const* buffers, bool stream, const Epilogue&,
//            int64_t place)
// where an Epilogue also says whose its kind's buffers are (reach).
#pragma once

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "../protocol/send.h"
#include "../protocol/staging.h"
#include "../protocol/total.h"
#include "testing.h"

namespace jaxcc::testing {

// w = w - scale * (sum of g + m), gathered in place; m = sum of g, sliced in place.
struct Update {
  static constexpr int32_t reach[] = {kTeam, kOwner, kOwner, kTeam, kOwner};

  template <class Lanes>
  void tile(const jaxcc_tile& tile, const Lanes& lanes) const {
    const auto buffer = [&](int rank, int index) {
      return static_cast<float*>(tile.buffers[rank][index]);
    };
    const float scale = buffer(tile.owner, 0)[0];
    const float* w = buffer(tile.owner, tile.first_operand + 1);
    const float* m = buffer(tile.owner, tile.first_operand + 2) - tile.shift;
    float* m_out = buffer(tile.owner, tile.first_result + 1) - tile.shift;
    for (int64_t i = tile.begin + lanes.first(); i < tile.end; i += lanes.step()) {
      float g = 0;
      for (int rank = 0; rank < tile.ranks; ++rank) g += buffer(rank, tile.first_operand)[i];
      const float out = w[i] - scale * (g + m[i]);
      m_out[i] = g;
      for (int rank = 0; rank < tile.ranks; ++rank) buffer(rank, tile.first_result)[i] = out;
    }
  }
  void total(const jaxcc_parts&) const {}
};

// Total 0 of each tensor: the sum over its elements of what ranks hold of them.
struct Sums {
  static constexpr int32_t reach[] = {kTeam, kTotal};
  using Sum = Total<float, jaxcc::Sum>;

  template <class Lanes>
  void tile(const jaxcc_tile& tile, const Lanes&) const {
    Sum sum(tile, 0);
    for (int64_t block = tile.begin, end; block < tile.end; block = end) {
      end = block_end<OneLane>(block, tile.end);
      const auto terms = sum.run(block, block);
      for (int64_t i = 0; i < end - block; ++i) {
        float term = 0;
        for (int r = 0; r < tile.ranks; ++r) {
          term += static_cast<const float*>(tile.buffers[r][tile.first_operand])[block + i];
        }
        terms.put(i, term);
      }
      sum.finish(block, end);
    }
  }
  void total(const jaxcc_parts& parts) const {
    const float sum = Sum::of(parts, 0);
    for (int r = 0; r < parts.ranks; ++r) {
      *static_cast<float*>(parts.buffers[r][parts.first_result]) = sum;
    }
  }
};

// Twice the sum of what the team's ranks hold, to the team that receives it: slices, and the whole.
struct Handed {
  static constexpr int32_t reach[] = {kTeam, kReceiver, kReceivers};

  template <class Lanes>
  void tile(const jaxcc_tile& tile, const Lanes&) const {
    Send<float, false> slice(tile, tile.first_result);
    Send<float, true> whole(tile, tile.first_result + 1);
    for (int64_t block = tile.begin, end; block < tile.end; block = end) {
      end = block_end<OneLane>(block, tile.end);
      const auto a = slice.run(block, block);
      const auto b = whole.run(block, block);
      for (int64_t i = 0; i < end - block; ++i) {
        float sum = 0;
        for (int r = 0; r < tile.ranks; ++r) {
          sum += static_cast<const float*>(tile.buffers[r][tile.first_operand])[block + i];
        }
        a.put(i, 2 * sum);
        b.put(i, 2 * sum);
      }
      slice.finish(block, end);
      whole.finish(block, end);
    }
  }
  void total(const jaxcc_parts&) const {}
};

// Buffers of one rank: the scale, then g, w, m of each tensor, then w and m again.
struct Rank {
  float scale;
  std::vector<std::vector<float>> g, w, m;
  std::vector<void*> buffers;
};

struct Problem {
  std::unique_ptr<FusedSignature> signature;
  std::vector<Rank> ranks;
  std::vector<void* const*> views;
};

inline Problem make_problem(const std::vector<Shape>& shapes, int ranks, Random& random) {
  Problem problem{make_signature("update", shapes, ranks, 1, 3, 2), std::vector<Rank>(ranks), {}};
  const float scale = random.normal();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> w;
  for (const Shape& shape : shapes) w.push_back(random.normals(shape.outer * shape.extent));
  for (int r = 0; r < ranks; ++r) {
    Rank& rank = problem.ranks[r];
    rank.scale = scale;
    rank.buffers = {&rank.scale};
    for (size_t t = 0; t < shapes.size(); ++t) {
      const Tensor& tensor = problem.signature->tensors[t];
      rank.g.push_back(random.normals(tensor.outer * tensor.extent));
      rank.w.push_back(w[t]);
      rank.m.push_back(random.normals(tensor.outer * tensor.block));
      // A rank's w is read on the elements that it owns only.
      for (int64_t i = 0; i < tensor.outer * tensor.extent; ++i) {
        if (i % tensor.extent / tensor.block != r) rank.w[t][i] = nan;
      }
    }
    for (size_t t = 0; t < shapes.size(); ++t) {
      for (auto* list : {&rank.g, &rank.w, &rank.m}) rank.buffers.push_back((*list)[t].data());
    }
    for (size_t t = 0; t < shapes.size(); ++t) {
      for (auto* list : {&rank.w, &rank.m}) rank.buffers.push_back((*list)[t].data());
    }
    problem.views.push_back(rank.buffers.data());
  }
  return problem;
}

// What one rank has after the update.
inline void check_rank(const Problem& before, const Problem& after, int rank) {
  for (size_t t = 0; t < before.signature->tensors.size(); ++t) {
    const Tensor& tensor = before.signature->tensors[t];
    for (int64_t i = 0; i < tensor.outer * tensor.extent; ++i) {
      const int owner = static_cast<int>(i % tensor.extent / tensor.block);
      const int64_t local = i / tensor.extent * tensor.block + i % tensor.extent % tensor.block;
      double g = 0;
      for (const Rank& rank : before.ranks) g += rank.g[t][i];
      const Rank& own = before.ranks[owner];
      const double w = own.w[t][i] - double{own.scale} * (g + own.m[t][local]);
      if (owner == rank) CHECK(std::abs(after.ranks[rank].m[t][local] - g) < 1e-5);
      CHECK(std::abs(after.ranks[rank].w[t][i] - w) < 1e-4);
    }
  }
}

inline void check_update(const Problem& before, const Problem& after) {
  for (size_t r = 0; r < before.ranks.size(); ++r) {
    check_rank(before, after, static_cast<int>(r));
    for (size_t t = 0; t < before.signature->tensors.size(); ++t) {
      CHECK(after.ranks[r].w[t] == after.ranks[0].w[t]);
    }
  }
}

inline Problem copy(const Problem& from, const std::vector<Shape>& shapes) {
  Random unused(0);
  Problem to = make_problem(shapes, static_cast<int>(from.ranks.size()), unused);
  for (size_t r = 0; r < from.ranks.size(); ++r) {
    to.ranks[r].scale = from.ranks[r].scale;
    for (size_t t = 0; t < shapes.size(); ++t) {
      // Element by element: the buffers' addresses are in the views already.
      std::copy(from.ranks[r].g[t].begin(), from.ranks[r].g[t].end(), to.ranks[r].g[t].begin());
      std::copy(from.ranks[r].w[t].begin(), from.ranks[r].w[t].end(), to.ranks[r].w[t].begin());
      std::copy(from.ranks[r].m[t].begin(), from.ranks[r].m[t].end(), to.ranks[r].m[t].begin());
    }
  }
  return to;
}

inline std::vector<Shape> random_shapes(Random& random, int trial) {
  std::vector<Shape> shapes(random.integer(1, trial % 7 == 0 ? 200 : 4));
  const bool large = trial % 5 == 0 && shapes.size() < 5;
  for (Shape& shape : shapes) {
    shape = {random.integer(1, 8), random.integer(0, large ? 12'000 : 200)};
  }
  return shapes;
}

// Many collectives of different shapes, one after another, with ranks that come at different times,
// as other ranks than their seats are.
template <class World>
void check_updates(int ranks, int trials) {
  Random random(100 + ranks);
  World world(ranks);
  std::vector<std::vector<Shape>> shapes;
  std::vector<Problem> before, after;
  std::vector<std::vector<int64_t>> places;  // of each seat
  for (int trial = 0; trial < trials; ++trial) {
    shapes.push_back(random_shapes(random, trial));
    before.push_back(make_problem(shapes.back(), ranks, random));
    after.push_back(copy(before.back(), shapes.back()));
    std::vector<int64_t> place(ranks);
    std::iota(place.begin(), place.end(), ranks * random.integer(0, 3));
    for (int r = ranks - 1; r > 0; --r) std::swap(place[r], place[random.integer(0, r)]);
    places.push_back(place);
  }
  on_ranks(ranks, [&](int seat) {
    Random delays(seat);
    for (int trial = 0; trial < trials; ++trial) {
      if (delays.integer(0, 9) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(delays.integer(0, 300)));
      }
      Problem& problem = after[trial];
      const int64_t place = places[trial][seat];
      CHECK(world.run(seat, *problem.signature, problem.views[place % ranks], trial % 2 == 0,
                      Update(), place));
    }
  });
  for (int trial = 0; trial < trials; ++trial) check_update(before[trial], after[trial]);
}

// Many lists of tensors, empty ones among them; every rank gets the same sums.
template <class World>
void check_totals(int ranks, int trials) {
  Random random(300 + ranks);
  World world(ranks);
  struct Totals {
    std::unique_ptr<FusedSignature> signature;
    std::vector<std::vector<std::vector<float>>> given;  // of each rank and tensor
    std::vector<std::vector<float>> sums;
    std::vector<std::vector<void*>> buffers;
  };
  std::vector<Totals> all(trials);
  for (int trial = 0; trial < trials; ++trial) {
    Totals& one = all[trial];
    one.signature = make_signature("totals", random_shapes(random, trial), ranks, 0, 1, 1, 1);
    const size_t count = one.signature->tensors.size();
    one.given.resize(ranks, std::vector<std::vector<float>>(count));
    one.sums.resize(ranks, std::vector<float>(count, -1));
    one.buffers.resize(ranks);
    for (int r = 0; r < ranks; ++r) {
      for (size_t t = 0; t < count; ++t) {
        const Tensor& tensor = one.signature->tensors[t];
        one.given[r][t] = random.normals(tensor.outer * tensor.extent);
        one.buffers[r].push_back(one.given[r][t].data());
      }
      for (float& sum : one.sums[r]) one.buffers[r].push_back(&sum);
    }
  }
  on_ranks(ranks, [&](int r) {
    for (Totals& one : all) {
      CHECK(world.run(r, *one.signature, one.buffers[r].data(), false, Sums()));
    }
  });
  for (const Totals& one : all) {
    for (size_t t = 0; t < one.sums[0].size(); ++t) {
      double sum = 0, size = 1;
      for (const auto& given : one.given) {
        for (float x : given[t]) sum += x, size += std::abs(x);
      }
      for (const auto& sums : one.sums) {
        CHECK(std::abs(sums[t] - sum) < 1e-6 * size);
        CHECK(sums[t] == one.sums[0][t]);
      }
    }
  }
}

// Teams that send along any permutation, or a part of one: every rank of a team gets what the ranks
// of the one that sends to it made, or zeros.
template <class World>
void check_sends(int ranks, int teams, int trials) {
  Random random(400 + 10 * ranks + teams);
  const int members = ranks * teams;
  World world(members);
  struct Sent {
    std::unique_ptr<FusedSignature> signature;
    std::vector<int> source;                                             // of each team, or -1
    std::vector<std::vector<std::vector<float>>> given, slices, wholes;  // of each rank and tensor
    std::vector<std::vector<void*>> buffers;
  };
  std::vector<Sent> all(trials);
  for (int trial = 0; trial < trials; ++trial) {
    Sent& one = all[trial];
    one.signature = make_signature("handed", random_shapes(random, trial), ranks, 0, 1, 2);
    FusedSignature& signature = *one.signature;
    std::vector<int32_t> order(teams);
    for (int k = 0; k < teams; ++k) order[k] = k;
    for (int k = teams - 1; k > 0; --k) std::swap(order[k], order[random.integer(0, k)]);
    one.source.assign(teams, -1);
    for (int k = 0; k < teams; ++k) {
      const bool sends = random.integer(0, 3) > 0;
      signature.targets.push_back(sends ? order[k] : -1);
      if (sends) one.source[order[k]] = k;
    }
    signature.divide_among(ranks, teams, 0);
    one.given.resize(members);
    one.slices.resize(members);
    one.wholes.resize(members);
    one.buffers.resize(members);
    for (int r = 0; r < members; ++r) {
      for (const Tensor& tensor : signature.tensors) {
        const int64_t size = tensor.outer * tensor.extent;
        one.given[r].push_back(random.normals(size));
        one.slices[r].push_back(std::vector<float>(tensor.outer * tensor.block, -1));
        one.wholes[r].push_back(std::vector<float>(size, -1));
      }
      for (auto& given : one.given[r]) one.buffers[r].push_back(given.data());
      for (size_t t = 0; t < signature.tensors.size(); ++t) {
        one.buffers[r].push_back(one.slices[r][t].data());
        one.buffers[r].push_back(one.wholes[r][t].data());
      }
    }
  }
  on_ranks(members, [&](int r) {
    for (int trial = 0; trial < trials; ++trial) {
      Sent& one = all[trial];
      CHECK(world.run(r, *one.signature, one.buffers[r].data(), trial % 2 == 0, Handed()));
    }
  });
  for (const Sent& one : all) {
    for (size_t t = 0; t < one.signature->tensors.size(); ++t) {
      const Tensor& tensor = one.signature->tensors[t];
      for (int64_t i = 0; i < tensor.outer * tensor.extent; ++i) {
        const int owner = static_cast<int>(i % tensor.extent / tensor.block);
        const int64_t local = i / tensor.extent * tensor.block + i % tensor.extent % tensor.block;
        for (int team = 0; team < teams; ++team) {
          float sum = 0;
          const int source = one.source[team];
          for (int r = 0; source >= 0 && r < ranks; ++r) sum += one.given[source * ranks + r][t][i];
          for (int r = 0; r < ranks; ++r) CHECK(one.wholes[team * ranks + r][t][i] == 2 * sum);
          CHECK(one.slices[team * ranks + owner][t][local] == 2 * sum);
        }
      }
    }
  }
}

}  // namespace jaxcc::testing
