// Every operator on CUDA against fp64 on the CPU, in fp32 and bf16, and the speed of the memory-bound kernels
// (PROTRAIN_BENCH=1).
#include <ATen/Context.h>

#include "device/device.h"
#include "ops/attention.h"
#include "ops/checks.h"
#include "ops/cuda_bench.h"
#include "ops/light_checks.h"
#include "tensor/tensor.h"

namespace protrain::ops::test {
namespace {

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    set_up_torch({.compute_threads = 2, .deterministic = false});
  }
};
constexpr at::DeviceType kGpu = at::kCUDA;

TEST_F(CudaOps, Linear) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      for (const bool first : {true, false}) {
        check_linear(target, {1, 8, 16, layout, true, true, first});
        check_linear(target, {37, 13, 31, layout, true, false, first});
        check_linear(target, {300, 64, 520, layout, true, true, first});
      }
    }
  }
  check_linear(kCudaBf16, {300, 64, 520, WeightLayout::kOutIn, true, true, true, at::kBFloat16});
}

TEST_F(CudaOps, NormsOfEveryKernelWidth) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    for (const bool layer : {false, true}) {
      // Odd; a warp a row; 1, 2, 4 and 8 packs a thread; wider than registers hold. fp32 packs are half as wide.
      for (const std::int64_t width : {13, 67, 72, 576, 1024, 2048, 4096, 5120, 8192, 12288, 16384, 16392}) {
        check_norm(target, {5, width, layer, true, true, true});
      }
      check_norm(target, {1, 576, layer, false, false, false});
      check_norm(target, {3000, 576, layer, true, true, false});
      check_norm(target, {1500, 4096, layer, false, true, true});
      check_norm(target, {1500, 67, layer, true, false, true});
    }
  }
  check_norm(kCudaBf16, {33, 4096, false, true, true, true, at::kBFloat16});
}

TEST_F(CudaOps, QkNorm) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    check_qk_norm(target, 1, {3, 1, 7}, true);
    check_qk_norm(target, 700, {5, 1, 31}, false);
    check_qk_norm(target, 700, {4, 2, 64}, true);
    check_qk_norm(target, 3000, {8, 2, 128}, false);
    check_qk_norm(target, 100, {4, 2, 256}, true);
  }
}

TEST_F(CudaOps, AttentionInFp32) {
  check_attention(kCudaF32, {2, 37, {6, 2, 10}});
  check_attention(kCudaF32, {2, 300, {4, 1, 64}});
  check_attention(kCudaF32, {1, 300, {4, 2, 32}, 20});
  check_attention(kCudaF32, {1, 41, {4, 2, 8}, 5, {0, 1, 14, 32, 41, 41}});
  check_attention(kCudaF32, {2, 19, {4, 2, 8}, 0, {}, 4});
  check_attention(kCudaF32, {2, 19, {4, 2, 8}, 0, {}, 0});
}

TEST_F(CudaOps, AttentionThroughCudnn) {
  for (const HeadShape& shape : {HeadShape{8, 2, 128}, HeadShape{4, 4, 64}, HeadShape{6, 1, 80}}) {
    const AttentionBatch batch{.rows = 2, .row_tokens = 300};
    const std::int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    ASSERT_EQ(
        choose_backend(at::empty({600, width}, at::TensorOptions().device(kGpu).dtype(at::kBFloat16)), shape, batch),
        AttentionBackend::kCudnn);
    check_attention(kCudaBf16, {2, 300, shape});
    check_attention(kCudaBf16, {3, 257, shape, 0, {}, 0});
  }
  check_attention(kCudaBf16, {2, 128, {4, 2, 64}, 0, {}, -1, 0.2});
}

TEST_F(CudaOps, AttentionThroughFlash) {
  check_attention(kCudaBf16, {2, 37, {6, 2, 16}});                        // short
  check_attention(kCudaBf16, {2, 300, {8, 2, 128}, 0, {}, -1, 0, true});  // deterministic
  check_attention(kCudaBf16, {2, 300, {8, 2, 128}, 50});                  // window
  check_attention(kCudaBf16, {2, 300, {4, 4, 64}, 1});
  check_attention(kCudaBf16, {1, 600, {8, 2, 128}, 0, {0, 1, 200, 333, 600, 600}});  // packed
  check_attention(kCudaBf16, {2, 300, {8, 2, 64}, 33, {0, 1, 200, 300, 600, 600}});
  check_attention(kCudaBf16, {1, 200, {2, 1, 256}});
  check_attention(kCudaBf16, {1, 100, {2, 1, 20}});  // no flash for this head_dim: products
}

