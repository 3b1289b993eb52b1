#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "optimizer/adamw.h"
#include "optimizer/simd_kernels.h"

namespace protrain {
namespace {

constexpr std::uint32_t kSign = 0x80000000u;

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// The bf16 nearest to a finite x, ties away from zero, by distances in double; infinity counts as 2^128, where the next
// number would be.
std::uint16_t nearest_bf16(float x) {
  const auto value = [](std::uint16_t magnitude) {
    return magnitude == 0x7f80 ? std::ldexp(1.0, 128) : double{float_of(static_cast<std::uint32_t>(magnitude) << 16)};
  };
  const double size = std::fabs(double{x});
  const auto below = static_cast<std::uint16_t>((bits_of(x) & ~kSign) >> 16);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const bool up = value(above) - size <= size - value(below);
  return static_cast<std::uint16_t>((up ? above : below) | (std::signbit(x) ? 0x8000 : 0));
}

// Every high half with low halves around each rounding edge, and one that varies.
std::vector<float> masters() {
  std::vector<float> all;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 2u, 0x3fffu, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xc000u, 0xfffeu, 0xffffu,
                                    high * 40503u & 0xffffu}) {
      all.push_back(float_of(high << 16 | low));
    }
  }
  return all;
}

TEST(SplitMaster, IsExactAndItsWeightIsTheNearestForEveryExponentAndEdge) {
  int exact = 0;
  for (const float x : masters()) {
    const SplitMaster parts = split_master(x);
    if (std::isnan(x)) {
      ASSERT_EQ(parts.weight, 0x7fc0) << std::hex << bits_of(x);
      ASSERT_EQ(parts.residual, 0);
    } else if (std::isfinite(x) && (nearest_bf16(x) & 0x7fff) == 0x7f80) {
      ASSERT_EQ(parts.weight, std::signbit(x) ? 0xff7f : 0x7f7f) << std::hex << bits_of(x);
      ASSERT_EQ(parts.residual, 0x7fff);
      ASSERT_TRUE(std::isfinite(join_master(parts)));
    } else {
      ASSERT_EQ(bits_of(join_master(parts)), bits_of(x));
      ASSERT_EQ(parts.weight, std::isinf(x) ? bits_of(x) >> 16 : nearest_bf16(x)) << std::hex << bits_of(x);
      ++exact;
    }
  }
  EXPECT_GT(exact, 65000 * 12);
}

TEST(SplitMaster, ATieGoesAwayFromZero) {
  EXPECT_EQ(split_master(float_of(0x3f808000)).weight, 0x3f81);
  EXPECT_EQ(split_master(float_of(0xbf808000)).weight, 0xbf81);
  EXPECT_EQ(split_master(float_of(0x3f807fff)).weight, 0x3f80);
  EXPECT_EQ(split_master(float_of(0x00008000)).weight, 0x0001);  // half of the least bf16 denormal
}

TEST(SplitMaster, SignedZeroAndInfinityKeepTheirBits) {
  for (const std::uint32_t bits : {0u, kSign, 0x7f800000u, 0xff800000u}) {
    const SplitMaster parts = split_master(float_of(bits));
    EXPECT_EQ(parts.weight, bits >> 16);
    EXPECT_EQ(parts.residual, 0);
    EXPECT_EQ(bits_of(join_master(parts)), bits);
  }
}

TEST(SplitMaster, EveryWeightWithEveryKindOfResidualComesBack) {
  // A pair that split never makes (a residual that belongs to a neighbour, a NaN with a residual) still joins to a
  // master that is stable from then on.
  for (std::uint32_t weight = 0; weight < 0x10000; ++weight) {
    for (const int residual :
         {-32768, -32767, -1, 0, 1, 32766, 32767, static_cast<int>(weight * 40503 % 65536) - 32768}) {
      const SplitMaster pair{static_cast<std::uint16_t>(weight), static_cast<std::int16_t>(residual)};
      const float master = join_master(pair);
      ASSERT_EQ(bits_of(master), (weight << 16) + static_cast<std::uint32_t>(residual));
      const SplitMaster again = split_master(master);
      const std::uint32_t magnitude = bits_of(master) & ~kSign;
      if (magnitude < 0x7f7f8000 || magnitude == 0x7f800000) {
        ASSERT_EQ(again.weight, pair.weight) << weight << " " << residual;
        ASSERT_EQ(again.residual, pair.residual);
      }
      const SplitMaster third = split_master(join_master(again));
      ASSERT_EQ(third.weight, again.weight);
      ASSERT_EQ(third.residual, again.residual);
    }
  }
}

class SplitMasterArrays : public testing::TestWithParam<Simd> {};

TEST_P(SplitMasterArrays, AgreeWithOneAtATime) {
  if (GetParam() > best_simd()) GTEST_SKIP() << "this processor lacks the instruction set";
  const SimdKernels& kernels = simd_kernels(GetParam());
  const std::vector<float> all = masters();
  std::vector<std::uint16_t> weight(all.size());
  std::vector<std::int16_t> residual(all.size());
  std::vector<float> joined(all.size());
  const auto n = static_cast<std::int64_t>(all.size());
  kernels.split(all.data(), weight.data(), residual.data(), n);
  kernels.join(weight.data(), residual.data(), joined.data(), n);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const SplitMaster parts = split_master(all[i]);
    ASSERT_EQ(weight[i], parts.weight) << std::hex << bits_of(all[i]);
    ASSERT_EQ(residual[i], parts.residual) << std::hex << bits_of(all[i]);
    ASSERT_EQ(bits_of(joined[i]), bits_of(join_master(parts)));
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, SplitMasterArrays, testing::Values(Simd::kScalar, Simd::kAvx2, Simd::kAvx512));

}  // namespace
}  // namespace protrain
