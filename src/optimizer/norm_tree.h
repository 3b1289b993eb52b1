// The fixed order of every sum of a norm: 256 lanes, then a tree over them (kernels.h).
#pragma once
#include <cstdint>

namespace protrain {

inline constexpr int kNormLanes = 256;

// Tag: a type local to the source file, so that its instruction set stays in it. term(i) is what element i adds.
template <class Tag, class Term>
double norm_tree(std::int64_t n, const Term& term) {
  double lanes[kNormLanes] = {};
  std::int64_t row = 0;
  for (; row + kNormLanes <= n; row += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) lanes[lane] += term(row + lane);
  }
  for (int lane = 0; row + lane < n; ++lane) lanes[lane] += term(row + lane);
  for (int stride = kNormLanes / 2; stride > 0; stride /= 2) {
    for (int lane = 0; lane < stride; ++lane) lanes[lane] += lanes[lane + stride];
  }
  return lanes[0];
}

}  // namespace protrain
