#include "model/autograd.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain::model {

using torch::autograd::variable_list;

BlockGraph::BlockGraph(const at::Tensor& x, const at::Tensor& y) : x_(x), y_(torch::autograd::impl::gradient_edge(y)) {
  PROTRAIN_CHECK(x.requires_grad() && y_.is_valid());
}

at::Tensor BlockGraph::backward(const at::Tensor& y_gradient) {
  PROTRAIN_CHECK(y_.is_valid(), "backward of a block ran twice");
  const torch::autograd::edge_list root{std::exchange(y_, {})};
  variable_list gradients = torch::autograd::Engine::get_default_engine().execute(
      root, {y_gradient}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false,
      {torch::autograd::impl::gradient_edge(x_)});
  return std::move(gradients.at(0));
}

namespace {

struct JoinBackward : torch::autograd::Node {
  std::vector<std::int64_t> widths;

  variable_list apply(variable_list&& gradients) override {
    variable_list parts;
    std::int64_t column = 0;
    for (const std::int64_t width : widths) {
      parts.push_back(gradients[0].narrow(1, column, width).contiguous());
      column += width;
    }
    return parts;
  }
};

}  // namespace

at::Tensor join_columns(const std::vector<at::Tensor>& parts) {
  const bool with_graph = torch::autograd::compute_requires_grad(parts);
  at::Tensor joined;
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    joined = at::cat(parts, 1);
  }
  if (with_graph) {
    std::shared_ptr<JoinBackward> node(new JoinBackward(), torch::autograd::deleteNode);
    for (const at::Tensor& part : parts) node->widths.push_back(part.size(1));
    node->set_next_edges(torch::autograd::collect_next_edges(parts));
    torch::autograd::set_history(joined, node);
  }
  return joined;
}

at::Tensor stop_gradient_of(const at::Tensor& x, const at::Tensor& ids, std::int64_t id) {
  if (!x.requires_grad()) return x;
  return at::where(ids.eq(id).unsqueeze(1), x.detach(), x);
}

void issue(const BlockCall& call, DeviceKind device, const std::function<void()>& work) {
  PROTRAIN_CHECK(call.stream != nullptr && call.context != nullptr);
  call.stream->call([&] {
    const StreamScope scope(*call.stream, device);
    work();
  });
}

void deliver(const at::Tensor& from, const at::Tensor& to) {
  if (from.data_ptr() == to.data_ptr()) return;
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

}  // namespace protrain::model
