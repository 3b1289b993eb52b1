// Random optimizer states for tests: usual sizes, and every kind of special value.
#pragma once
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "optimizer/adamw.h"

namespace protrain::test {

// n parameters with arrays that start `shift` elements into their memory; 64 guard elements follow each array.
class TestState {
 public:
  static constexpr std::int64_t kGuard = 64;

  TestState(DType compute, std::int64_t n, std::int64_t shift = 0)
      : n_(n),
        shift_(shift),
        width_(size_of(compute)),
        weight_(bytes(width_)),
        residual_(bytes(2)),
        m_(bytes(4)),
        v_(bytes(4)),
        gradient_(bytes(width_)) {}

  StateBytes bytes() {
    return {weight_.data() + shift_ * width_,
            width_ == 2 ? reinterpret_cast<std::int16_t*>(residual_.data()) + shift_ : nullptr,
            reinterpret_cast<float*>(m_.data()) + shift_,
            reinterpret_cast<float*>(v_.data()) + shift_,
            gradient_.data() + shift_ * width_,
            n_};
  }

  // Whole memory, guards included.
  bool operator==(const TestState&) const = default;

  // Everything becomes random bits of usual size, about one value in `rare` special (NaN, infinity, denormal, zero,
  // huge).
  void fill(std::uint64_t seed, int rare) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(m_.size()) / 4; ++i) {
      if (width_ == 2) {
        put(weight_, i, static_cast<std::uint16_t>(value(random, 0x3c000000, rare) >> 16));
        put(residual_, i, static_cast<std::uint16_t>(random()));
      } else {
        put(weight_, i, value(random, 0x3c000000, rare));
      }
      put(m_, i, value(random, 0x38000000, rare));
      put(v_, i, value(random, 0x31000000, rare) & (random() % 64 ? 0x7fffffffu : 0xffffffffu));
    }
    fill_gradient(seed + 1, rare);
  }

  void fill_gradient(std::uint64_t seed, int rare) {
    std::mt19937_64 random(seed);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(m_.size()) / 4; ++i) {
      const std::uint32_t bits = value(random, 0x3a000000, rare);
      if (width_ == 2) {
        put(gradient_, i, static_cast<std::uint16_t>(bits >> 16));
      } else {
        put(gradient_, i, bits);
      }
    }
  }

 private:
  std::vector<std::byte> bytes(std::int64_t width) const {
    return std::vector<std::byte>(static_cast<std::size_t>((n_ + shift_ + kGuard) * width));
  }
  template <class T>
  static void put(std::vector<std::byte>& array, std::int64_t i, T value) {
    reinterpret_cast<T*>(array.data())[i] = value;
  }
  // Any sign and mantissa, an exponent within 16 binades of `base`'s.
  static std::uint32_t value(std::mt19937_64& random, std::uint32_t base, int rare) {
    const auto bits = static_cast<std::uint32_t>(random());
    if (rare == 0 || bits % static_cast<std::uint32_t>(rare) != 0) return (bits & 0x87ffffffu) + base;
    const std::uint32_t sign = bits & 0x80000000u, mantissa = static_cast<std::uint32_t>(random()) & 0x7fffffu;
    switch (random() % 8) {
      case 0: return sign;
      case 1: return sign | mantissa;                // denormal
      case 2: return sign | mantissa | 0x00800000u;  // least normal
      case 3: return sign | 0x7f800000u;
      case 4: return sign | 0x7f800001u | mantissa;  // NaN of any payload
      case 5: return sign | 0x7f7f0000u | mantissa;  // about to overflow
      case 6: return sign | mantissa | (0x7f000000u - (bits >> 8 & 0x0f800000u));
      default: return static_cast<std::uint32_t>(random());
    }
  }

  std::int64_t n_, shift_, width_;
  std::vector<std::byte> weight_, residual_, m_, v_, gradient_;
};

}  // namespace protrain::test
