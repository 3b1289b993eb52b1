#include "optimizer/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "optimizer/simd_kernels.h"
#include "optimizer/test_state.h"

namespace protrain {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

float widen(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

// The order of kernels.h, as a recursion over whole vectors rather than in place.
double tree_sum(const std::vector<double>& terms) {
  std::vector<double> lanes(256, 0.0);
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % 256] += terms[i];
  while (lanes.size() > 1) {
    std::vector<double> half(lanes.size() / 2);
    for (std::size_t i = 0; i < half.size(); ++i) half[i] = lanes[i] + lanes[i + half.size()];
    lanes = half;
  }
  return lanes[0];
}

double expected_squared_norm(const std::vector<float>& x) {
  std::vector<double> tiles;
  for (std::size_t first = 0; first < x.size(); first += 4096) {
    std::vector<double> squares;
    for (std::size_t i = first; i < std::min(x.size(), first + 4096); ++i)
      squares.push_back(double{x[i]} * double{x[i]});
    tiles.push_back(tree_sum(squares));
  }
  return tree_sum(tiles);
}

class CpuKernelsTest : public testing::Test {
 protected:
  double squared_norm(const void* x, DType type, std::int64_t n) {
    std::vector<double> scratch(static_cast<std::size_t>(norm_tiles(n)), kNan);
    double result = -1;
    kernels_->squared_norm(*stream_, x, type, n, scratch.data(), &result);
    return result;
  }
  StepControl finish(std::vector<double> squares, std::vector<double> losses, double max_norm) {
    StepControl control{.gradient_norm = -1, .loss_sum = -1, .clip_scale = -1, .skip = -1};
    kernels_->finish_norm(*stream_, squares.data(), std::ssize(squares), losses.data(), std::ssize(losses), max_norm,
                          &control);
    return control;
  }

