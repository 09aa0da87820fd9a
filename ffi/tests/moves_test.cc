// Lists of moves between ranks of either kind, against one byte at a time, and lists that are
// refused.

#include "../protocol/moves.h"

#include <algorithm>

#include "testing.h"
#include "worlds.h"

namespace jaxcc::testing {
namespace {

using List = std::vector<int64_t>;

std::unique_ptr<MoveSignature> make(const List& list, int ranks, int64_t operand, int64_t result,
                                    const std::string& combine, std::string* problem = nullptr) {
  auto signature = std::make_unique<MoveSignature>();
  signature->op = signature->text = "moves";
  signature->operand_bytes = operand;
  signature->result_bytes = result;
  const std::string found =
      describe(*signature, ranks, find_combine(combine), {list.data(), list.size()});
  if (problem) {
    *problem = found;
  } else {
    CHECK(found == "");
  }
  return signature;
}

// A result of `rows` rows that is cut into blocks of columns, in random order; each block is zeros,
// or comes from a random rank, or from all; its bytes lie in the source in runs of another length.
List random_list(Random& random, int ranks, int64_t operand, int64_t rows, int64_t width,
                 bool reduces) {
  List list;
  for (int target = 0; target < ranks; ++target) {
    for (int64_t column = 0; column < width;) {
      const int64_t run = std::min(width - column, 4 * random.integer(1, width / 4));
      const int64_t bytes = rows * run;
      // A run of the source is one, or some, rows of the result, or all.
      int64_t joined = random.integer(1, rows);
      while (rows % joined) --joined;
      const int64_t run_from = run * joined, stride = run_from + 4 * random.integer(0, 3);
      const int64_t span = (bytes / run_from - 1) * stride + run_from;
      const int64_t room = operand - span;
      const int64_t kind = random.integer(0, 9);
      int64_t source = random.integer(0, ranks - 1);
      if (kind == 0 || room < 0) source = kNobody;
      if (kind > 6 && reduces && room >= 0) source = kEveryone;
      const int64_t offset = room < 4 ? 0 : 4 * random.integer(0, room / 4);
      list.insert(list.end(),
                  {source, target, bytes, offset, run_from, stride, column, run, width});
      column += run;
    }
  }
  return list;
}

template <class World>
void check_random(int ranks, bool reduces, int trials) {
  Random random(100 * ranks + reduces);
  World world(ranks);
  struct One {
    std::unique_ptr<MoveSignature> signature;
    std::vector<std::vector<int32_t>> in, out, wanted;
    std::vector<std::vector<void*>> buffers;
    bool stream;
  };
  std::vector<One> all(trials);
  for (int trial = 0; trial < trials; ++trial) {
    One& one = all[trial];
    const int64_t rows = random.integer(1, trial % 5 ? 40 : 3000);
    const int64_t width = 4 * random.integer(1, trial % 7 ? 50 : 5000 / (rows / 10 + 1));
    const int64_t operand = 4 * random.integer(1, rows * width / 2);
    const List list = random_list(random, ranks, operand, rows, width, reduces);
    one.signature = make(list, ranks, operand, rows * width, reduces ? "sum.i32" : "");
    one.stream = trial % 3 == 0;
    for (int r = 0; r < ranks; ++r) {
      one.in.emplace_back(operand / 4);
      for (int32_t& x : one.in.back()) x = static_cast<int32_t>(random.integer(-1000, 1000));
      one.out.emplace_back(rows * width / 4, 0x5a5a5a5a);
    }
    one.wanted = one.out;
    for (size_t k = 0; k < list.size(); k += 9) {
      for (int64_t at = 0; at < list[k + 2]; at += 4) {
        const auto place = [&](size_t side) {
          return (list[side] + at / list[side + 1] * list[side + 2] + at % list[side + 1]) / 4;
        };
        int32_t value = 0;
        if (list[k] >= 0) value = one.in[list[k]][place(k + 3)];
        for (int r = 0; list[k] == kEveryone && r < ranks; ++r) value += one.in[r][place(k + 3)];
        one.wanted[list[k + 1]][place(k + 6)] = value;
      }
    }
    for (int r = 0; r < ranks; ++r) one.buffers.push_back({one.in[r].data(), one.out[r].data()});
  }
  on_ranks(ranks, [&](int r) {
    for (One& one : all) {
      CHECK(world.move(r, *one.signature, one.buffers[r].data(), one.stream));
      CHECK(one.out[r] == one.wanted[r]);
    }
  });
}

void check_refusals() {
  const auto says = [](const List& list, int64_t operand, int64_t result,
                       const std::string& combine, const std::string& text) {
    std::string problem;
    make(list, 2, operand, result, combine, &problem);
    if (problem.find(text) == std::string::npos) std::fprintf(stderr, "%s\n", problem.c_str());
    CHECK(problem.find(text) != std::string::npos);
  };
  const List swap{0, 1, 8, 0, 8, 8, 0, 8, 8, 1, 0, 8, 0, 8, 8, 0, 8, 8};
  const auto with = [&](size_t field, int64_t value) {
    List list = swap;
    list[field] = value;
    return list;
  };
  make(swap, 2, 8, 8, "");
  says({0, 1, 8}, 8, 8, "", "9 numbers");
  says(swap, -1, 8, "", "impossible");
  says(swap, 8, INT64_MAX, "", "impossible");
  says(with(0, 2), 8, 8, "", "ranks that are not there");
  says(with(0, -3), 8, 8, "", "ranks that are not there");
  says(with(1, 2), 8, 8, "", "ranks that are not there");
  says(with(2, 0), 8, 8, "", "of nothing");
  says(with(3, 1), 8, 8, "", "within the buffers");
  says(with(3, -1), 8, 8, "", "within the buffers");
  says(with(4, 3), 8, 8, "", "within the buffers");
  says(with(4, 4), 8, 8, "", "within the buffers");
  says({0, 1, 8, 0, 4, INT64_MAX, 0, 8, 8}, 8, 8, "", "within the buffers");
  says(swap, 8, 16, "", "result of rank 0 is not written once everywhere");
  says({0, 1, 8, 0, 8, 8, 0, 8, 8}, 8, 8, "", "result of rank 0 is not written");
  says({0, 1, 8, 0, 8, 8, 0, 8, 8, 1, 0, 4, 0, 4, 4, 0, 4, 4, 1, 0, 4, 0, 4, 4, 2, 4, 4}, 8, 8, "",
       "result of rank 0 is not written once");
  says(with(0, kEveryone), 8, 8, "", "no reduction");
  says(with(0, kEveryone), 8, 8, "sum.c128", "cuts a number apart");
}

}  // namespace
}  // namespace jaxcc::testing

int main() {
  using namespace jaxcc::testing;
  for (int ranks : {1, 2, 3, 8}) {
    for (bool reduces : {false, true}) {
      check_random<Threads>(ranks, reduces, 60);
      check_random<Exchanges>(ranks, reduces, 60);
      check_random<Processes>(ranks, reduces, 60);
    }
  }
  check_refusals();
  return 0;
}
