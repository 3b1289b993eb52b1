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
  std::int32_t fullest = 0;    // the first time at which so many are
};

// kThorough: what will run; up to about 0.2 s. kQuick: for plans that are only looked at; a few passes of simple rules,
// mostly within some per cent of what kThorough finds. Neither is ever below live_bound.
enum class PackEffort : std::uint8_t { kThorough, kQuick };

Packing pack(std::span<const Allocation>, PackEffort = PackEffort::kThorough);

}  // namespace protrain
