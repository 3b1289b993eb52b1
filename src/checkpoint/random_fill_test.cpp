#include "checkpoint/random_fill.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "checkpoint/folder_names.h"
#include "checkpoint/model_files.h"
#include "checkpoint/test_store.h"

namespace protrain {
namespace {

// Known answers published with the algorithm (Random123, kat_vectors: philox4x32 10).
TEST(RandomFill, PhiloxGivesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomFill, TheCutOfTheRangeDoesNotChangeAnElement) {
  constexpr std::int64_t kCount = 1000;
  std::vector<float> whole(kCount), cut(kCount);
  fill_normal(5, 6, 0.02, 10, kCount, whole.data());
  for (const std::int64_t piece : {1, 2, 3, 64, 999}) {
    for (std::int64_t at = 0; at < kCount; at += piece) {
      fill_normal(5, 6, 0.02, 10 + at, std::min(piece, kCount - at), cut.data() + at);
    }
    EXPECT_EQ(cut, whole) << piece;
  }
}

TEST(RandomFill, TheDrawsAreNormalAndIndependent) {
  constexpr std::int64_t kCount = 1 << 20;
  constexpr double kStd = 0.02;
  std::vector<float> values(kCount), others(kCount);
  fill_normal(1, 2, kStd, 0, kCount, values.data());
  fill_normal(1, 3, kStd, 0, kCount, others.data());
  std::array<double, 5> moment{};
  double neighbours = 0, streams = 0;
  std::int64_t within_one = 0, beyond_three = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double x = values[i] / kStd;
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(x, k) / kCount;
    if (i > 0) neighbours += x * (values[i - 1] / kStd) / kCount;
    streams += x * (others[i] / kStd) / kCount;
    within_one += std::abs(x) < 1 ? 1 : 0;
    beyond_three += std::abs(x) > 3 ? 1 : 0;
  }
  // Five standard errors of each estimate: the variance of x^k is E x^2k - (E x^k)^2.
  const double unit = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(moment[1], 0, unit);
  EXPECT_NEAR(moment[2], 1, unit * std::sqrt(2.0));
  EXPECT_NEAR(moment[3], 0, unit * std::sqrt(15.0));
  EXPECT_NEAR(moment[4], 3, unit * std::sqrt(96.0));
  EXPECT_NEAR(neighbours, 0, unit);
  EXPECT_NEAR(streams, 0, unit);
  EXPECT_NEAR(static_cast<double>(within_one) / kCount, std::erf(1 / std::sqrt(2.0)), unit * 0.5);
  EXPECT_NEAR(static_cast<double>(beyond_three) / kCount, std::erfc(3 / std::sqrt(2.0)), unit * 0.06);
}

std::vector<float> filled(const ModelSpec& spec, DType compute, Bytes chunk_bytes, std::uint64_t seed, Id id) {
  TestStore store(spec, compute, chunk_bytes);
  store.randomize(1);
  fill_random(*store, seed);
  return store.masters(id);
}

TEST(RandomFill, AFillIsAFunctionOfSeedAndNameWhateverTheChunks) {
  const ModelSpec spec = test_spec(false);
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const auto id = static_cast<Id>(i);
    const auto values = filled(spec, DType::kF32, kMiB, 3, id);
    EXPECT_EQ(values, filled(spec, DType::kF32, 1, 3, id));
    EXPECT_EQ(values, filled(spec, DType::kBf16, 2048, 3, id)) << "masters are exact in bf16 compute";
    switch (spec.parameters[i].fill) {
      case Fill::kZeros: EXPECT_EQ(values, std::vector<float>(values.size(), 0)); break;
      case Fill::kOnes: EXPECT_EQ(values, std::vector<float>(values.size(), 1)); break;
      case Fill::kNormal: EXPECT_NE(values, filled(spec, DType::kF32, kMiB, 4, id)); break;
    }
  }
  ModelSpec renamed = spec;
  renamed.parameters[0].name = "another";
  EXPECT_NE(filled(spec, DType::kF32, kMiB, 3, 0), filled(renamed, DType::kF32, kMiB, 3, 0));
}

TEST(RandomFill, LargeTensorsAreExactInEitherDtype) {
  const ModelSpec spec = test_spec(false, 300'000);
  const auto large = std::ranges::max_element(spec.parameters, {}, &ParameterSpec::elements);
  ASSERT_GT(large->elements(), 1 << 20);  // more than one piece of masters
  const auto id = static_cast<Id>(large - spec.parameters.begin());
  std::vector<float> expected(static_cast<std::size_t>(large->elements()));
  fill_normal(3, XXH64(large->name.data(), large->name.size(), 0), large->fill_std, 0, large->elements(),
              expected.data());
  for (const DType compute : {DType::kBf16, DType::kF32}) EXPECT_EQ(filled(spec, compute, kMiB, 3, id), expected);
}

TEST(RandomFill, ThePaddingRowIsZeroAndNothingElseChanges) {
  const ModelSpec spec = test_spec(false);
  ModelSpec padded = spec;
  padded.parameters[0].zero_row = 12;
  const auto without = filled(spec, DType::kF32, kMiB, 3, 0);
  const auto with = filled(padded, DType::kF32, kMiB, 3, 0);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_EQ(with[i], i / 6 == 12 ? 0 : without[i]) << i;
}

TEST(RandomFill, ATensorLargerThanAPieceIsFilledWithoutASeam) {
  ModelSpec spec = test_spec(false);
  constexpr std::int64_t kColumns = 7, kRows = kPieceElements / kColumns + 2;
  spec.parameters[0].shape = {kRows, kColumns};
  const std::int64_t row = kPieceElements / kColumns;  // lies on both sides of the seam
  spec.parameters[0].zero_row = row;
  ModelSpec plain = spec;
  plain.parameters[0].zero_row = -1;
  const auto with = filled(spec, DType::kF32, kMiB, 9, 0);
  const auto without = filled(plain, DType::kF32, kMiB, 9, 0);
  for (std::int64_t i = (row - 1) * kColumns; i < kRows * kColumns; ++i) {
    ASSERT_EQ(with[i], i / kColumns == row ? 0 : without[i]) << i;
    ASSERT_NE(without[i], 0) << i;
  }
}

}  // namespace
}  // namespace protrain
