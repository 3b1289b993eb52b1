#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>

#include "ops/attention.h"
#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/recipe.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

cuda::HeadsOf heads_of(const at::Tensor& qkv, const HeadShape& shape) {
  return {qkv.size(0), static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.head_dim)};
}

cuda::RopeTables tables(const Rope& rope, const at::Tensor& positions) {
  if (!rope.cos.defined()) return {};
  return {rope.cos.const_data_ptr<float>(), rope.sin.const_data_ptr<float>(), positions.const_data_ptr<std::int32_t>(),
          static_cast<int>(2 * rope.cos.size(1))};
}

// Pairs (i, i + r/2) of each head turn by the angle of (position, i), backwards when `inverse`. heads [T, n, head_dim].
void rotate_cpu(const at::Tensor& heads, const Rope& rope, const at::Tensor& positions, bool inverse) {
  const std::int64_t half = rope.cos.size(1);
  const at::Tensor cos = at::index_select(rope.cos, 0, positions).unsqueeze(1);
  at::Tensor sin = at::index_select(rope.sin, 0, positions).unsqueeze(1);
  if (inverse) sin = sin.neg();
  at::Tensor low = heads.narrow(2, 0, half), high = heads.narrow(2, half, half);
  const at::Tensor a = low.to(at::kFloat), b = high.to(at::kFloat);
  const at::Tensor turned_a = a.mul(cos).sub_(b.mul(sin)), turned_b = b.mul(cos).add_(a.mul(sin));
  low.copy_(turned_a);
  high.copy_(turned_b);
}

void rotate(const at::Tensor& qkv, const HeadShape& shape, const Rope& rope, const at::Tensor& positions) {
  if (!rope.cos.defined()) return;
  if (qkv.is_cuda()) {
    cuda::rotate(element_of(qkv), heads_of(qkv, shape), tables(rope, positions), qkv.mutable_data_ptr(),
                 launch_stream());
    return;
  }
  const at::Tensor heads = qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
  rotate_cpu(heads.narrow(1, 0, shape.heads + shape.kv_heads), rope, positions, false);
}

// dqkv is overwritten.
void rotate_back(const HeadGradients& gradients, const at::Tensor& dqkv, const HeadShape& shape, const Rope& rope,
                 const at::Tensor& positions) {
  if (dqkv.is_cuda()) {
    cuda::rotate_back(element_of(dqkv), heads_of(dqkv, shape), tables(rope, positions), gradients.q.const_data_ptr(),
                      gradients.k.const_data_ptr(), gradients.v.const_data_ptr(), dqkv.mutable_data_ptr(),
                      launch_stream());
    return;
  }
  const at::Tensor heads = dqkv.view({dqkv.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
  heads.narrow(1, 0, shape.heads).copy_(gradients.q);
  heads.narrow(1, shape.heads, shape.kv_heads).copy_(gradients.k);
  heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads).copy_(gradients.v);
  if (rope.cos.defined()) rotate_cpu(heads.narrow(1, 0, shape.heads + shape.kv_heads), rope, positions, true);
}

struct RopeAttentionBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::rope_attention"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    const bool made_again = qkv.by_recipe();
    at::Tensor memory = qkv.take();
    if (made_again) rotate(memory, plan.shape, rope, positions);
    const HeadGradients heads = attend_backward(gradients[0].contiguous(), memory, attended, plan);
    attended = {};
    gradients.clear();
    rotate_back(heads, memory, plan.shape, rope, positions);
    return {memory};
  }

  void release_variables() override {
    qkv.reset();
    attended = {};
  }

  Kept qkv;  // rotated; by recipe: to be rotated
  Attended attended;
  AttentionPlan plan;
  Rope rope;
  at::Tensor positions;
};

AttentionPlan plan_of(const at::Tensor& qkv, const HeadShape& shape, const AttentionBatch& batch) {
  const std::int64_t tokens = batch.rows * batch.row_tokens;
  PROTRAIN_CHECK(qkv.dim() == 2 && qkv.is_contiguous() && qkv.size(0) == tokens &&
                     qkv.size(1) == (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                 "qkv [{}, {}] for {} rows of {} tokens", qkv.size(0), qkv.size(1), batch.rows, batch.row_tokens);
  PROTRAIN_CHECK(shape.heads % shape.kv_heads == 0, "{} heads over {} kv heads", shape.heads, shape.kv_heads);
  AttentionPlan plan{.backend = choose_backend(qkv, shape, batch),
                     .shape = shape,
                     .rows = batch.rows,
                     .row_tokens = batch.row_tokens,
                     .window = batch.window < batch.row_tokens ? batch.window : 0,
                     .scale = batch.scale != 0 ? batch.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim)),
                     .packed = batch.packed,
                     .sample_starts = batch.sample_starts,
                     .host_starts = {}};
  if (batch.packed) {
    for (const std::int32_t start : batch.host_sample_starts) {
      if (plan.host_starts.empty() || start > plan.host_starts.back()) plan.host_starts.push_back(start);
    }
    PROTRAIN_CHECK(plan.host_starts.size() >= 2 && plan.host_starts.front() == 0 && plan.host_starts.back() == tokens,
                   "samples cover the {} tokens", tokens);
  }
  return plan;
}

}  // namespace

at::Tensor rope_attention(const Source& qkv, const HeadShape& shape, const Rope& rope, const AttentionBatch& batch) {
  const AttentionPlan plan = plan_of(qkv, shape, batch);
  Attended attended;
  {
    const BelowAutograd guard;
    rotate(qkv, shape, rope, batch.positions);
    attended = attend(qkv, plan);
  }
  at::Tensor out = attended.out;
  if (records(qkv)) {
    auto node = make_node<RopeAttentionBackward>(static_cast<const at::Tensor&>(qkv));
    node->qkv.keep(qkv);
    node->attended = attended;
    node->attended.out = detached(out);
    node->plan = plan;
    node->rope = rope;
    node->positions = batch.positions;
    hang(out, node);
  }
  return out;
}

}  // namespace protrain::ops
