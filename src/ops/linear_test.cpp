#include "ops/checks.h"

namespace protrain::ops::test {
namespace {

TEST(Linear, AgreesWithPlainOperatorsForAwkwardShapesAndBothLayouts) {
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        check_linear(kCpuF32, {1, 7, 5, layout, bias, residual});
        check_linear(kCpuF32, {37, 13, 31, layout, bias, residual});
        check_linear(kCpuBf16, {37, 13, 31, layout, bias, residual});
      }
    }
  }
}

TEST(Linear, AddsToTheGradientUnlessFirst) {
  check_linear(kCpuF32, {19, 11, 6, WeightLayout::kOutIn, true, false, false});
  check_linear(kCpuF32, {19, 11, 6, WeightLayout::kInOut, true, false, false});
  check_linear(kCpuBf16, {19, 11, 6, WeightLayout::kOutIn, true, false, false});
}

TEST(Linear, WritesABf16GradientWhereThatIsWanted) {
  check_linear(kCpuBf16, {19, 11, 6, WeightLayout::kOutIn, true, true, true, at::kBFloat16});
}

TEST(Linear, SumsAnFp32GradientOfBf16InputsWithoutRoundingInBetween) {
  // 4096 products of 1 x 1 added to a slot that holds 2^-10: bf16 sums would stop at 256 and lose the small part.
  const at::Tensor x = at::zeros({4096, 1}, at::kBFloat16).add_(1).requires_grad_();
  const Parameter weight{at::zeros({1, 1}, at::kBFloat16), at::zeros({1, 1}).add_(0x1p-10), false};
  const at::Tensor y = linear(x, weight);
  gradients({y}, {x}, {at::zeros({4096, 1}, at::kBFloat16).add_(1)});
  EXPECT_EQ(weight.gradient.item<float>(), 4096 + 0x1p-10F);
}

TEST(Linear, WithoutValueStillGivesTheSameGradients) {
  Random random(kCpuF32);
  const at::Tensor x = random.leaf({9, 5}), dy = random.normal({9, 3});
  const Parameter weight{random.normal({3, 5}), random.normal({3, 5})};
  const at::Tensor dx = gradients({linear(x, weight)}, {x}, {dy})[0];
  const at::Tensor dw = weight.gradient.clone();
  weight.gradient.zero_();
  const at::Tensor hollow = linear(x, weight, nullptr, {}, WeightLayout::kOutIn, true);
  EXPECT_EQ(hollow.sizes(), at::IntArrayRef({9, 3}));
  EXPECT_TRUE(gradients({hollow}, {x}, {dy})[0].equal(dx));
  EXPECT_TRUE(weight.gradient.equal(dw));
}

TEST(Linear, WithoutAGradientSlotComputesOnlyTheInputGradient) {
  Random random(kCpuF32);
  const at::Tensor x = random.leaf({4, 5}), dy = random.normal({4, 3});
  const Parameter weight{random.normal({3, 5}), {}};
  expect_near(gradients({linear(x, weight)}, {x}, {dy})[0], at::matmul(wide(dy), wide(weight.weight)), 1e-6, "dx");
}

TEST(Linear, RecordsNoGraphWhenNothingAsksForAGradient) {
  Random random(kCpuF32);
  const Parameter weight{random.normal({3, 5}), random.normal({3, 5})};
  EXPECT_FALSE(linear(random.normal({4, 5}), weight).requires_grad());
  const at::Tensor x = random.leaf({4, 5});
  const at::NoGradGuard guard;
  EXPECT_FALSE(linear(x, weight).requires_grad());
}

TEST(Linear, ASharedResidualGradientIsNotChangedByWhatIsAddedToIt) {
  // The residual is also an input: the engine must not add in place to the dy that the caller still holds.
  Random random(kCpuF32);
  const at::Tensor x = random.leaf({6, 4}), dy = random.normal({6, 4});
  const Parameter weight{random.normal({4, 4}), random.normal({4, 4})};
  const at::Tensor before = dy.clone();
  const at::Tensor dx = gradients({linear(x, weight, nullptr, x)}, {x}, {dy})[0];
  EXPECT_TRUE(dy.equal(before));
  expect_near(dx, wide(dy) + at::matmul(wide(dy), wide(weight.weight)), 1e-6, "dx");
}

}  // namespace
}  // namespace protrain::ops::test
