#include "optimizer/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "optimizer/test_state.h"

namespace protrain {
namespace {

using test::TestState;

void update(DType compute, const AdamWStep& step, float clip_scale, const StateBytes& state, Simd simd) {
  (compute == DType::kBf16 ? adamw_bf16 : adamw_f32)(step, clip_scale, state, simd);
}

// One fp32 parameter, updated by the scalar kernel.
struct One {
  float weight = 0, m = 0, v = 0;
  void update(const AdamWStep& step, float gradient, float clip_scale = 1) {
    adamw_f32(step, clip_scale, {&weight, nullptr, &m, &v, &gradient, 1}, Simd::kScalar);
  }
};

TEST(AdamWStep, HoldsTheBiasCorrectionsOfItsUpdate) {
  const AdamWStep step = make_adamw_step({0.9, 0.95, 1e-6}, 0.01, 0.1, 3);
  EXPECT_FLOAT_EQ(step.rate, static_cast<float>(0.01 / (1 - 0.729)));
  EXPECT_FLOAT_EQ(step.inverse_bias2, static_cast<float>(1 / std::sqrt(1 - 0.857375)));
  EXPECT_FLOAT_EQ(step.keep, 0.999f);
  EXPECT_FLOAT_EQ(step.epsilon, 1e-6f);
  EXPECT_THROW(make_adamw_step({}, 0.01, 0.1, 0), InternalError);
}

TEST(AdamW, FollowsAReferenceInDoubleOverManyUpdates) {
  for (const auto& options :
       {AdamWOptions{}, AdamWOptions{0.9, 0.95, 1e-6}, AdamWOptions{0.0, 0.0, 1e-8}, AdamWOptions{0.3, 0.99, 1e-3}}) {
    for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(fmt::format("beta1 {} seed {}", options.beta1, seed));
      constexpr double kUlp = 0x1p-24;
      std::mt19937_64 random(seed);
      std::normal_distribution<float> normal;
      One one{.weight = normal(random)};
      double p = one.weight, m = 0, v = 0;
      double moved = 0, m_error = 0;
      for (int t = 1; t <= 50; ++t) {
        const float gradient = normal(random) * std::exp2(static_cast<float>(normal(random)) * 4);
        const float clip = t % 3 ? 1.0f : 0.375f;
        const double lr = 1e-2, decay = 0.1;
        one.update(make_adamw_step(options, lr, decay, t), gradient, clip);

        const double g = double{gradient} * clip, before = p;
        m_error = options.beta1 * m_error + 4 * kUlp * (std::fabs(m) + std::fabs(g));
        m = options.beta1 * m + (1 - options.beta1) * g;
        v = options.beta2 * v + (1 - options.beta2) * g * g;
        p *= 1 - lr * decay;
        p -= lr / (1 - std::pow(options.beta1, t)) * m /
             (std::sqrt(v) / std::sqrt(1 - std::pow(options.beta2, t)) + options.epsilon);
        moved += std::fabs(p - before);
        // float(1 - 0.999) and float(0.999) differ from the doubles by up to 1.3e-5 relative in v, as they do in
        // PyTorch.
        ASSERT_NEAR(one.m, m, m_error);
        ASSERT_NEAR(one.v, v, 5e-5 * v);
        ASSERT_NEAR(one.weight, p, 3e-5 * moved + 1e-6);
      }
    }
  }
}

TEST(AdamW, TheFirstUpdateMovesByTheLearningRateAgainstTheGradient) {
  for (const float gradient : {1e-3f, -2.0f, 512.0f}) {
    One one{.weight = 1};
    one.update(make_adamw_step({}, 1e-3, 0, 1), gradient);
    EXPECT_NEAR(one.weight, 1 - std::copysign(1e-3f, gradient), 1e-7);
  }
}

TEST(AdamW, DecayIsDecoupledFromTheMoments) {
  One one{.weight = 2};
  one.update(make_adamw_step({}, 0.1, 0.5, 1), 0);
  EXPECT_FLOAT_EQ(one.weight, 2 * 0.95f);
  EXPECT_EQ(one.m, 0);
  EXPECT_EQ(one.v, 0);
}

TEST(AdamW, ClippingEqualsAScaledGradient) {
  One clipped{.weight = 1}, scaled{.weight = 1};
  const AdamWStep step = make_adamw_step({}, 1e-3, 0.1, 2);
  clipped.update(step, 0.7f, 0.3f);
  scaled.update(step, 0.7f * 0.3f);
  EXPECT_EQ(clipped.weight, scaled.weight);
  EXPECT_EQ(clipped.m, scaled.m);
  EXPECT_EQ(clipped.v, scaled.v);
}

TEST(AdamW, WithoutMomentumASpikeIsForgottenExactly) {
  One one;
  const AdamWStep step = make_adamw_step({0, 0.999, 1e-8}, 1e-3, 0, 1);
  one.update(step, 1e20f);
  one.update(step, 1e-20f);
  EXPECT_EQ(one.m, 1e-20f);
}

TEST(AdamW, DenormalsAreNotFlushed) {
  const float least = std::numeric_limits<float>::denorm_min();
  for (const Simd simd : {Simd::kScalar, Simd::kAvx2, Simd::kAvx512}) {
    if (simd > best_simd()) continue;
    std::vector<float> weight(32, 100 * least), m(32), v(32), gradient(32, 1000 * least);
    adamw_f32(make_adamw_step({}, 0, 0, 1), 1, {weight.data(), nullptr, m.data(), v.data(), gradient.data(), 32}, simd);
    EXPECT_EQ(m, std::vector<float>(32, 100 * least));
    EXPECT_EQ(weight, std::vector<float>(32, 100 * least));
  }
}

TEST(AdamW, EveryNanIsStoredAsOnePattern) {
  for (const std::uint32_t nan : {0x7f800001u, 0xffc12345u, 0x7fffffffu}) {
    One one{.weight = 1, .m = 1, .v = 1};
    one.update(make_adamw_step({}, 1e-3, 0.1, 1), std::bit_cast<float>(nan));
    for (const float x : {one.weight, one.m, one.v}) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0x7fc00000u);
  }
}

