// Random bits as a function of a key and a counter, the same on host and GPU and for every way to
// cut the work: Threefry-2x32 with 20 rounds, of J. Salmon, M. Moraes, R. Dror and D. Shaw,
// Parallel Random Numbers: As Easy as 1, 2, 3, SC'11.
#pragma once

#include "abi.h"

namespace jaxcc {

struct Words {
  uint32_t first, second;
};

JAXCC_FN uint32_t rotate_left(uint32_t x, int by) { return (x << by) | (x >> (32 - by)); }

template <class... Rotations>
JAXCC_FN Words threefry_rounds(Words x, Rotations... by) {
  ((x.first += x.second, x.second = rotate_left(x.second, by) ^ x.first), ...);
  return x;
}

JAXCC_FN Words threefry2x32(uint32_t key0, uint32_t key1, uint32_t counter0, uint32_t counter1) {
  const uint32_t key2 = key0 ^ key1 ^ 0x1bd11bdau;
  Words x = {counter0 + key0, counter1 + key1};
  x = threefry_rounds(x, 13, 15, 26, 6);
  x = threefry_rounds({x.first + key1, x.second + key2 + 1}, 17, 29, 16, 24);
  x = threefry_rounds({x.first + key2, x.second + key0 + 2}, 13, 15, 26, 6);
  x = threefry_rounds({x.first + key0, x.second + key1 + 3}, 17, 29, 16, 24);
  x = threefry_rounds({x.first + key1, x.second + key2 + 4}, 13, 15, 26, 6);
  return {x.first + key2, x.second + key0 + 5};
}

}  // namespace jaxcc
