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

struct GatedBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::gated_activation"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {{}};
    const BelowAutograd guard;
    const at::Tensor dy = gradients[0].contiguous();
    const std::int64_t width = dy.size(1);
    at::Tensor result = at::empty_like(gate_up);
    if (dy.is_cuda()) {
      cuda::gated_activation_backward(element_of(dy), kind, gate_up.const_data_ptr(), dy.const_data_ptr(),
                                      result.mutable_data_ptr(), dy.size(0), width, launch_stream());
    } else {
      const at::Tensor gate = gate_up.narrow(1, 0, width), up = gate_up.narrow(1, width, width);
      result.narrow(1, 0, width).copy_(act_backward(dy.mul(up), gate, kind));
      result.narrow(1, width, width).copy_(dy.mul(act(gate, kind)));
    }
    return {result};
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
    if (!dy.is_cuda()) return {act_backward(dy, x, kind)};
    at::Tensor dx = at::empty_like(x);
    cuda::activation_backward(element_of(dy), kind, x.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(),
                              dy.numel(), launch_stream());
    return {dx};
  }

  void release_variables() override { x.reset(); }

  at::Tensor x;
  Activation kind = Activation::kSilu;
};

}  // namespace

at::Tensor gated_activation(const at::Tensor& gate_up, Activation kind) {
  PROTRAIN_CHECK(gate_up.dim() == 2 && gate_up.is_contiguous() && gate_up.size(1) % 2 == 0,
                 "gate and up side by side: {} columns", gate_up.size(-1));
  const std::int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  at::Tensor y;
  {
    const BelowAutograd guard;
    if (gate_up.is_cuda()) {
      y = at::empty({rows, width}, gate_up.options());
      cuda::gated_activation(element_of(y), kind, gate_up.const_data_ptr(), y.mutable_data_ptr(), rows, width,
                             launch_stream());
    } else {
      y = act(gate_up.narrow(1, 0, width), kind).mul(gate_up.narrow(1, width, width));
    }
  }
  if (records(gate_up)) {
    auto node = make_node<GatedBackward>(gate_up);
    node->gate_up = detached(gate_up);
    node->kind = kind;
    hang(y, node);
  }
  return y;
}

at::Tensor activation(const at::Tensor& x, Activation kind) {
  PROTRAIN_CHECK(x.is_contiguous(), "a contiguous input");
  at::Tensor y;
  {
    const BelowAutograd guard;
    if (x.is_cuda()) {
      y = at::empty_like(x);
      cuda::activation(element_of(x), kind, x.const_data_ptr(), y.mutable_data_ptr(), x.numel(), launch_stream());
    } else {
      y = act(x, kind);
    }
  }
  if (records(x)) {
    auto node = make_node<ActivationBackward>(x);
    node->x = detached(x);
    node->kind = kind;
    hang(y, node);
  }
  return y;
}

}  // namespace protrain::ops
