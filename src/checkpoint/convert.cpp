#include "checkpoint/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace protrain {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float float_of_half(std::uint16_t half) {
  // Read as fp32, the shifted bits are the value times 2^(15 - 127), subnormals too; only the exponent of infinities
  // and NaNs has to be put right.
  const auto magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  const std::uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000U : 0U;
  return std::bit_cast<float>(scaled | special | static_cast<std::uint32_t>(half & 0x8000) << 16);
}

std::uint16_t half_of_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude < 0x1p-14F) {
    // Subnormal: adding 0.5 puts the unit of fp16's subnormals (2^-24) at fp32's last bit, so the addition rounds.
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(magnitude + 0.5F) - 0x3f000000U);
  }
  const std::uint32_t m = bits & 0x7fffffff;
  const std::uint32_t rounded = m + 0xfff + (m >> 13 & 1);  // may carry into the exponent, rightly
  if (rounded >= 0x47800000U) return sign | 0x7c00;         // 2^16 and above
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000U) >> 13);
}

std::uint16_t bf16_of_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename Bad>
std::int64_t first_bad(const float* values, std::int64_t n, Bad bad) {
  // Blocks without a branch first: nearly always nothing is found.
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    std::uint32_t any = 0;
    for (std::int64_t i = begin; i < end; ++i)
      any |= static_cast<std::uint32_t>(bad(std::bit_cast<std::uint32_t>(values[i])));
    if (any == 0) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (bad(std::bit_cast<std::uint32_t>(values[i]))) return i;
    }
  }
  return -1;
}

}  // namespace

void to_float(DType from, const std::byte* bytes, float* to, std::int64_t n) {
  switch (from) {
    case DType::kF32: std::memcpy(to, bytes, static_cast<std::size_t>(n) * 4); return;
    case DType::kBf16:
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(bytes + 2 * i)) << 16);
      }
      return;
    case DType::kF16:
      for (std::int64_t i = 0; i < n; ++i) to[i] = float_of_half(load<std::uint16_t>(bytes + 2 * i));
      return;
    default: PROTRAIN_CHECK(false, "{} is no weight dtype", safetensors_name(from));
  }
}

void from_float(DType to, const float* from, std::byte* bytes, std::int64_t n) {
  switch (to) {
    case DType::kF32: std::memcpy(bytes, from, static_cast<std::size_t>(n) * 4); return;
    case DType::kBf16:
    case DType::kF16:
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint16_t value = to == DType::kBf16 ? bf16_of_float(from[i]) : half_of_float(from[i]);
        std::memcpy(bytes + 2 * i, &value, 2);
      }
      return;
    default: PROTRAIN_CHECK(false, "{} is no weight dtype", safetensors_name(to));
  }
}

std::int64_t first_non_finite(const float* values, std::int64_t n) {
  return first_bad(values, n, [](std::uint32_t bits) { return (bits & 0x7fffffff) >= 0x7f800000U; });
}

std::int64_t first_non_finite_or_negative(const float* values, std::int64_t n) {
  // As unsigned numbers: [+inf, ...) covers +inf, NaNs and all negatives; -0 alone is let through.
  return first_bad(values, n, [](std::uint32_t bits) { return bits >= 0x7f800000U && bits != 0x80000000U; });
}

}  // namespace protrain
