// Lays out allocations with known lifetimes in one address range (best fit on lifetimes). Pure; thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"

namespace protrain {

// [born, died) of some clock.
struct Interval {
  std::int32_t born = 0;
  std::int32_t died = 0;
};

// Has one address, and holds it during `lives` (ascending, disjoint; not empty); between them others may use the bytes.
// Allocations whose lives overlap in time never overlap in space.
struct Allocation {
  Bytes bytes = 0;
  std::vector<Interval> lives;
};

struct Packing {
  std::vector<Bytes> offsets;  // of each allocation, multiples of kAlignment
  Bytes total = 0;             // largest end offset
  Bytes live_bound = 0;        // largest sum of (aligned) bytes live at one time; <= total
};

Packing pack(std::span<const Allocation>);

}  // namespace protrain
