#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/square.h>
#include <ATen/ops/var_mean.h>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/parameter_gradient.h"
#include "ops/recipe.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

struct NormNode final : torch::autograd::Node {
  std::string name() const override { return layer ? "protrain::add_layer_norm" : "protrain::add_rms_norm"; }
  variable_list apply(variable_list&& gradients) override;
  void release_variables() override {
    sum.reset();
    mean.reset();
    rstd.reset();
  }

  at::Tensor cpu(const at::Tensor& normed_gradient, const at::Tensor& sum_gradient) const;
  at::Tensor cuda(const at::Tensor& normed_gradient, const at::Tensor& sum_gradient) const;

  bool layer = false;
  bool owns_sum = false;       // it is no input: its gradient takes its memory
  at::Tensor sum, mean, rstd;  // [T, h]; fp32 [T, 1]
  Parameter weight, bias;
};

variable_list NormNode::apply(variable_list&& gradients) {
  const BelowAutograd guard;
  const at::Tensor& sum_gradient = gradients[0];
  if (!gradients[1].defined()) return {sum_gradient, sum_gradient};
  const at::Tensor normed_gradient = gradients[1].contiguous();
  const at::Tensor through = sum_gradient.defined() ? sum_gradient.contiguous() : sum_gradient;
  const at::Tensor dx = sum.is_cuda() ? cuda(normed_gradient, through) : cpu(normed_gradient, through);
  return {dx, dx};
}

// Layer norm: x^ = (s - mean) rstd, g = w dn, ds = rstd (g - mean(g) - x^ mean(g x^)); RMS norm without the means of s,
// g.
at::Tensor NormNode::cpu(const at::Tensor& normed_gradient, const at::Tensor& sum_gradient) const {
  const at::Tensor dn = normed_gradient.to(at::kFloat);
  at::Tensor hat = layer ? sum.to(at::kFloat).sub(mean) : sum.to(at::kFloat);
  hat = hat.mul(rstd);
  at::Tensor g = dn.mul(weight.weight.to(at::kFloat));
  const at::Tensor along = at::mean(g.mul(hat), at::IntArrayRef{1}, true);
  if (layer) g.sub_(at::mean(g, at::IntArrayRef{1}, true));
  g.sub_(hat.mul(along)).mul_(rstd);
  if (sum_gradient.defined()) g.add_(sum_gradient);
  if (weight.gradient.defined()) add_partials(weight, hat.mul_(dn));
  add_partials(bias, dn);
  if (!owns_sum) return g.to(sum.scalar_type());
  return sum.copy_(g);
}

at::Tensor NormNode::cuda(const at::Tensor& normed_gradient, const at::Tensor& sum_gradient) const {
  const std::int64_t rows = sum.size(0), columns = sum.size(1);
  const cuda::Element element = element_of(sum);
  const at::Tensor dx = owns_sum ? sum : at::empty_like(sum);
  const at::Tensor partials = at::empty({layer ? 2 : 1, cuda::norm_partial_rows(element, rows, columns), columns},
                                        sum.options().dtype(at::kFloat));
  cuda::norm_backward({.element = element,
                       .layer = layer,
                       .normed_gradient = normed_gradient.const_data_ptr(),
                       .sum = sum.const_data_ptr(),
                       .weight = weight.weight.const_data_ptr(),
                       .sum_gradient = data_or_null(sum_gradient),
                       .mean = layer ? mean.const_data_ptr<float>() : nullptr,
                       .rstd = rstd.const_data_ptr<float>(),
                       .input_gradient = dx.mutable_data_ptr(),
                       .weight_partials = partials[0].mutable_data_ptr<float>(),
                       .bias_partials = layer ? partials[1].mutable_data_ptr<float>() : nullptr,
                       .rows = rows,
                       .columns = columns},
                      launch_stream());
  add_partials(weight, partials[0]);
  if (layer) add_partials(bias, partials[1]);
  return dx;
}

// What backward needs to make the normed tensor again; `bias` null for RMS norm.
struct Statistics {
  at::Tensor mean, rstd;
};

