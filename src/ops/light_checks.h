// Operators told to be light against the same ones that keep everything: equal bits, on any target.
#pragma once
#include "ops/checks.h"

namespace protrain::ops::test {

struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  void add(std::string name, const at::Tensor& tensor) {
    tensors.emplace_back(std::move(name), tensor.detach().clone());
  }
};

// `run` draws its inputs from a Random of its own, so that both runs have the same.
template <typename Run>
void expect_same_bits(const Run& run) {
  const Outcome kept = run(false), light = run(true);
  ASSERT_EQ(kept.tensors.size(), light.tensors.size());
  for (std::size_t i = 0; i < kept.tensors.size(); ++i) {
    const auto& [name, want] = kept.tensors[i];
    EXPECT_TRUE(light.tensors[i].second.equal(want)) << name << " (seed " << seed() << ")";
    EXPECT_TRUE(want.isfinite().all().template item<bool>()) << name;
  }
}

// A norm that two products read, as in a group that is no single product, and its sum.
inline void check_light_norm(Target target, std::int64_t tokens, std::int64_t width, bool layer, bool residual) {
  SCOPED_TRACE(
      fmt::format("light norm {} [{}, {}] layer {} residual {}", target.name(), tokens, width, layer, residual));
  expect_same_bits([&](bool light) {
    Random random(target);
    const at::Tensor x = random.leaf({tokens, width}), r = residual ? random.leaf({tokens, width}) : at::Tensor();
    const Parameter weight = random.parameter({width}, true, at::kFloat),
                    bias = random.parameter({width}, true, at::kFloat);
    const Parameter a = random.parameter({24, width}, true, target.type, 0.1);
    const Parameter b = random.parameter({width, 16}, true, target.type, 0.1);
    const at::Tensor da = random.normal({tokens, 24}), db = random.normal({tokens, 16}),
                     ds = random.normal({tokens, width});
    const AddNorm norm =
        layer ? add_layer_norm(x, r, weight, bias, 1e-5, light) : add_rms_norm(x, r, weight, 1e-5, light);
    EXPECT_EQ(norm.normed.recipe != nullptr, light);
    const at::Tensor ya = linear(norm.normed, a), yb = linear(norm.normed, b, nullptr, {}, WeightLayout::kInOut);
    Outcome outcome;
    outcome.add("a", ya);
    outcome.add("b", yb);
    std::vector<at::Tensor> inputs{x};
    if (residual) inputs.push_back(r);
    for (const at::Tensor& dx : gradients({norm.sum, ya, yb}, inputs, {ds, da, db})) outcome.add("dx", dx);
    for (const Parameter* p : {&weight, &a, &b}) outcome.add("gradient", p->gradient);
    if (layer) outcome.add("bias gradient", bias.gradient);
    return outcome;
  });
}

inline void check_light_activations(Target target, std::int64_t tokens, std::int64_t width) {
  for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    for (const bool gated : {false, true}) {
      SCOPED_TRACE(fmt::format("light activation {} gated {} {} [{}, {}]", static_cast<int>(kind), gated, target.name(),
                               tokens, width));
      expect_same_bits([&](bool light) {
        Random random(target);
        const at::Tensor x = random.leaf({tokens, gated ? 2 * width : width}, 2), dy = random.normal({tokens, 24});
        const Parameter weight = random.parameter({24, width}, true, target.type, 0.1);
        const at::Tensor y = linear(gated ? gated_activation(x, kind, light) : activation(x, kind, light), weight);
        Outcome outcome;
        outcome.add("y", y);
        outcome.add("dx", gradients({y}, {x}, {dy})[0]);
        outcome.add("weight gradient", weight.gradient);
        return outcome;
      });
    }
  }
}

inline void check_light_qk_norm(Target target, std::int64_t rows, std::int64_t row_tokens, const HeadShape& shape) {
  SCOPED_TRACE(fmt::format("light qk_norm {} {} x {} tokens, {}/{} heads of {}", target.name(), rows, row_tokens,
                           shape.heads, shape.kv_heads, shape.head_dim));
  expect_same_bits([&](bool light) {
    Random random(target);
    const std::int64_t tokens = rows * row_tokens, width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const at::Tensor x = random.leaf({tokens, width}), dy = random.normal({tokens, shape.heads * shape.head_dim});
    const Parameter q = random.parameter({shape.head_dim}, true, at::kFloat),
                    k = random.parameter({shape.head_dim}, true, at::kFloat);
    const at::Tensor angle = random.typed({row_tokens, shape.head_dim / 2}, at::kFloat);
    const at::Tensor positions =
        at::arange(tokens, x.options().dtype(at::kFloat).requires_grad(false)).remainder(row_tokens).to(at::kInt);
    const at::Tensor out =
        rope_attention(qk_norm(x, q, k, shape, 1e-6, light), shape, {angle.cos(), angle.sin()},
                       {.rows = rows, .row_tokens = row_tokens, .positions = positions, .deterministic = true});
    Outcome outcome;
    outcome.add("out", out);
    outcome.add("dx", gradients({out}, {x}, {dy})[0]);
    outcome.add("q gradient", q.gradient);
    outcome.add("k gradient", k.gradient);
    return outcome;
  });
}

}  // namespace protrain::ops::test
