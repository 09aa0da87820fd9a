// Every element of every tensor belongs to one tile, of the rank that owns it.

#include "testing.h"

namespace jaxcc::testing {
namespace {

// Tiles of whole rows of `row` elements, which divide each rank's blocks; of every second tensor
// tiles of any size.
void check_geometry(const std::vector<Shape>& shapes, int ranks, int64_t row = 1) {
  constexpr int kScalars = 2;
  const std::vector<Kind> kinds{{3, 2, 0, row}, {1, 4, 0, 1}};
  const auto signature = make_signature("cover", shapes, ranks, kScalars, kinds);
  const Geometry& geometry = signature->geometry;
  int next = kScalars;
  for (size_t t = 0; t < shapes.size(); ++t) {
    CHECK(signature->tensors[t].first_operand == next);
    next += kinds[t % 2].operands;
  }
  for (size_t t = 0; t < shapes.size(); ++t) {
    CHECK(signature->tensors[t].first_result == next);
    next += kinds[t % 2].results;
  }
  std::vector<std::vector<int>> times;
  for (const Shape& shape : shapes) times.emplace_back(shape.outer * shape.extent);
  const PeerView view{0, ranks, nullptr, nullptr, 1, nullptr};
  for (int owner = 0; owner < ranks; ++owner) {
    std::vector<std::vector<bool>> slice;
    for (const Tensor& tensor : signature->tensors) slice.emplace_back(tensor.outer * tensor.block);
    for (int64_t index = 0; index < chunks(geometry); ++index) {
      int64_t elements = 0;
      for (Tiles tiles(view, geometry, {owner, index}); tiles.next();) {
        const jaxcc_tile& tile = tiles.tile();
        CHECK(tile.ranks == ranks && tile.owner == owner && tile.stream == 1);
        size_t t = 0;
        while (signature->tensors[t].first_operand != tile.first_operand) ++t;
        const int64_t row = kinds[t % 2].row;
        CHECK(tile.kind == static_cast<int>(t % 2));
        CHECK(tile.first_result == signature->tensors[t].first_result);
        CHECK(tile.begin < tile.end);
        CHECK(tile.begin % row == 0 && tile.end % row == 0);
        const int64_t extent = shapes[t].extent;
        const int64_t block = (extent + ranks - 1) / ranks + shapes[t].more;
        CHECK(tile.begin / extent == (tile.end - 1) / extent);
        for (int64_t i = tile.begin; i < tile.end; ++i) {
          ++times[t][i];
          CHECK(i % extent / block == owner);
          const int64_t local = i / extent * block + i % extent % block;
          CHECK(i - tile.shift == local);
          CHECK(!slice[t][local]);
          slice[t][local] = true;
        }
        elements += tile.end - tile.begin;
      }
      CHECK(elements < kChunkUnits * (kUnit + row));
    }
  }
  for (size_t t = 0; t < shapes.size(); ++t) {
    const int64_t row = kinds[t % 2].row, unit = signature->tensors[t].unit;
    CHECK(unit % row == 0 && unit >= kUnit && unit < kUnit + row);
  }
  for (const auto& tensor : times) {
    for (int count : tensor) CHECK(count == 1);
  }
}

}  // namespace
}  // namespace jaxcc::testing

int main() {
  using namespace jaxcc::testing;
  check_geometry({{1, 1}}, 8);
  check_geometry({{0, 5}, {3, 0}, {2, 7}, {0, 0}}, 3);
  check_geometry({{1, 200'000}}, 2);
  check_geometry({{5000, 3}}, 2);
  check_geometry({{1, 33, 11}, {2, 100'000, 14}}, 8);
  Random random(20);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<Shape> shapes(random.integer(1, trial % 10 == 0 ? 200 : 6));
    for (Shape& shape : shapes) {
      shape = {random.integer(0, 20), random.integer(0, random.integer(0, 1) ? 40 : 4000),
               random.integer(0, 1) * random.integer(0, 50)};
    }
    const int ranks = static_cast<int>(random.integer(1, 8));
    check_geometry(shapes, ranks);
    const int64_t row = random.integer(1, random.integer(0, 1) ? 3000 : 10);
    for (Shape& shape : shapes) {
      shape = {shape.outer, row * ranks * (shape.extent % 5), row * (shape.more % 3)};
    }
    check_geometry(shapes, ranks, row);
  }
  return 0;
}
