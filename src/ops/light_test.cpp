#include "ops/light_checks.h"

#include "ops/allocation_log.h"
#include "ops/recipe.h"

namespace protrain::ops::test {
namespace {

TEST(Light, GivesTheBitsOfKeepingEverything) {
  for (const Target& target : {kCpuF32, kCpuBf16}) {
    for (const bool residual : {false, true}) {
      check_light_norm(target, 29, 67, false, residual);
      check_light_norm(target, 29, 67, true, residual);
    }
    check_light_activations(target, 17, 13);
    check_light_qk_norm(target, 2, 19, {6, 2, 16});
  }
}

// The layer of LLaMA-3-8B, in elements per token: h = 4096, q + k + v = 6144, f = 14336. Statistics are fp32: one of
// each norm and one of each of the 32 heads.
double llama_layer(bool light) {
  constexpr std::int64_t kTokens = 16, kHidden = 4096, kInner = 14336, kQkv = 6144;
  const auto parameter = [](at::IntArrayRef shape) { return Parameter{at::empty(shape), at::empty(shape)}; };
  const Parameter n1 = parameter({kHidden}), n2 = parameter({kHidden}), qkv = parameter({kQkv, kHidden});
  const Parameter o = parameter({kHidden, kHidden}), gate_up = parameter({2 * kInner, kHidden});
  const Parameter down = parameter({kHidden, kInner});
  const at::Tensor x = at::zeros({kTokens, kHidden}).requires_grad_();
  AllocationLog log;
  at::Tensor y;
  {
    const AddNorm start = add_rms_norm(x, {}, n1, 1e-5, light);
    const at::Tensor attended =
        rope_attention(linear(start.normed, qkv), {32, 8, 128}, {}, {.rows = 1, .row_tokens = kTokens});
    const AddNorm middle = add_rms_norm(linear(attended, o), start.sum, n2, 1e-5, light);
    y = linear(gated_activation(linear(middle.normed, gate_up), Activation::kSilu, light), down, nullptr, middle.sum);
  }
  // y itself goes to the next block.
  return static_cast<double>(log.live()) / sizeof(float) / kTokens - kHidden;
}

TEST(Light, SavesAThirdLessOfALlamaLayer) {
  constexpr double kStatistics = 2 + 32;
  EXPECT_EQ(llama_layer(false), 4096 + 6144 + 4096 + 4096 + 4096 + 2 * 14336 + 14336 + kStatistics);
  EXPECT_EQ(llama_layer(true), 6144 + 4096 + 4096 + 2 * 14336 + kStatistics);
}

TEST(Light, MakesATensorOnceABackwardAndLetsGoOfIt) {
  Random random(kCpuF32);
  const at::Tensor x = random.leaf({8, 16}), dy = random.normal({8, 4});
  const auto parameter = [&] { return Parameter{random.normal({4, 16}), random.normal({4, 16})}; };
  const Parameter a = parameter(), b = parameter(), c = parameter();
  AllocationLog log;
  int times = 0;
  // It outlives backward, as a caller's tensor may: what was made again does not stay with it.
  const Source source(x, std::make_shared<Recipe>([&] {
                        ++times;
                        return x.detach().clone();
                      }));
  {
    const std::vector<at::Tensor> outputs{linear(source, a), linear(source, b), linear(source, c)};
    EXPECT_EQ(times, 0);
    gradients(outputs, {x}, {dy, dy, dy});
  }
  EXPECT_EQ(times, 1);
  EXPECT_EQ(log.live(), 0);
}

TEST(Light, AReluHasOneTensorForItselfAndTheProduct) {
  const at::Tensor x = at::zeros({8, 512}).requires_grad_();
  const Parameter weight{at::zeros({4, 512}), at::zeros({4, 512})};
  for (const bool light : {false, true}) {
    const AllocationLog log;
    at::Tensor y = linear(activation(x, Activation::kRelu, light), weight);
    EXPECT_EQ(log.live(), static_cast<Bytes>(sizeof(float)) * (8 * 512 + 8 * 4));
  }
}

}  // namespace
}  // namespace protrain::ops::test
