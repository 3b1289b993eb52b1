// Byte counts and small arithmetic that every layer shares. Values only; thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace protrain {

using Bytes = std::int64_t;
using Id = std::int32_t;  // index of a parameter, block, chunk or task; -1 = none

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// Every tensor, on every tier, starts at a multiple of this: a shift of a GEMM input changes its bits.
inline constexpr Bytes kAlignment = 512;

// value >= 0, multiple > 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

std::string format_bytes(Bytes);  // "1.50 GiB", "512 B"
// "24GiB", "500MiB", "1.5GB", "4096": a fraction needs a unit and comes to 1 byte or more, rounded. Throws
// Error(kConfig) naming the text.
Bytes parse_bytes(std::string_view);

}  // namespace protrain
