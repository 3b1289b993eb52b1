#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "ops/node.h"
#include "ops/ops.h"
#include "ops/parameter_gradient.h"
#include "ops/recipe.h"

namespace protrain::ops {
namespace {

struct LinearBackward final : torch::autograd::Node {
  std::string name() const override { return "protrain::linear"; }

  variable_list apply(variable_list&& gradients) override {
    const BelowAutograd guard;
    if (!gradients[0].defined()) return {{}, {}};
    const at::Tensor dy = gradients[0].contiguous();
    const bool out_in = layout == WeightLayout::kOutIn;
    if (weight.gradient.defined()) {
      const at::Tensor input = x.take();  // let go of here: its memory may serve the next product
      if (out_in) {
        add_product(weight, dy.t(), input);
      } else {
        add_product(weight, input.t(), dy);
      }
    }
    add_column_sums(bias, dy);
    at::Tensor dx;
    if (task_should_compute_output(0)) dx = at::mm(dy, out_in ? weight.weight : weight.weight.t());
    // The residual's gradient is dy itself: the engine copies before it adds to a tensor that others hold.
    return {dx, dy};
  }

  void release_variables() override { x.reset(); }

  Kept x;
  Parameter weight, bias;
  WeightLayout layout = WeightLayout::kOutIn;
};

at::Tensor value(const at::Tensor& x, const at::Tensor& matrix, const Parameter* bias, const at::Tensor& residual) {
  if (residual.defined()) {
    at::Tensor y = at::addmm(residual, x, matrix);
    if (bias != nullptr) y.add_(bias->weight);
    return y;
  }
  return bias != nullptr ? at::addmm(bias->weight, x, matrix) : at::mm(x, matrix);
}

}  // namespace

at::Tensor linear(const Source& x, const Parameter& weight, const Parameter* bias, const at::Tensor& residual,
                  WeightLayout layout, bool skip_value) {
  const bool out_in = layout == WeightLayout::kOutIn;
  const std::int64_t in = weight.weight.size(out_in ? 1 : 0), out = weight.weight.size(out_in ? 0 : 1);
  PROTRAIN_CHECK(x.dim() == 2 && x.size(1) == in, "x has {} columns, the weight takes {}", x.size(-1), in);
  at::Tensor y;
  {
    const BelowAutograd guard;
    y = skip_value ? at::empty({x.size(0), out}, x.options())
                   : value(x, out_in ? weight.weight.t() : weight.weight, bias, residual);
  }
  if (records(x, residual)) {
    auto node = make_node<LinearBackward>(static_cast<const at::Tensor&>(x), residual);
    if (weight.gradient.defined()) node->x.keep(x);
    node->weight = weight;
    if (bias != nullptr) node->bias = *bias;
    node->layout = layout;
    hang(y, node);
  }
  return y;
}

}  // namespace protrain::ops
