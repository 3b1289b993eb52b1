#include "model/autograd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain::model {

BlockGraph::BlockGraph(const at::Tensor& x, const at::Tensor& y, std::string gradients)
    : x_(x), y_(torch::autograd::impl::gradient_edge(y)), gradients_(std::move(gradients)) {
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

TraceKey trace_key(const BlockSpec& block, const BlockCall& call, Pass pass) {
  PROTRAIN_CHECK(call.context != nullptr);
  TraceKey key;
  key.call = {block.trace, pass, call.what.light && pass != Pass::kForward, call.context->shape,
              call.context->training};
  key.value = pass != Pass::kForwardKeep || call.output != nullptr;
  return key;
}

void issue(const BlockCall& call, DeviceKind device, TraceBook* book, const TraceKey& key,
           const std::function<void(CallScope&)>& work) {
  PROTRAIN_CHECK(call.stream != nullptr && call.context != nullptr);
  call.stream->call([&] {
    const StreamScope stream(*call.stream, device);
    CallScope scope(book, key, call);
    work(scope);
    scope.finish();
  });
}

void deliver(CallScope& scope, const at::Tensor& from, const at::Tensor& to) {
  PROTRAIN_CHECK(from.sizes() == to.sizes(), "a result of {} elements goes where {} are wanted", from.numel(),
                 to.numel());
  const auto* wanted = static_cast<const std::byte*>(to.const_data_ptr());
  const bool may_lie_there = from.is_contiguous() && from.scalar_type() == to.scalar_type();
  if (may_lie_there && scope.result(from.const_data_ptr(), static_cast<Bytes>(from.nbytes()), wanted)) return;
  const at::NoGradGuard no_grad;
  to.copy_(from);
}

}  // namespace protrain::model
