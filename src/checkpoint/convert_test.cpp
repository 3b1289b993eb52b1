#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace protrain {
namespace {

float widen(DType type, std::uint16_t bits) {
  float value = 0;
  to_float(type, reinterpret_cast<const std::byte*>(&bits), &value, 1);
  return value;
}

std::uint16_t narrow(DType type, float value) {
  std::uint16_t bits = 0;
  from_float(type, &value, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

// The value by the definition of a format with these exponent and mantissa widths; finite only.
double by_definition(std::uint16_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

struct Format {
  DType type;
  int mantissa_bits, bias;
  std::uint16_t infinity;
};
constexpr Format kFormats[] = {{DType::kF16, 10, 15, 0x7c00}, {DType::kBf16, 7, 127, 0x7f80}};

TEST(Convert, EverySixteenBitPatternWidensExactlyAndComesBack) {
  for (const Format& format : kFormats) {
    for (int i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const float value = widen(format.type, bits);
      const std::uint16_t magnitude = bits & 0x7fff;
      if (magnitude > format.infinity) {
        EXPECT_TRUE(std::isnan(value));
        EXPECT_GT(narrow(format.type, value) & 0x7fff, format.infinity);
        continue;
      }
      if (magnitude == format.infinity) {
        EXPECT_TRUE(std::isinf(value));
      } else {
        ASSERT_EQ(value, by_definition(bits, format.mantissa_bits, format.bias)) << i;
      }
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
      ASSERT_EQ(narrow(format.type, value), bits) << i;
    }
  }
}

TEST(Convert, NarrowingRoundsToNearestAndTiesToEven) {
  std::mt19937 random(7);
  for (const Format& format : kFormats) {
    const auto value_of = [&](int bits) {
      return by_definition(static_cast<std::uint16_t>(bits), format.mantissa_bits, format.bias);
    };
    // Infinity stands where the next finite value would.
    for (int low = 0; low < format.infinity; ++low) {
      const double below = value_of(low), above = value_of(low + 1);
      const double middle = (below + above) / 2;
      const auto middle_float = static_cast<float>(middle);
      if (static_cast<double>(middle_float) != middle) continue;  // below fp32's range of exact halves: not for these
      const int even = low % 2 == 0 ? low : low + 1;
      ASSERT_EQ(narrow(format.type, middle_float), even) << low;
      ASSERT_EQ(narrow(format.type, std::nextafter(middle_float, 0.0F)), low) << low;
      const float over = std::nextafter(middle_float, std::numeric_limits<float>::infinity());
      ASSERT_EQ(narrow(format.type, over), low + 1) << low;
      ASSERT_EQ(narrow(format.type, -middle_float), even | 0x8000) << low;
      const double inside = below + (above - below) * std::generate_canonical<double, 53>(random);
      const auto inside_float = static_cast<float>(inside);
      if (static_cast<double>(inside_float) != middle) {
        ASSERT_EQ(narrow(format.type, inside_float), static_cast<double>(inside_float) < middle ? low : low + 1) << low;
      }
    }
  }
}

TEST(Convert, ASignallingNanWithALowPayloadStaysANan) {
  const float nan = std::bit_cast<float>(0x7f800001U);
  EXPECT_GT(narrow(DType::kBf16, nan) & 0x7fff, 0x7f80);
  EXPECT_GT(narrow(DType::kF16, nan) & 0x7fff, 0x7c00);
}

TEST(Convert, TheFirstBadElementIsFoundWhereverItIs) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values(10'001, -1.5F);
  EXPECT_EQ(first_non_finite(values.data(), 10'001), -1);
  EXPECT_EQ(first_non_finite_or_negative(values.data(), 10'001), 0);
  std::fill(values.begin(), values.end(), std::numeric_limits<float>::max());
  values[3] = -0.0F;
  EXPECT_EQ(first_non_finite_or_negative(values.data(), 10'001), -1);
  for (const std::int64_t at : {0L, 4095L, 4096L, 10'000L}) {
    for (const float bad : {kInf, -kInf, kNan, -kNan}) {
      const float good = values[at];
      values[at] = bad;
      EXPECT_EQ(first_non_finite(values.data(), 10'001), at);
      EXPECT_EQ(first_non_finite_or_negative(values.data(), 10'001), at);
      values[at] = good;
    }
    const float good = values[at];
    values[at] = -std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(first_non_finite_or_negative(values.data(), 10'001), at);
    EXPECT_EQ(first_non_finite(values.data(), 10'001), -1);
    values[at] = good;
  }
}

}  // namespace
}  // namespace protrain
