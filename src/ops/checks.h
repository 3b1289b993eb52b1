// Each operator against a composition of plain tensor operators in fp64 on the CPU, values and all gradients, on any
// target.
#pragma once
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "ops/test_support.h"

namespace protrain::ops::test {

struct LinearCase {
  std::int64_t tokens, in, out;
  WeightLayout layout = WeightLayout::kOutIn;
  bool bias = false, residual = false, first = true;
  at::ScalarType gradient = at::kFloat;
};

inline void check_linear(Target target, const LinearCase& c) {
  SCOPED_TRACE(fmt::format("linear {} [{}, {}] -> {} in_out {} bias {} residual {} first {}", target.name(), c.tokens,
                           c.in, c.out, c.layout == WeightLayout::kInOut, c.bias, c.residual, c.first));
  Random random(target);
  const bool out_in = c.layout == WeightLayout::kOutIn;
  const at::Tensor x = random.leaf({c.tokens, c.in});
  const at::Tensor residual = c.residual ? random.leaf({c.tokens, c.out}) : at::Tensor();
  const Parameter weight =
      random.parameter(out_in ? at::IntArrayRef{c.out, c.in} : at::IntArrayRef{c.in, c.out}, c.first, c.gradient, 0.2);
  const Parameter bias = random.parameter({c.out}, c.first, c.gradient);
  const Slot weight_slot(weight, "weight gradient"), bias_slot(bias, "bias gradient");
  const at::Tensor dy = random.normal({c.tokens, c.out});

  const at::Tensor rx = wide_leaf(x), rw = wide_leaf(weight.weight), rb = wide_leaf(bias.weight);
  at::Tensor want = at::matmul(rx, out_in ? rw.t() : rw);
  if (c.bias) want = want + rb;
  std::vector<at::Tensor> wanted{rx, rw};
  if (c.bias) wanted.push_back(rb);
  const auto expected = gradients({want}, wanted, {wide(dy)});

  const at::Tensor y = linear(x, weight, c.bias ? &bias : nullptr, residual, c.layout);
  expect_near(y, c.residual ? want + wide(residual) : want, target.tolerance(), "y");
  std::vector<at::Tensor> inputs{x};
  if (c.residual) inputs.push_back(residual);
  const auto actual = gradients({y}, inputs, {dy});
  expect_near(actual[0], expected[0], target.tolerance(), "dx");
  if (c.residual) expect_near(actual[1], dy, 0, "residual gradient");
  weight_slot.expect(expected[1], target.tolerance());
  if (c.bias) bias_slot.expect(expected[2], target.tolerance());
}

struct NormCase {
  std::int64_t tokens, width;
  bool layer = false, residual = true, use_sum = true, first = true;
  at::ScalarType gradient = at::kFloat;
};

inline void check_norm(Target target, const NormCase& c) {
  SCOPED_TRACE(fmt::format("norm {} [{}, {}] layer {} residual {} use_sum {} first {}", target.name(), c.tokens,
                           c.width, c.layer, c.residual, c.use_sum, c.first));
  Random random(target);
  const double epsilon = 1e-5;
  const at::Tensor x = random.leaf({c.tokens, c.width});
  const at::Tensor residual = c.residual ? random.leaf({c.tokens, c.width}) : at::Tensor();
  const Parameter weight = random.parameter({c.width}, c.first, c.gradient);
  const Parameter bias = random.parameter({c.width}, c.first, c.gradient);
  const Slot weight_slot(weight, "weight gradient"), bias_slot(bias, "bias gradient");
  const at::Tensor ds = random.normal({c.tokens, c.width}), dn = random.normal({c.tokens, c.width});

  const AddNorm result =
      c.layer ? add_layer_norm(x, residual, weight, bias, epsilon) : add_rms_norm(x, residual, weight, epsilon);
  // The norm is of the rounded sum, so the reference starts there.
  expect_near(result.sum, c.residual ? wide(x) + wide(residual) : wide(x), target.tolerance(), "sum");
  if (!c.residual) {
    EXPECT_EQ(result.sum.const_data_ptr(), x.const_data_ptr());
  }
  const at::Tensor rs = wide_leaf(result.sum), rw = wide_leaf(weight.weight), rb = wide_leaf(bias.weight);
  const at::Tensor want =
      c.layer ? at::layer_norm(rs, {c.width}, rw, rb, epsilon) : at::rms_norm(rs, {c.width}, rw, epsilon);
  std::vector<at::Tensor> wanted{rs, rw};
  if (c.layer) wanted.push_back(rb);
  const auto expected = gradients({want}, wanted, {wide(dn)});
  expect_near(result.normed, want, target.tolerance(), "normed");

  std::vector<at::Tensor> inputs{x};
  if (c.residual) inputs.push_back(residual);
  const auto actual =
      c.use_sum ? gradients({result.sum, result.normed}, inputs, {ds, dn}) : gradients({result.normed}, inputs, {dn});
  const at::Tensor dx = c.use_sum ? expected[0] + wide(ds) : expected[0];
  for (const at::Tensor& gradient : actual) expect_near(gradient, dx, target.tolerance(), "dx");
  weight_slot.expect(expected[1], target.tolerance());
  if (c.layer) bias_slot.expect(expected[2], target.tolerance());
}

struct AttentionCase {
  std::int64_t rows, row_tokens;
  HeadShape shape;
  std::int64_t window = 0;
  std::vector<std::int32_t> starts = {};  // packed when not empty
  std::int64_t rotary_dim = -1;           // -1: head_dim; 0: none
  double scale = 0;
  bool deterministic = false;
};

// Reference of one sample, [tokens, heads, head_dim] each, fp64, differentiable.
inline at::Tensor attention_reference(at::Tensor q, at::Tensor k, const at::Tensor& v, const at::Tensor& cos,
                                      const at::Tensor& sin, const AttentionCase& c) {
  const std::int64_t tokens = q.size(0), groups = c.shape.heads / c.shape.kv_heads;
  if (cos.defined()) {
    const std::int64_t half = cos.size(1), rest = c.shape.head_dim - 2 * half;
    const at::Tensor cs = cos.narrow(0, 0, tokens).unsqueeze(1), sn = sin.narrow(0, 0, tokens).unsqueeze(1);
    const auto turn = [&](const at::Tensor& x) {
      const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
      return at::cat({a * cs - b * sn, b * cs + a * sn, x.narrow(2, 2 * half, rest)}, 2);
    };
    q = turn(q);
    k = turn(k);
  }
  const auto by_head = [&](const at::Tensor& x, std::int64_t repeat) {
    return x.transpose(0, 1).repeat_interleave(repeat, 0);
  };
  const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.shape.head_dim));
  at::Tensor scores = at::matmul(by_head(q, 1), by_head(k, groups).transpose(1, 2)) * scale;
  const at::Tensor query = at::arange(tokens).unsqueeze(1), key = at::arange(tokens).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (c.window > 0) hidden = hidden.logical_or(key <= query - c.window);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), by_head(v, groups)).transpose(0, 1).flatten(1, 2);
}

