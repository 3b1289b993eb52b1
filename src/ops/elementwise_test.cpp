#include "ops/checks.h"
#include "ops/philox.h"

namespace protrain::ops::test {
namespace {

TEST(Activation, AgreesWithPlainOperatorsForAwkwardShapes) {
  for (const Target& target : {kCpuF32, kCpuBf16}) {
    check_activations(target, 1, 1);
    check_activations(target, 17, 13);
    check_activations(target, 5, 64);
  }
}

// Known answers of the generator's authors (Random123, kat_vectors, philox4x32 10).
TEST(Philox, GivesTheAuthorsKnownAnswers) {
  const auto words = [](PhiloxWords w) { return std::vector<std::uint32_t>(w.word, w.word + 4); };
  EXPECT_EQ(words(philox4x32({{0, 0, 0, 0}}, 0)),
            (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(philox4x32({{~0U, ~0U, ~0U, ~0U}}, ~0ULL)),
            (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822ULL)),
            (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, KeepsTheAskedShareAndScalesIt) {
  const at::Tensor x = at::zeros({400, 501}).add_(1);
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropout(x, p, seed(), 3);
    const double kept = y.ne(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(x.numel())));  // five sigma
    EXPECT_FLOAT_EQ(y.max().item<float>(), static_cast<float>(1 / (1 - p)));
  }
  EXPECT_TRUE(dropout(x, 0, seed(), 3).equal(x));
}

TEST(Dropout, GradientHasTheMaskOfTheForward) {
  for (const Target& target : {kCpuF32, kCpuBf16}) {
    const at::Tensor x = at::zeros({13, 7}, target.type).add_(1).requires_grad_();
    const at::Tensor y = dropout(x, 0.4, 9, 1, 100);
    const at::Tensor dx = gradients({y}, {x}, {at::zeros({13, 7}, target.type).add_(1)})[0];
    EXPECT_TRUE(dx.equal(y));
  }
}

TEST(Dropout, DoesNotDependOnTheCutIntoMicroBatches) {
  const at::Tensor x = at::zeros({24, 37}).add_(1);
  const at::Tensor whole = dropout(x, 0.3, 77, 5);
  for (const std::int64_t cut : {1, 4, 12}) {
    for (std::int64_t first = 0; first < 24; first += cut) {
      EXPECT_TRUE(dropout(x.narrow(0, first, cut), 0.3, 77, 5, first).equal(whole.narrow(0, first, cut)));
    }
  }
}

TEST(Dropout, DiffersByKeyBySiteAndByRow) {
  const at::Tensor x = at::zeros({2, 256}).add_(1);
  const at::Tensor base = dropout(x, 0.5, 1, 1);
  EXPECT_FALSE(dropout(x, 0.5, 2, 1).equal(base));
  EXPECT_FALSE(dropout(x, 0.5, 1ULL << 32, 1).equal(base));
  EXPECT_FALSE(dropout(x, 0.5, 1, 2).equal(base));
  EXPECT_FALSE(base[0].equal(base[1]));
  EXPECT_FALSE(dropout(x, 0.5, 1, 1, std::int64_t{1} << 32).equal(base));
}

}  // namespace
}  // namespace protrain::ops::test