TEST(AdamW, Bf16IsTheFp32UpdateOfItsMaster) {
  const std::uint64_t seed = 99;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const std::int64_t n = 20000;
  TestState narrow(DType::kBf16, n);
  narrow.fill(seed, 16);
  const StateBytes state = narrow.bytes();
  const auto* weight = static_cast<std::uint16_t*>(state.weight);
  std::vector<float> master(n), gradient(n), m(state.m, state.m + n), v(state.v, state.v + n);
  for (std::int64_t i = 0; i < n; ++i) {
    master[i] = join_master({weight[i], state.residual[i]});
    gradient[i] = join_master({static_cast<const std::uint16_t*>(state.gradient)[i], 0});
  }
  const AdamWStep step = make_adamw_step({}, 1e-3, 0.1, 5);
  adamw_bf16(step, 0.5f, state, Simd::kScalar);
  adamw_f32(step, 0.5f, {master.data(), nullptr, m.data(), v.data(), gradient.data(), n}, Simd::kScalar);
  for (std::int64_t i = 0; i < n; ++i) {
    const SplitMaster expected = split_master(master[i]);
    ASSERT_EQ(weight[i], expected.weight) << i;
    ASSERT_EQ(state.residual[i], expected.residual) << i;
  }
  EXPECT_EQ(0, std::memcmp(m.data(), state.m, n * sizeof(float)));
  EXPECT_EQ(0, std::memcmp(v.data(), state.v, n * sizeof(float)));
}

class AdamWSimd : public testing::TestWithParam<std::tuple<Simd, DType>> {
 protected:
  void SetUp() override {
    if (simd() > best_simd()) GTEST_SKIP() << "this processor lacks the instruction set";
  }
  static Simd simd() { return std::get<0>(GetParam()); }
  static DType compute() { return std::get<1>(GetParam()); }
};

TEST_P(AdamWSimd, EqualsScalarToTheBitOnAnyValues) {
  for (const std::uint64_t seed : {11, 12, 13, 14}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const AdamWOptions options = seed % 2 ? AdamWOptions{} : AdamWOptions{0.4, 0.95, 1e-6};
    TestState expected(compute(), 100'003);
    expected.fill(seed, 4);
    TestState got = expected;
    for (int t = 1; t <= 5; ++t) {
      const AdamWStep step = make_adamw_step(options, 1e-3 * t, 0.1, t);
      update(compute(), step, 0.7f, expected.bytes(), Simd::kScalar);
      update(compute(), step, 0.7f, got.bytes(), simd());
      ASSERT_TRUE(got == expected) << "update " << t;
      expected.fill_gradient(seed + 100 * t, 4);
      got.fill_gradient(seed + 100 * t, 4);
    }
  }
}

TEST_P(AdamWSimd, EveryLengthAndStartTouchesItsElementsOnly) {
  const AdamWStep step = make_adamw_step({}, 1e-2, 0.1, 1);
  for (std::int64_t n = 0; n <= 70; ++n) {
    for (const std::int64_t shift : {0, 1, 3, 8, 13}) {
      TestState expected(compute(), n, shift);
      expected.fill(static_cast<std::uint64_t>(n), 16);
      TestState got = expected;
      for (std::int64_t i = 0; i < n; ++i) {
        StateBytes one = expected.bytes();
        one.weight = static_cast<std::byte*>(one.weight) + i * size_of(compute());
        one.gradient = static_cast<const std::byte*>(one.gradient) + i * size_of(compute());
        if (one.residual) one.residual += i;
        one.m += i;
        one.v += i;
        one.n = 1;
        update(compute(), step, 1, one, Simd::kScalar);
      }
      update(compute(), step, 1, got.bytes(), simd());
      ASSERT_TRUE(got == expected) << "n " << n << " shift " << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, AdamWSimd,
                         testing::Combine(testing::Values(Simd::kScalar, Simd::kAvx2, Simd::kAvx512),
                                          testing::Values(DType::kBf16, DType::kF32)));

}  // namespace
}  // namespace protrain
