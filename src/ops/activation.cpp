#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "ops/kernels.h"
#include "ops/node.h"
#include "ops/ops.h"
#include "ops/recipe.h"
#include "ops/tensors.h"

namespace protrain::ops {
namespace {

at::Tensor act(const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kSilu: return at::silu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kGelu: return at::gelu(x);
    case Activation::kRelu: return at::relu(x);
  }
  PROTRAIN_CHECK(false, "activation {}", static_cast<int>(kind));
  return {};
}

at::Tensor act_backward(const at::Tensor& dy, const at::Tensor& x, Activation kind) {
  switch (kind) {
    case Activation::kSilu: return at::silu_backward(dy, x);
    case Activation::kGeluTanh: return at::gelu_backward(dy, x, "tanh");
    case Activation::kGelu: return at::gelu_backward(dy, x);
    case Activation::kRelu: return at::threshold_backward(dy, x, 0);
  }
  PROTRAIN_CHECK(false, "activation {}", static_cast<int>(kind));
  return {};
}

at::Tensor gated_value(const at::Tensor& gate_up, Activation kind) {
  const std::int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  if (!gate_up.is_cuda()) return act(gate_up.narrow(1, 0, width), kind).mul(gate_up.narrow(1, width, width));
  at::Tensor y = at::empty({rows, width}, gate_up.options());
  cuda::gated_activation(element_of(y), kind, gate_up.const_data_ptr(), y.mutable_data_ptr(), rows, width,
                         launch_stream());
  return y;
}

at::Tensor plain_value(const at::Tensor& x, Activation kind) {
  if (!x.is_cuda()) return act(x, kind);
  at::Tensor y = at::empty_like(x);
  cuda::activation(element_of(x), kind, x.const_data_ptr(), y.mutable_data_ptr(), x.numel(), launch_stream());
  return y;
}

struct GatedBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::gated_activation"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    const at::Tensor dy = gradients[0].contiguous();
    const std::int64_t width = dy.size(1);
    if (dy.is_cuda()) {
      cuda::gated_activation_backward(element_of(dy), kind, gate_up.const_data_ptr(), dy.const_data_ptr(),
                                      gate_up.mutable_data_ptr(), dy.size(0), width, launch_stream());
    } else {
      const at::Tensor gate = gate_up.narrow(1, 0, width), up = gate_up.narrow(1, width, width);
      const at::Tensor up_gradient = dy.mul(act(gate, kind));
      gate.copy_(act_backward(dy.mul(up), gate, kind));
      up.copy_(up_gradient);
    }
    return {std::exchange(gate_up, {})};
  }

  void release_variables() override { gate_up.reset(); }

  at::Tensor gate_up;
  Activation kind = Activation::kSilu;
};

struct ActivationBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::activation"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    const at::Tensor dy = gradients[0].contiguous();
    if (dy.is_cuda()) {
      cuda::activation_backward(element_of(dy), kind, saved.const_data_ptr(), dy.const_data_ptr(),
                                saved.mutable_data_ptr(), dy.numel(), launch_stream());
    } else {
      saved.copy_(act_backward(dy, saved, kind));
    }
    return {std::exchange(saved, {})};
  }

  void release_variables() override { saved.reset(); }

  at::Tensor saved;  // x; ReLU: y, which is positive where x is
  Activation kind = Activation::kSilu;
};

}  // namespace

Source gated_activation(const at::Tensor& gate_up, Activation kind, bool light) {
  PROTRAIN_CHECK(gate_up.dim() == 2 && gate_up.is_contiguous() && gate_up.size(1) % 2 == 0,
                 "gate and up side by side: {} columns", gate_up.size(-1));
  Source y;
  {
    const BelowAutograd guard;
    y = gated_value(gate_up, kind);
  }
  if (records(gate_up)) {
    auto node = make_node<GatedBackward>(gate_up);
    node->gate_up = detached(gate_up);
    node->kind = kind;
    if (light) y.recipe = std::make_shared<Recipe>([x = node->gate_up, kind] { return gated_value(x, kind); });
    hang(y, node);
  }
  return y;
}

Source activation(const at::Tensor& x, Activation kind, bool light) {
  PROTRAIN_CHECK(x.is_contiguous(), "a contiguous input");
  Source y;
  {
    const BelowAutograd guard;
    y = plain_value(x, kind);
  }
  if (records(x)) {
    const bool relu = kind == Activation::kRelu;
    auto node = make_node<ActivationBackward>(x);
    node->saved = detached(relu ? y : x);
    node->kind = kind;
    if (light && !relu) y.recipe = std::make_shared<Recipe>([x = node->saved, kind] { return plain_value(x, kind); });
    hang(y, node);
  }
  return y;
}

}  // namespace protrain::ops