inline void check_attention(Target target, const AttentionCase& c) {
  SCOPED_TRACE(fmt::format("attention {} {} x {} heads {}/{} x {} window {} packed {} rotary {} deterministic {}",
                           target.name(), c.rows, c.row_tokens, c.shape.heads, c.shape.kv_heads, c.shape.head_dim,
                           c.window, !c.starts.empty(), c.rotary_dim, c.deterministic));
  Random random(target);
  const std::int64_t tokens = c.rows * c.row_tokens, all = c.shape.heads + 2 * c.shape.kv_heads;
  const std::int64_t width = all * c.shape.head_dim, rotary = c.rotary_dim < 0 ? c.shape.head_dim : c.rotary_dim;
  const at::Tensor leaf = random.leaf({tokens, width});
  const at::Tensor dy = random.normal({tokens, c.shape.heads * c.shape.head_dim});
  Rope rope, wide_rope;
  if (rotary > 0) {
    const at::Tensor angle = random.typed({c.row_tokens, rotary / 2}, at::kFloat, 3);
    rope = {angle.cos(), angle.sin()};
    wide_rope = {wide(rope.cos), wide(rope.sin)};
  }
  std::vector<std::int32_t> starts = c.starts, positions;
  if (starts.empty()) {
    for (std::int64_t row = 0; row <= c.rows; ++row) starts.push_back(static_cast<std::int32_t>(row * c.row_tokens));
  }
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    for (std::int32_t p = 0; p < starts[i + 1] - starts[i]; ++p) positions.push_back(p);
  }

  const at::Tensor reference = wide_leaf(leaf);
  std::vector<at::Tensor> samples;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i + 1] == starts[i]) continue;
    const at::Tensor heads =
        reference.narrow(0, starts[i], starts[i + 1] - starts[i]).unflatten(1, {all, c.shape.head_dim});
    samples.push_back(attention_reference(
        heads.narrow(1, 0, c.shape.heads), heads.narrow(1, c.shape.heads, c.shape.kv_heads),
        heads.narrow(1, c.shape.heads + c.shape.kv_heads, c.shape.kv_heads), wide_rope.cos, wide_rope.sin, c));
  }
  const at::Tensor want = at::cat(samples, 0);
  const auto expected = gradients({want}, {reference}, {wide(dy)});

  // Attention may overwrite its input, so it gets a product of the leaf, as from a projection.
  const at::Tensor qkv = leaf * 1;
  const at::Tensor out = rope_attention(qkv, c.shape, rope,
                                        {.rows = c.rows,
                                         .row_tokens = c.row_tokens,
                                         .packed = !c.starts.empty(),
                                         .positions = int_tensor(positions, target.device),
                                         .sample_starts = int_tensor(starts, target.device),
                                         .host_sample_starts = starts,
                                         .window = c.window,
                                         .deterministic = c.deterministic,
                                         .scale = c.scale});
  expect_near(out, want, target.tolerance(), "out");
  const auto actual = gradients({out}, {leaf}, {dy});
  const auto part = [&](const at::Tensor& x, std::int64_t first, std::int64_t count) {
    return x.unflatten(1, {all, c.shape.head_dim}).narrow(1, first, count);
  };
  // A token that attends to itself alone: the gradients of its q and k vanish up to rounding.
  const bool all_alone = static_cast<std::int64_t>(samples.size()) == tokens || c.window == 1;
  const std::int64_t h = c.shape.heads, kv = c.shape.kv_heads;
  if (!all_alone) {
    expect_near(part(actual[0], 0, h), part(expected[0], 0, h), 1.5 * target.tolerance(), "dq");
    expect_near(part(actual[0], h, kv), part(expected[0], h, kv), 1.5 * target.tolerance(), "dk");
  }
  expect_near(part(actual[0], h + kv, kv), part(expected[0], h + kv, kv), 1.5 * target.tolerance(), "dv");
}