// The last steps of the norm, in forward and when it is made again.
at::Tensor normed_cpu(const at::Tensor& sum, const Statistics& of, const Parameter& weight, const Parameter& bias) {
  at::Tensor wide = sum.to(at::kFloat);
  if (of.mean.defined()) wide = wide.sub(of.mean);
  const at::Tensor normed = wide.mul(of.rstd).mul_(weight.weight.to(at::kFloat));
  if (of.mean.defined()) normed.add_(bias.weight.to(at::kFloat));
  return normed.to(sum.scalar_type());
}

Statistics statistics_cpu(const at::Tensor& sum, bool layer, double epsilon) {
  const at::Tensor wide = sum.to(at::kFloat);
  Statistics result;
  if (layer) {
    std::tie(result.rstd, result.mean) = at::var_mean(wide, at::OptionalIntArrayRef(1), at::Scalar(0), true);
  } else {
    result.rstd = at::mean(at::square(wide), at::IntArrayRef{1}, true);
  }
  result.rstd.add_(epsilon).rsqrt_();
  return result;
}

// Undefined: sum (x has no residual), statistics (they are known).
at::Tensor normed_cuda(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& sum, const Statistics& to,
                       const Parameter& weight, const Parameter& bias, double epsilon) {
  at::Tensor normed = at::empty_like(x);
  cuda::add_norm({.element = element_of(x),
                  .layer = bias.weight.defined(),
                  .x = x.const_data_ptr(),
                  .residual = data_or_null(residual),
                  .weight = weight.weight.const_data_ptr(),
                  .bias = data_or_null(bias.weight),
                  .sum = sum.defined() ? sum.mutable_data_ptr() : nullptr,
                  .normed = normed.mutable_data_ptr(),
                  .mean = to.mean.defined() ? to.mean.mutable_data_ptr<float>() : nullptr,
                  .rstd = to.rstd.defined() ? to.rstd.mutable_data_ptr<float>() : nullptr,
                  .rows = x.size(0),
                  .columns = x.size(1),
                  .epsilon = static_cast<float>(epsilon)},
                 launch_stream());
  return normed;
}

// The kernel takes the statistics again, from the sum that it normed: the same bits.
std::shared_ptr<Recipe> recipe_of(const at::Tensor& sum, const Statistics& of, const Parameter& weight,
                                  const Parameter& bias, double epsilon) {
  return std::make_shared<Recipe>([=] {
    return sum.is_cuda() ? normed_cuda(sum, {}, {}, {}, weight, bias, epsilon) : normed_cpu(sum, of, weight, bias);
  });
}

AddNorm add_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter& bias,
                 double epsilon, bool light) {
  PROTRAIN_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(1) == weight.weight.numel(),
                 "x of width {} under a norm of {}", x.size(-1), weight.weight.numel());
  PROTRAIN_CHECK(!residual.defined() || (residual.is_contiguous() && residual.sizes() == x.sizes()),
                 "a residual has the shape of x");
  const bool layer = bias.weight.defined();
  AddNorm result;
  Statistics statistics;
  {
    const BelowAutograd guard;
    if (x.is_cuda()) {
      const auto options = x.options().dtype(at::kFloat);
      result.sum = residual.defined() ? at::empty_like(x) : x.detach();
      if (layer) statistics.mean = at::empty({x.size(0), 1}, options);
      statistics.rstd = at::empty({x.size(0), 1}, options);
      result.normed =
          normed_cuda(x, residual, residual.defined() ? result.sum : at::Tensor(), statistics, weight, bias, epsilon);
    } else {
      result.sum = residual.defined() ? x.add(residual) : x.detach();
      statistics = statistics_cpu(result.sum, layer, epsilon);
      result.normed = normed_cpu(result.sum, statistics, weight, bias);
    }
  }
  if (records(x, residual)) {
    auto node = make_node<NormNode>(x, residual);
    node->layer = layer;
    node->owns_sum = residual.defined();
    node->sum = detached(result.sum);
    node->mean = statistics.mean;
    node->rstd = statistics.rstd;
    node->weight = weight;
    node->bias = bias;
    if (light) result.normed.recipe = recipe_of(node->sum, statistics, weight, bias, epsilon);
    hang(result.sum, node);
    hang(result.normed, node);
  }
  return result;
}

}  // namespace

AddNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, double epsilon,
                     bool light) {
  return add_norm(x, residual, weight, {}, epsilon, light);
}

AddNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter& bias,
                       double epsilon, bool light) {
  return add_norm(x, residual, weight, bias, epsilon, light);
}

}  // namespace protrain::ops
