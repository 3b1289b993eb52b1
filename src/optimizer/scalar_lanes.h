// One float at a time on the CPU, and the bit rules of the split master for one value (CPU and CUDA).
// Not for files with an instruction set of their own (see adamw_arithmetic.h).
#pragma once
#include <cmath>
#include <cstdint>

#include "optimizer/adamw_arithmetic.h"

namespace protrain::arithmetic {

PROTRAIN_HOST_DEVICE inline float widen(std::uint16_t bf16) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bf16) << 16);
}

PROTRAIN_HOST_DEVICE inline float join(std::uint16_t weight, std::int16_t residual) {
  return __builtin_bit_cast(float, (static_cast<std::uint32_t>(weight) << 16) + static_cast<std::uint32_t>(residual));
}

// `master` is representable(): adding half a unit of the weight neither overflows nor turns a NaN into something else.
PROTRAIN_HOST_DEVICE inline SplitMaster split(float master) {
  const auto bits = __builtin_bit_cast(std::uint32_t, master);
  return {static_cast<std::uint16_t>((bits + 0x8000u) >> 16), static_cast<std::int16_t>(bits)};
}

// Round to nearest even.
PROTRAIN_HOST_DEVICE inline std::uint16_t round_to_bf16(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct ScalarLanes {
  using F = float;
  using Mask = bool;
  static constexpr int kCount = 1;
  static F broadcast(float x) { return x; }
  static F mul(F a, F b) { return a * b; }
  static F sub(F a, F b) { return a - b; }
  static F fma(F a, F b, F c) { return std::fma(a, b, c); }
  static F div(F a, F b) { return a / b; }
  static F sqrt(F a) { return std::sqrt(a); }
  static Mask less(F a, F b) { return a < b; }
  static Mask is_nan(F a) { return a != a; }
  static bool any_beyond(F a, F limit) { return !(std::fabs(a) <= limit); }
  static F select(Mask mask, F yes, F no) { return mask ? yes : no; }

  static F load(const float* from) { return *from; }
  static void store(float* to, F x) { *to = x; }
  static F load_bf16(const std::uint16_t* from) { return widen(*from); }
  static F load_master(const std::uint16_t* weight, const std::int16_t* residual) { return join(*weight, *residual); }
  static void store_master(std::uint16_t* weight, std::int16_t* residual, F master) {
    const SplitMaster parts = split(master);
    *weight = parts.weight;
    *residual = parts.residual;
  }
};

}  // namespace protrain::arithmetic