inline void check_qk_norm(Target target, std::int64_t tokens, const HeadShape& shape, bool first) {
  SCOPED_TRACE(fmt::format("qk_norm {} {} tokens, {}/{} heads of {} first {}", target.name(), tokens, shape.heads,
                           shape.kv_heads, shape.head_dim, first));
  Random random(target);
  const std::int64_t all = shape.heads + 2 * shape.kv_heads;
  const at::Tensor x = random.leaf({tokens, all * shape.head_dim});
  const at::Tensor dy = random.normal({tokens, all * shape.head_dim});
  const Parameter q = random.parameter({shape.head_dim}, first, at::kFloat);
  const Parameter k = random.parameter({shape.head_dim}, first, at::kFloat);
  const Slot q_slot(q, "q gradient"), k_slot(k, "k gradient");
  const at::Tensor rx = wide_leaf(x), rq = wide_leaf(q.weight), rk = wide_leaf(k.weight);
  const at::Tensor heads = rx.unflatten(1, {all, shape.head_dim});
  const at::Tensor want =
      at::cat({at::rms_norm(heads.narrow(1, 0, shape.heads), {shape.head_dim}, rq, 1e-6),
               at::rms_norm(heads.narrow(1, shape.heads, shape.kv_heads), {shape.head_dim}, rk, 1e-6),
               heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads)},
              1)
          .flatten(1, 2);
  const auto expected = gradients({want}, {rx, rq, rk}, {wide(dy)});
  const at::Tensor y = qk_norm(x, q, k, shape, 1e-6);
  expect_near(y, want, target.tolerance(), "y");
  expect_near(gradients({y}, {x}, {dy})[0], expected[0], target.tolerance(), "dx");
  q_slot.expect(expected[1], target.tolerance());
  k_slot.expect(expected[2], target.tolerance());
}

inline at::Tensor activation_reference(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kSilu: return at::silu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kGelu: return at::gelu(x);
    case Activation::kRelu: return at::relu(x);
  }
  return {};
}

