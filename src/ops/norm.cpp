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
  return g.to(sum.scalar_type());
}

at::Tensor NormNode::cuda(const at::Tensor& normed_gradient, const at::Tensor& sum_gradient) const {
  const std::int64_t rows = sum.size(0), columns = sum.size(1);
  const cuda::Element element = element_of(sum);
  at::Tensor dx = at::empty_like(sum);
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

struct Normed {
  at::Tensor sum, normed, mean, rstd;
};

Normed forward_cpu(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter* bias,
                   double epsilon) {
  Normed result;
  result.sum = residual.defined() ? x.add(residual) : x.detach();
  at::Tensor wide = result.sum.to(at::kFloat);
  if (bias != nullptr) {
    std::tie(result.rstd, result.mean) = at::var_mean(wide, at::OptionalIntArrayRef(1), at::Scalar(0), true);
    wide = wide.sub(result.mean);
  } else {
    result.rstd = at::mean(at::square(wide), at::IntArrayRef{1}, true);
  }
  result.rstd.add_(epsilon).rsqrt_();
  at::Tensor normed = wide.mul(result.rstd).mul_(weight.weight.to(at::kFloat));
  if (bias != nullptr) normed.add_(bias->weight.to(at::kFloat));
  result.normed = normed.to(x.scalar_type());
  return result;
}

Normed forward_cuda(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter* bias,
                    double epsilon) {
  const std::int64_t rows = x.size(0);
  const auto statistic = x.options().dtype(at::kFloat);
  Normed result{.sum = residual.defined() ? at::empty_like(x) : x.detach(),
                .normed = at::empty_like(x),
                .mean = bias != nullptr ? at::empty({rows, 1}, statistic) : at::Tensor(),
                .rstd = at::empty({rows, 1}, statistic)};
  cuda::add_norm({.element = element_of(x),
                  .layer = bias != nullptr,
                  .x = x.const_data_ptr(),
                  .residual = data_or_null(residual),
                  .weight = weight.weight.const_data_ptr(),
                  .bias = bias != nullptr ? bias->weight.const_data_ptr() : nullptr,
                  .sum = residual.defined() ? result.sum.mutable_data_ptr() : nullptr,
                  .normed = result.normed.mutable_data_ptr(),
                  .mean = bias != nullptr ? result.mean.mutable_data_ptr<float>() : nullptr,
                  .rstd = result.rstd.mutable_data_ptr<float>(),
                  .rows = rows,
                  .columns = x.size(1),
                  .epsilon = static_cast<float>(epsilon)},
                 launch_stream());
  return result;
}

AddNorm add_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter* bias,
                 double epsilon) {
  PROTRAIN_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(1) == weight.weight.numel(),
                 "x of width {} under a norm of {}", x.size(-1), weight.weight.numel());
  PROTRAIN_CHECK(!residual.defined() || (residual.is_contiguous() && residual.sizes() == x.sizes()),
                 "a residual has the shape of x");
  Normed result;
  {
    const BelowAutograd guard;
    result = x.is_cuda() ? forward_cuda(x, residual, weight, bias, epsilon)
                         : forward_cpu(x, residual, weight, bias, epsilon);
  }
  if (records(x, residual)) {
    auto node = make_node<NormNode>(x, residual);
    node->layer = bias != nullptr;
    node->sum = detached(result.sum);
    node->mean = result.mean;
    node->rstd = result.rstd;
    node->weight = weight;
    if (bias != nullptr) node->bias = *bias;
    hang(result.sum, node);
    hang(result.normed, node);
  }
  return {result.sum, result.normed};
}

}  // namespace

AddNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, double epsilon) {
  return add_norm(x, residual, weight, nullptr, epsilon);
}

AddNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter& bias,
                       double epsilon) {
  return add_norm(x, residual, weight, &bias, epsilon);
}

}  // namespace protrain::ops
