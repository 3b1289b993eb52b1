// What a plan needs of each tier beside what there is of it. Pure; thread-safe.
//
// Note [What counts where]: the device's arena is a tier of its own; on the CPU device it is host memory too. Host
// memory is pinned and pageable arenas, that, and the process's share: its own resident memory (RssAnon + RssShmem;
// program, libraries' state) when the arenas do not exist yet. On CUDA the device also holds what the driver and
// libraries keep outside the arena (context, loaded modules, cuDNN), which a device_memory_limit covers.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace protrain {

struct MemoryLimits {
  Bytes device = 0;      // of the device's arena
  Bytes device_cap = 0;  // the user's, outside part included; 0: none
  Bytes outside = 0;     // CUDA: device bytes in use beside the arena
  Bytes host = 0;        // of all host memory
  Bytes process = 0;     // the process's share of it
  bool device_is_host = false;
  // CUDA: the driver keeps tables of pinned memory on the device, one byte for so many (kPinnedOfATableByte); 0: none,
  // or `outside` has them.
  Bytes pinned_of_a_table_byte = 0;
};

// 8 bytes a page of 4 KiB (18b.log in bench/results/offload_h200: 70 MiB for 33.8 GiB).
inline constexpr Bytes kPinnedOfATableByte = 512;
// The driver takes memory, and its tables, in pieces of 2 MiB: beside what is counted a run was up to 2.4 MiB larger
// (llama-3.2-3b.json in bench/results/prediction_h200), and a module may be loaded late.
inline constexpr Bytes kDevicePieces = 8 * kMiB;

struct MemoryNeed {
  Bytes device = 0, pinned = 0, pageable = 0;
  MemoryNeed() = default;
  explicit MemoryNeed(const Layout&);
};

Bytes host_need(const MemoryNeed&, const MemoryLimits&);    // the process's share included
Bytes device_need(const MemoryNeed&, const MemoryLimits&);  // the arena and, on CUDA, the driver's tables and pieces
// The same limits once the arenas are there, when `outside` is what lies beside the device's: what the driver keeps
// for them is part of it. What the whole device may hold, limits.device + limits.outside, stays.
MemoryLimits with_arenas(MemoryLimits, Bytes outside);
// Bytes that are missing; 0 where it fits.
struct Shortfall {
  Bytes device = 0, host = 0;
  bool fits() const { return device == 0 && host == 0; }
};
Shortfall shortfall(const MemoryNeed&, const MemoryLimits&);
// One line by tier, for what does not fit: "12 B (..) more of device memory: ... are needed, ... are available (...)".
std::string describe(const Shortfall&, const MemoryNeed&, const MemoryLimits&);

// By tag (region_tag()), of one tier: what lives when most of its bytes do. They sum to its bytes or less: what gaps
// and alignment take is of no tag.
std::map<std::string_view, Bytes> bytes_by_tag(const Layout&, Tier);

}  // namespace protrain
