#include <algorithm>

#include "ops/attention.h"
#include "ops/checks.h"

namespace protrain::ops::test {
namespace {

TEST(Attention, AgreesWithSoftmaxForAwkwardShapesAndGroups) {
  check_attention(kCpuF32, {1, 1, {2, 1, 4}});
  check_attention(kCpuF32, {3, 17, {4, 4, 6}});
  check_attention(kCpuF32, {2, 37, {6, 2, 10}});
  check_attention(kCpuF32, {2, 37, {7, 1, 8}});
  check_attention(kCpuBf16, {2, 37, {6, 2, 16}});
}

TEST(Attention, WithoutRopeWithPartOfTheHeadRotatedAndWithAGivenScale) {
  check_attention(kCpuF32, {2, 19, {4, 2, 8}, 0, {}, 0});
  check_attention(kCpuF32, {2, 19, {4, 2, 8}, 0, {}, 4});
  check_attention(kCpuF32, {2, 19, {4, 2, 8}, 0, {}, -1, 0.2});
}

TEST(Attention, StaysInsideThePackedSamples) {
  check_attention(kCpuF32, {1, 41, {4, 2, 8}, 0, {0, 1, 14, 15, 32, 41}});
  check_attention(kCpuF32, {2, 24, {4, 2, 8}, 0, {0, 11, 24, 25, 48, 48, 48}});
  check_attention(kCpuF32, {1, 5, {2, 2, 4}, 0, {0, 1, 2, 3, 4, 5}});
  check_attention(kCpuBf16, {1, 41, {4, 2, 16}, 0, {0, 1, 14, 32, 41}});
}

TEST(Attention, SeesOnlyItsWindow) {
  for (const std::int64_t window : {1, 2, 7, 36, 37, 100}) {
    check_attention(kCpuF32, {2, 37, {4, 2, 8}, window, {}, -1});
  }
  check_attention(kCpuF32, {1, 41, {4, 2, 8}, 5, {0, 1, 14, 32, 41}});
  check_attention(kCpuBf16, {1, 41, {4, 2, 8}, 5, {0, 1, 14, 32, 41}});
}

TEST(Attention, AWindowOverSeveralTilesOfQueriesAgreesToo) {
  check_attention(kCpuF32, {1, 700, {2, 1, 4}, 300, {}});
  check_attention(kCpuF32, {1, 700, {2, 1, 4}, 20, {0, 580, 700}});
}

TEST(Attention, PackedAndUnpackedGiveTheSameForTheSameSamples) {
  Random random(kCpuF32);
  const HeadShape shape{4, 2, 8};
  const at::Tensor leaf = random.leaf({3 * 16, 8 * 8}), dy = random.normal({3 * 16, 32});
  const at::Tensor angle = random.normal({16, 4});
  const std::vector<std::int32_t> starts{0, 16, 32, 48};
  std::vector<std::int32_t> positions;
  for (int t = 0; t < 48; ++t) positions.push_back(t % 16);
  at::Tensor out[2], dx[2];
  for (const bool packed : {false, true}) {
    out[packed] = rope_attention(leaf * 1, shape, {angle.cos(), angle.sin()},
                                 {.rows = 3,
                                  .row_tokens = 16,
                                  .packed = packed,
                                  .positions = int_tensor(positions, at::kCPU),
                                  .sample_starts = int_tensor(starts, at::kCPU),
                                  .host_sample_starts = starts});
    dx[packed] = gradients({out[packed]}, {leaf}, {dy})[0];
  }
  expect_near(out[1], out[0], 1e-6, "out");
  expect_near(dx[1], dx[0], 1e-6, "dx");
}

// What a sample's tokens see does not change when other samples do, not even through a NaN.
TEST(Attention, NothingLeaksBetweenPackedSamples) {
  Random random(kCpuF32);
  const at::Tensor qkv = random.normal({20, 3 * 4});
  at::Tensor spoiled = qkv.clone();
  spoiled.narrow(0, 0, 8).fill_(std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::int32_t> starts{0, 8, 20};
  for (const std::int64_t window : {0, 3}) {
    const auto run = [&](const at::Tensor& x) {
      return rope_attention(x.clone(), {1, 1, 4}, {},
                            {.rows = 1,
                             .row_tokens = 20,
                             .packed = true,
                             .positions = {},
                             .sample_starts = int_tensor(starts, at::kCPU),
                             .host_sample_starts = starts,
                             .window = window})
          .narrow(0, 8, 12);
    };
    EXPECT_TRUE(run(spoiled).equal(run(qkv)));
  }
}

}  // namespace
}  // namespace protrain::ops::test
