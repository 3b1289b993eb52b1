#include "ops/checks.h"

namespace protrain::ops::test {
namespace {

TEST(Norm, AgreesWithPlainOperatorsForAwkwardShapes) {
  for (const bool layer : {false, true}) {
    for (const bool residual : {false, true}) {
      for (const bool use_sum : {false, true}) {
        check_norm(kCpuF32, {1, 13, layer, residual, use_sum});
        check_norm(kCpuF32, {29, 67, layer, residual, use_sum});
        check_norm(kCpuBf16, {29, 67, layer, residual, use_sum});
      }
    }
  }
}

TEST(Norm, AddsToTheGradientUnlessFirst) {
  check_norm(kCpuF32, {11, 24, false, true, true, false});
  check_norm(kCpuF32, {11, 24, true, true, true, false});
}

TEST(Norm, WithOnlyTheSumUsedPassesItsGradientThrough) {
  Random random(kCpuF32);
  const at::Tensor x = random.leaf({3, 8}), ds = random.normal({3, 8});
  const Parameter weight = random.parameter({8}, true, at::kFloat);
  const AddNorm result = add_rms_norm(x, {}, weight, 1e-5);
  EXPECT_TRUE(gradients({result.sum}, {x}, {ds})[0].equal(ds));
}

TEST(Norm, OfARowDoesNotDependOnTheRowsBesideIt) {
  Random random(kCpuF32);
  const at::Tensor x = random.normal({7, 33});
  const Parameter weight = random.parameter({33}, true, at::kFloat), bias = random.parameter({33}, true, at::kFloat);
  const at::Tensor all = add_layer_norm(x, {}, weight, bias, 1e-5).normed;
  for (std::int64_t row = 0; row < 7; ++row) {
    const at::Tensor one = add_layer_norm(x.narrow(0, row, 1).contiguous(), {}, weight, bias, 1e-5).normed;
    EXPECT_TRUE(one.equal(all.narrow(0, row, 1)));
  }
}

TEST(QkNorm, AgreesWithPlainOperatorsAndLeavesVAlone) {
  for (const bool first : {true, false}) {
    check_qk_norm(kCpuF32, 1, {3, 1, 7}, first);
    check_qk_norm(kCpuF32, 23, {6, 2, 16}, first);
    check_qk_norm(kCpuBf16, 23, {6, 2, 16}, first);
  }
}

}  // namespace
}  // namespace protrain::ops::test