  ThreadPool pool_{3, Placement::kByNode};
  std::unique_ptr<Stream> stream_ = make_host_stream();
  std::unique_ptr<UpdateKernels> kernels_ = make_cpu_kernels(pool_);
};

TEST_F(CpuKernelsTest, SquaredNormAddsInTheStatedOrder) {
  for (const std::int64_t n : {0, 1, 7, 255, 256, 257, 4095, 4096, 4097, 70'000, 4096 * 300 + 5}) {
    const auto seed = static_cast<std::uint64_t>(n) + 1;
    SCOPED_TRACE(fmt::format("n {} seed {}", n, seed));
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    // What follows the tensor is not a number: reading it would show.
    std::vector<float> wide(static_cast<std::size_t>(n) + 300, kNan);
    std::vector<std::uint16_t> narrow(wide.size(), 0x7fc0);
    std::vector<float> narrow_values;
    for (std::int64_t i = 0; i < n; ++i) {
      wide[i] = normal(random) * std::exp2(10 * normal(random));
      narrow[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(wide[i]) >> 16);
      narrow_values.push_back(widen(narrow[i]));
    }
    const std::vector<float> wide_values(wide.begin(), wide.begin() + n);
    EXPECT_EQ(squared_norm(wide.data(), DType::kF32, n), expected_squared_norm(wide_values));
    EXPECT_EQ(squared_norm(narrow.data(), DType::kBf16, n), expected_squared_norm(narrow_values));
  }
}

TEST_F(CpuKernelsTest, SquaredNormHoldsTheLargestAndTheLeast) {
  const std::vector<float> largest(5000, std::numeric_limits<float>::max());
  EXPECT_NEAR(squared_norm(largest.data(), DType::kF32, 5000) / (5000 * std::pow(double{largest[0]}, 2)), 1, 1e-12);
  const std::vector<float> least(5000, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(squared_norm(least.data(), DType::kF32, 5000), 5000 * std::pow(double{least[0]}, 2));
}

TEST_F(CpuKernelsTest, SquaredNormOfANonFiniteGradientIsNotFinite) {
  std::vector<float> x(9000, 1.0f);
  x[8999] = static_cast<float>(kInfinity);
  EXPECT_EQ(squared_norm(x.data(), DType::kF32, 9000), kInfinity);
  x[0] = -kNan;
  EXPECT_EQ(std::bit_cast<std::uint64_t>(squared_norm(x.data(), DType::kF32, 9000)), 0x7ff8000000000000ull);
}

TEST_F(CpuKernelsTest, NormsOfOtherTypesAreRefused) {
  EXPECT_THROW(squared_norm(nullptr, DType::kF16, 0), InternalError);
}

TEST_F(CpuKernelsTest, FinishClipsByTheNormOverAllTensors) {
  const StepControl control = finish({9, 16}, {1.5, 2.25}, 1);
  EXPECT_EQ(control.gradient_norm, 5);
  EXPECT_EQ(control.loss_sum, 3.75);
  EXPECT_EQ(control.clip_scale, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(control.skip, 0);
}

TEST_F(CpuKernelsTest, FinishNeverScalesUp) {
  EXPECT_EQ(finish({9, 16}, {}, 5.1).clip_scale, 1);
  EXPECT_EQ(finish({0}, {0}, 1).clip_scale, 1);
}

TEST_F(CpuKernelsTest, MaxNormZeroMeansNoClipping) { EXPECT_EQ(finish({1e10}, {1}, 0).clip_scale, 1); }

TEST_F(CpuKernelsTest, FinishSkipsWhenNormOrLossIsNotFinite) {
  for (const double bad : {kInfinity, -kInfinity, double{kNan}}) {
    const StepControl loss = finish({4}, {1, bad}, 1);
    EXPECT_EQ(loss.skip, 1) << bad;
    EXPECT_EQ(loss.gradient_norm, 2);
    EXPECT_EQ(loss.clip_scale, 1);
    if (bad >= 0 || std::isnan(bad)) {
      EXPECT_EQ(finish({4, bad}, {1}, 1).skip, 1) << bad;
    }
  }
}

TEST_F(CpuKernelsTest, RoundingIsToTheNearestAndTiesGoToEven) {
  std::vector<float> from;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      from.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<std::uint16_t> to(from.size());
  kernels_->round_gradient(*stream_, from.data(), to.data(), std::ssize(from));
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float x = from[i];
    if (std::isnan(x)) {
      ASSERT_EQ(to[i], 0x7fc0);
      continue;
    }
    // Distances to both neighbours on a line where infinity stands at 2^128.
    const auto down = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    const auto value = [](std::uint16_t bf16) {
      const double wide = widen(bf16);
      return std::isinf(wide) ? std::copysign(std::ldexp(1.0, 128), wide) : wide;
    };
    if (std::isinf(x)) {
      ASSERT_EQ(to[i], down);
      continue;
    }
    const auto up = static_cast<std::uint16_t>(down + 1);
    const double to_down = std::fabs(double{x} - value(down)), to_up = std::fabs(value(up) - double{x});
    const std::uint16_t even = down % 2 ? up : down;
    ASSERT_EQ(to[i], to_down < to_up ? down : to_up < to_down ? up : even) << x;
  }
}

TEST_F(CpuKernelsTest, AnUpdateCutOverThreadsEqualsOneThread) {
  for (const DType compute : {DType::kBf16, DType::kF32}) {
    const std::uint64_t seed = 5;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::int64_t n = 200'001;
    test::TestState expected(compute, n);
    expected.fill(seed, 16);
    test::TestState got = expected;
    const AdamWStep step = make_adamw_step({}, 1e-3, 0.1, 7);
    (compute == DType::kBf16 ? adamw_bf16 : adamw_f32)(step, 0.25f, expected.bytes(), Simd::kScalar);
    const StepControl control{.clip_scale = 0.25f};
    kernels_->adamw(*stream_, step, &control, compute, got.bytes());
    EXPECT_TRUE(got == expected);
  }
}

TEST_F(CpuKernelsTest, ASkippedUpdateChangesNothing) {
  test::TestState state(DType::kBf16, 1000);
  state.fill(3, 16);
  const test::TestState before = state;
  const StepControl control{.skip = 1};
  kernels_->adamw(*stream_, make_adamw_step({}, 1, 0.1, 1), &control, DType::kBf16, state.bytes());
  EXPECT_TRUE(state == before);
}

class SimdNorm : public testing::TestWithParam<Simd> {};

TEST_P(SimdNorm, TilesAndRoundingEqualScalarToTheBit) {
  if (GetParam() > best_simd()) GTEST_SKIP() << "this processor lacks the instruction set";
  const SimdKernels &simd = simd_kernels(GetParam()), &scalar = simd_kernels(Simd::kScalar);
  for (std::int64_t n = 0; n <= kNormTile; n += n < 70 || n > 4000 ? 1 : 37) {
    SCOPED_TRACE(fmt::format("n {} (also the seed)", n));
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    std::vector<float> wide(static_cast<std::size_t>(n) + 1);
    std::vector<std::uint16_t> narrow(wide.size()), rounded(wide.size()), expected(wide.size());
    for (std::int64_t i = 0; i <= n; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      wide[i] = std::bit_cast<float>(i % 64 ? bits : bits & 0x807fffffu);
      if (!std::isfinite(wide[i])) wide[i] = 1;
      narrow[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(wide[i]) >> 16);
    }
    // From element 1 on: no alignment beyond the type's.
    ASSERT_EQ(simd.tile_f32(wide.data() + 1, n), scalar.tile_f32(wide.data() + 1, n));
    ASSERT_EQ(simd.tile_bf16(narrow.data() + 1, n), scalar.tile_bf16(narrow.data() + 1, n));
    simd.round_to_bf16(wide.data() + 1, rounded.data(), n);
    scalar.round_to_bf16(wide.data() + 1, expected.data(), n);
    ASSERT_EQ(rounded, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, SimdNorm, testing::Values(Simd::kAvx2, Simd::kAvx512));

}  // namespace
}  // namespace protrain
