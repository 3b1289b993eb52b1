#include "ops/checks.h"

namespace protrain::ops::test {
namespace {

TEST(Embedding, AgreesWithPlainOperators) {
  for (const bool first : {true, false}) {
    check_embedding(kCpuF32, 1, 3, 5, first, at::kFloat);
    check_embedding(kCpuF32, 211, 97, 13, first, at::kFloat);
    check_embedding(kCpuBf16, 211, 97, 13, first, at::kFloat);
    check_embedding(kCpuBf16, 40, 97, 13, first, at::kBFloat16);
  }
}

TEST(Embedding, GivesTheSameBitsEveryTime) {
  Random random(kCpuF32);
  const at::Tensor dy = random.normal({500, 19});
  const Parameter table = random.parameter({11, 19}, true, at::kFloat);
  std::vector<std::int32_t> ids;
  for (int t = 0; t < 500; ++t) ids.push_back(t * t % 11);
  at::Tensor before;
  for (int run = 0; run < 3; ++run) {
    const at::Tensor anchor = at::zeros({1}).requires_grad_();
    gradients({embedding(int_tensor(ids, at::kCPU), table, anchor)}, {anchor}, {dy});
    if (run > 0) {
      EXPECT_TRUE(table.gradient.equal(before));
    }
    before = table.gradient.clone();
  }
}

TEST(CrossEntropy, AgreesWithPlainOperators) {
  for (const bool first : {true, false}) {
    check_cross_entropy(kCpuF32, 1, 7, 5, first, 0);
    check_cross_entropy(kCpuF32, 53, 211, 13, first, 0.4);
    check_cross_entropy(kCpuBf16, 53, 211, 13, first, 0.4);
  }
}

TEST(CrossEntropy, OfIgnoredLabelsOnlyIsZeroWithZeroGradients) {
  Random random(kCpuF32);
  const Parameter weight = random.parameter({17, 8}, true, at::kFloat);
  const Loss loss = cross_entropy(random.normal({5, 8}), weight, int_tensor({-100, -100, -100, -100, -100}, at::kCPU),
                                  {.loss_scale = 1, .gradients = true});
  EXPECT_EQ(loss.sum.item<double>(), 0);
  EXPECT_EQ(loss.input_gradient.abs().max().item<float>(), 0);
  EXPECT_EQ(weight.gradient.abs().max().item<float>(), 0);
}

TEST(CrossEntropy, OverSeveralTilesIsTheSumOfItsParts) {
  const std::int64_t tokens = 610, vocabulary = 50021, width = 3, part = 122;  // tiles of 240 rows
  Random random(kCpuF32);
  const at::Tensor x = random.normal({tokens, width});
  Parameter whole = random.parameter({vocabulary, width}, true, at::kFloat);
  Parameter parts{whole.weight, at::zeros({vocabulary, width}), false};
  std::vector<std::int32_t> labels;
  for (std::int64_t t = 0; t < tokens; ++t) labels.push_back(static_cast<std::int32_t>(t * 79 % vocabulary));
  const at::Tensor ids = int_tensor(labels, at::kCPU);
  const LossOptions options{.loss_scale = 0.01, .gradients = true};
  const Loss loss = cross_entropy(x, whole, ids, options);
  double sum = 0;
  for (std::int64_t first = 0; first < tokens; first += part) {
    const Loss piece = cross_entropy(x.narrow(0, first, part), parts, ids.narrow(0, first, part), options);
    sum += piece.sum.item<double>();
    expect_near(loss.input_gradient.narrow(0, first, part), piece.input_gradient, 1e-6, "dx");
  }
  EXPECT_NEAR(loss.sum.item<double>(), sum, 1e-6 * sum);
  expect_near(whole.gradient, parts.gradient, 1e-5, "weight gradient");
}

TEST(CrossEntropy, CarriesANanIntoTheLoss) {
  Random random(kCpuF32);
  at::Tensor x = random.normal({4, 8});
  x[2][1] = std::numeric_limits<float>::quiet_NaN();
  const Parameter weight = random.parameter({17, 8}, true, at::kFloat);
  EXPECT_TRUE(std::isnan(cross_entropy(x, weight, int_tensor({1, 2, 3, 4}, at::kCPU), {}).sum.item<double>()));
}

}  // namespace
}  // namespace protrain::ops::test
