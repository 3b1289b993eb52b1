#include "model/autograd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain::model {

BlockGraph::BlockGraph(const at::Tensor& x, const at::Tensor& y) : x_(x), y_(torch::autograd::impl::gradient_edge(y)) {
  PROTRAIN_CHECK(x.requires_grad() && y_.is_valid());
}

at::Tensor BlockGraph::backward(const at::Tensor& y_gradient) {
  PROTRAIN_CHECK(y_.is_valid(), "backward of a block ran twice");
  const torch::autograd::edge_list root{std::exchange(y_, {})};
  torch::autograd::variable_list gradients = torch::autograd::Engine::get_default_engine().execute(
      root, {y_gradient}, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false,
      {torch::autograd::impl::gradient_edge(x_)});
  return std::move(gradients.at(0));
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