TEST_F(CudaOps, DeterministicAttentionGivesTheSameBitsEveryTime) {
  set_up_torch({.compute_threads = 2, .deterministic = true});
  Random random(kCudaBf16);
  const HeadShape shape{8, 2, 128};
  const at::Tensor leaf = random.leaf({2048, 12 * 128}), dy = random.normal({2048, 8 * 128});
  at::Tensor before;
  for (int run = 0; run < 5; ++run) {
    const at::Tensor out = rope_attention(leaf * 1, shape, {}, {.rows = 1, .row_tokens = 2048, .deterministic = true});
    const at::Tensor dx = gradients({out}, {leaf}, {dy})[0];
    if (run > 0) {
      EXPECT_TRUE(dx.equal(before));
    }
    before = dx;
  }
}

TEST_F(CudaOps, Activations) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    check_activations(target, 1, 1);
    check_activations(target, 17, 13);
    check_activations(target, 130, 1792);
    check_activations(target, 65, 520);
  }
}

TEST_F(CudaOps, DropoutHasTheMasksOfTheCpu) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    for (const std::int64_t width : {13, 64, 520}) {
      Random random(target);
      const at::Tensor x = random.leaf({50, width}), dy = random.normal({50, width});
      const at::Tensor there = x.detach().cpu().requires_grad_();
      const at::Tensor y = dropout(x, 0.3, 0x123456789abcdefULL, 4, std::int64_t{1} << 33);
      const at::Tensor want = dropout(there, 0.3, 0x123456789abcdefULL, 4, std::int64_t{1} << 33);
      EXPECT_TRUE(y.cpu().equal(want));
      EXPECT_TRUE(gradients({y}, {x}, {dy})[0].cpu().equal(gradients({want}, {there}, {dy.cpu()})[0]));
    }
  }
}

TEST_F(CudaOps, Embedding) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    for (const bool first : {true, false}) {
      check_embedding(target, 1, 3, 5, first, at::kFloat);
      check_embedding(target, 1000, 97, 13, first, at::kFloat);
      check_embedding(target, 4096, 5003, 576, first, at::kFloat);
    }
  }
  check_embedding(kCudaBf16, 64, 97, 16, true, at::kBFloat16);
}

TEST_F(CudaOps, CrossEntropy) {
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    check_cross_entropy(target, 1, 7, 5, true, 0);
    check_cross_entropy(target, 53, 211, 13, false, 0.4);
    check_cross_entropy(target, 300, 50257, 64, true, 0.1);
  }
}

TEST_F(CudaOps, CrossEntropyOfALargeVocabularyAndManyTokens) {
  const std::int64_t tokens = 32768, vocabulary = 151936, width = 8;
  Random random(kCudaBf16);
  const at::Tensor x = random.normal({tokens, width});
  const auto options = at::TensorOptions().device(kGpu);
  const Parameter weight{at::zeros({vocabulary, width}, options.dtype(at::kBFloat16)),
                         at::zeros({vocabulary, width}, options)};
  const at::Tensor labels = at::arange(tokens, options).to(at::kInt);
  const Loss loss = cross_entropy(x, weight, labels, {.loss_scale = 1, .gradients = true});
  const double want = static_cast<double>(tokens) * std::log(static_cast<double>(vocabulary));
  EXPECT_NEAR(loss.sum.item<double>(), want, 1e-5 * want);
  // Row v < tokens of the gradient is the mean of all x (over the vocabulary) less x_v.
  const at::Tensor mean = wide(x).sum(0).div(static_cast<double>(vocabulary)).unsqueeze(0);
  expect_near(weight.gradient.narrow(0, 0, tokens), mean - wide(x), 1e-2, "weight gradient");
}

TEST_F(CudaOps, LightOnesGiveTheBitsOfKeepingEverything) {
  set_up_torch({.compute_threads = 2, .deterministic = true});
  for (const Target& target : {kCudaF32, kCudaBf16}) {
    for (const bool residual : {false, true}) {
      for (const bool layer : {false, true}) {
        // Odd; a warp a row; a block a row; wider than registers hold.
        for (const std::int64_t width : {67, 576, 4096, 16392}) check_light_norm(target, 300, width, layer, residual);
      }
    }
    check_light_activations(target, 130, 1792);
    check_light_activations(target, 17, 13);
    check_light_qk_norm(target, 2, 300, {8, 2, 128});
    check_light_qk_norm(target, 2, 37, {6, 2, 10});
  }
}

TEST_F(CudaOps, SpeedOfMemoryBoundKernels) {
  if (std::getenv("PROTRAIN_BENCH") == nullptr) GTEST_SKIP() << "PROTRAIN_BENCH is not set";
  bench::memory_bound_kernels();
  bench::block();
}

}  // namespace
}  // namespace protrain::ops::test