inline void check_activations(Target target, std::int64_t tokens, std::int64_t width) {
  for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    SCOPED_TRACE(fmt::format("activation {} {} [{}, {}]", static_cast<int>(kind), target.name(), tokens, width));
    Random random(target);
    const at::Tensor gate_up = random.leaf({tokens, 2 * width}, 2), x = random.leaf({tokens, width}, 2);
    const at::Tensor dy = random.normal({tokens, width});
    const at::Tensor rg = wide_leaf(gate_up), rx = wide_leaf(x);
    const at::Tensor want_gated = activation_reference(rg.narrow(1, 0, width), kind) * rg.narrow(1, width, width);
    const at::Tensor want = activation_reference(rx, kind);
    const at::Tensor gated = gated_activation(gate_up, kind), plain = activation(x, kind);
    expect_near(gated, want_gated, target.tolerance(), "gated");
    expect_near(plain, want, target.tolerance(), "plain");
    expect_near(gradients({gated}, {gate_up}, {dy})[0], gradients({want_gated}, {rg}, {wide(dy)})[0],
                target.tolerance(), "gated gradient");
    expect_near(gradients({plain}, {x}, {dy})[0], gradients({want}, {rx}, {wide(dy)})[0], target.tolerance(),
                "plain gradient");
  }
}

// Ids are drawn from few, so that some run over several tiles of the sorted order and most rows stay empty.
inline void check_embedding(Target target, std::int64_t tokens, std::int64_t rows, std::int64_t width, bool first,
                            at::ScalarType gradient) {
  SCOPED_TRACE(fmt::format("embedding {} {} tokens of {} x {} first {}", target.name(), tokens, rows, width, first));
  Random random(target);
  const Parameter table = random.parameter({rows, width}, first, gradient);
  const Slot slot(table, "table gradient");
  std::vector<std::int32_t> ids;
  const at::Tensor draws = wide(random.typed({tokens}, at::kFloat));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double draw = draws.const_data_ptr<double>()[t];
    ids.push_back(draw < 0 ? static_cast<std::int32_t>(rows / 2)
                           : static_cast<std::int32_t>(std::fmod(draw * 1000, static_cast<double>(rows))));
  }
  const at::Tensor anchor = at::zeros({1}, at::TensorOptions().device(target.device)).requires_grad_();
  const at::Tensor dy = random.normal({tokens, width});
  const at::Tensor reference = wide_leaf(table.weight);
  const at::Tensor want = at::embedding(reference, int_tensor(ids, at::kCPU).to(at::kLong));
  const at::Tensor y = embedding(int_tensor(ids, target.device), table, anchor);
  expect_near(y, want, 0, "y");
  expect_near(gradients({y}, {anchor}, {dy})[0], at::zeros({1}), 0, "anchor");
  slot.expect(gradients({want}, {reference}, {wide(dy)})[0], gradient == at::kFloat ? 1e-5 : target.tolerance());
}

inline void check_cross_entropy(Target target, std::int64_t tokens, std::int64_t vocabulary, std::int64_t width,
                                bool first, double ignored) {
  SCOPED_TRACE(fmt::format("cross_entropy {} {} tokens, {} x {} first {} ignored {}", target.name(), tokens, vocabulary,
                           width, first, ignored));
  Random random(target);
  const at::Tensor x = random.normal({tokens, width});
  const Parameter weight = random.parameter({vocabulary, width}, first, at::kFloat, 0.3);
  const Slot slot(weight, "weight gradient");
  std::vector<std::int32_t> labels;
  const at::Tensor draws = wide(random.typed({tokens}, at::kFloat));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double draw = std::abs(draws.const_data_ptr<double>()[t]);
    labels.push_back(
        draw < ignored ? -100 : static_cast<std::int32_t>(std::fmod(draw * 1e5, static_cast<double>(vocabulary))));
  }
  const double scale = 0.37;
  const at::Tensor rx = wide_leaf(x), rw = wide_leaf(weight.weight);
  const at::Tensor want = at::cross_entropy_loss(at::matmul(rx, rw.t()), int_tensor(labels, at::kCPU).to(at::kLong), {},
                                                 at::Reduction::Sum);
  const auto expected = gradients({want * scale}, {rx, rw}, {at::scalar_tensor(1, rx.options())});
  const at::Tensor ids = int_tensor(labels, target.device);
  const Loss forward = cross_entropy(x, weight, ids, {});
  EXPECT_FALSE(forward.input_gradient.defined());
  const Loss loss = cross_entropy(x, weight, ids, {.loss_scale = scale, .gradients = true});
  EXPECT_EQ(loss.sum.scalar_type(), at::kDouble);
  EXPECT_EQ(forward.sum.item<double>(), loss.sum.item<double>());
  EXPECT_NEAR(loss.sum.item<double>(), want.item<double>(), target.tolerance() * want.item<double>());
  expect_near(loss.input_gradient, expected[0], target.tolerance(), "dx");
  slot.expect(expected[1], target.tolerance());
}

}  // namespace protrain::ops::test
