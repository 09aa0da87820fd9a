#include "signature.h"

namespace jaxcc {

std::string describe(Signature& signature, int64_t ranks, int64_t team, Integers targets,
                     int64_t scalars, Integers kinds, Integers shape) {
  const std::string contradict = "the attributes contradict each other";
  if (team < 1 || ranks % team) {
    return "groups of " + std::to_string(ranks) + " ranks are not teams of " + std::to_string(team);
  }
  const int64_t teams = ranks / team;
  const int64_t count = static_cast<int64_t>(shape.size() / 4);
  if (shape.size() % 4 || kinds.size() % 4 || count > INT32_MAX || scalars < 0) return contradict;
  for (size_t k = 0; k < kinds.size(); k += 4) {
    for (size_t n = 0; n < 3; ++n) {
      if (kinds[k + n] < 0 || kinds[k + n] > INT32_MAX) return contradict;
    }
    const int64_t row = kinds[k + 3];
    if (kinds[k + 1] < 1 || kinds[k + 2] > kinds[k + 1] || row < 1 || row > int64_t{1} << 40) {
      return contradict;
    }
    signature.kinds.push_back({static_cast<int32_t>(kinds[k]), static_cast<int32_t>(kinds[k + 1]),
                               static_cast<int32_t>(kinds[k + 2]), row});
  }
  if (targets.size() && static_cast<int64_t>(targets.size()) != teams) return contradict;
  std::vector<bool> receives(teams);
  for (int64_t target : targets) {
    if (target < -1 || target >= teams) return contradict;
    if (target >= 0 && receives[target]) {
      return "two teams send to team " + std::to_string(target);
    }
    if (target >= 0) receives[target] = true;
    signature.targets.push_back(static_cast<int32_t>(target));
  }
  for (int64_t t = 0; t < count; ++t) {
    const int64_t outer = shape[4 * t];
    const int64_t extent = shape[4 * t + 1];
    const int64_t kind = shape[4 * t + 2];
    const int64_t first_scalar = shape[4 * t + 3];
    const std::string name = "tensor " + std::to_string(t);
    if (kind < 0 || kind >= static_cast<int64_t>(signature.kinds.size()) || first_scalar < 0 ||
        first_scalar > scalars) {
      return contradict;
    }
    int64_t size;
    if (outer < 0 || extent < 0 || __builtin_mul_overflow(outer, extent, &size) ||
        size > INT64_MAX / 4 / ranks - signature.elements) {
      return name + " has an impossible size";
    }
    const int64_t row = signature.kinds[kind].row;
    if (extent > 0 && row > 1 && (extent % team || extent / team % row)) {
      return "a rank's part of " + name + " is not whole rows of " + std::to_string(row);
    }
    signature.elements += teams * size;
    signature.tensors.push_back({outer, extent, static_cast<int32_t>(kind),
                                 static_cast<int32_t>(first_scalar), 0, 0, 0, 0, 0});
    signature.text += " " + std::to_string(outer) + "x" + std::to_string(extent);
    if (signature.kinds.size() > 1) signature.text += " of kind " + std::to_string(kind);
  }
  signature.geometry =
      divide(signature.tensors.data(), static_cast<int32_t>(count), static_cast<int32_t>(team),
             static_cast<int32_t>(scalars), signature.kinds.data());
  signature.geometry.teams = static_cast<int32_t>(teams);
  if (targets.size()) {
    signature.geometry.targets = signature.targets.data();
    signature.text += ", sent to teams";
    for (int64_t target : targets) signature.text += " " + std::to_string(target);
  }
  return "";
}

}  // namespace jaxcc
