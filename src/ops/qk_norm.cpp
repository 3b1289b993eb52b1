#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/square.h>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/parameter_gradient.h"
#include "ops/recipe.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

cuda::HeadsOf heads_of(const at::Tensor& qkv, const HeadShape& shape) {
  return {qkv.size(0), static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.head_dim)};
}

// [T, heads + 2 kv_heads, head_dim], a view.
at::Tensor by_head(const at::Tensor& qkv, const HeadShape& shape) {
  return qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
}

struct QkNormBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::qk_norm"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    const at::Tensor gradient = gradients[0].contiguous();
    return {gradient.is_cuda() ? on_cuda(gradient) : on_cpu(gradient)};
  }

  void release_variables() override {
    qkv.reset();
    rstd.reset();
  }

  at::Tensor on_cpu(const at::Tensor& gradient) const {
    at::Tensor dqkv = gradient.clone();
    const auto part = [&](std::int64_t first, std::int64_t count, const Parameter& weight) {
      const at::Tensor dn = by_head(gradient, shape).narrow(1, first, count).to(at::kFloat);
      const at::Tensor scale = rstd.narrow(1, first, count);
      const at::Tensor hat = by_head(qkv, shape).narrow(1, first, count).to(at::kFloat).mul(scale);
      const at::Tensor g = dn.mul(weight.weight.to(at::kFloat));
      const at::Tensor along = at::mean(g.mul(hat), at::IntArrayRef{2}, true);
      by_head(dqkv, shape).narrow(1, first, count).copy_(g.sub(hat.mul(along)).mul_(scale));
      add_partials(weight, dn.mul(hat).flatten(0, 1));
    };
    part(0, shape.heads, q);
    part(shape.heads, shape.kv_heads, k);
    return dqkv;
  }

  at::Tensor on_cuda(const at::Tensor& gradient) const {
    at::Tensor dqkv = at::empty_like(qkv);
    const cuda::HeadsOf heads = heads_of(qkv, shape);
    const at::Tensor partials =
        at::empty({2, cuda::qk_norm_partial_rows(heads), shape.head_dim}, qkv.options().dtype(at::kFloat));
    cuda::qk_norm_backward(element_of(qkv), heads, gradient.const_data_ptr(), qkv.const_data_ptr(),
                           q.weight.const_data_ptr(), k.weight.const_data_ptr(), rstd.const_data_ptr<float>(),
                           dqkv.mutable_data_ptr(), partials[0].mutable_data_ptr<float>(),
                           partials[1].mutable_data_ptr<float>(), launch_stream());
    add_partials(q, partials[0]);
    add_partials(k, partials[1]);
    return dqkv;
  }

  at::Tensor qkv, rstd;  // rstd fp32 [T, heads + kv_heads, 1]
  Parameter q, k;
  HeadShape shape;
};

struct Normed {
  at::Tensor out, rstd;
};

Normed forward_cpu(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape& shape,
                   double epsilon) {
  Normed result{.out = qkv.clone(), .rstd = {}};
  const at::Tensor wide = by_head(qkv, shape).narrow(1, 0, shape.heads + shape.kv_heads).to(at::kFloat);
  result.rstd = at::mean(at::square(wide), at::IntArrayRef{2}, true).add_(epsilon).rsqrt_();
  const at::Tensor hat = wide.mul(result.rstd);
  const auto part = [&](std::int64_t first, std::int64_t count, const Parameter& weight) {
    by_head(result.out, shape)
        .narrow(1, first, count)
        .copy_(hat.narrow(1, first, count).mul(weight.weight.to(at::kFloat)));
  };
  part(0, shape.heads, q);
  part(shape.heads, shape.kv_heads, k);
  return result;
}

Normed forward_cuda(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape& shape,
                    double epsilon) {
  Normed result{.out = at::empty_like(qkv),
                .rstd = at::empty({qkv.size(0), shape.heads + shape.kv_heads, 1}, qkv.options().dtype(at::kFloat))};
  cuda::qk_norm(element_of(qkv), heads_of(qkv, shape), qkv.const_data_ptr(), q.weight.const_data_ptr(),
                k.weight.const_data_ptr(), static_cast<float>(epsilon), result.out.mutable_data_ptr(),
                result.rstd.mutable_data_ptr<float>(), launch_stream());
  return result;
}

Normed forward(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape& shape, double epsilon) {
  return qkv.is_cuda() ? forward_cuda(qkv, q, k, shape, epsilon) : forward_cpu(qkv, q, k, shape, epsilon);
}

}  // namespace

Source qk_norm(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape& shape, double epsilon,
               bool light) {
  PROTRAIN_CHECK(qkv.is_contiguous() && q.weight.numel() == shape.head_dim && k.weight.numel() == shape.head_dim,
                 "head norms of {} and {} for head_dim {}", q.weight.numel(), k.weight.numel(), shape.head_dim);
  Normed result;
  {
    const BelowAutograd guard;
    result = forward(qkv, q, k, shape, epsilon);
  }
  Source out = result.out;
  if (records(qkv)) {
    auto node = make_node<QkNormBackward>(qkv);
    node->qkv = detached(qkv);
    node->rstd = result.rstd;
    node->q = q;
    node->k = k;
    node->shape = shape;
    if (light) {
      out.recipe = std::make_shared<Recipe>(
          [x = node->qkv, q, k, shape, epsilon] { return forward(x, q, k, shape, epsilon).out; });
    }
    hang(out, node);
  }
  return out;
}

}  // namespace protrain::ops
