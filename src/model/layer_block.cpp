#include "model/layer_block.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "model/autograd.h"
#include "tensor/tensor.h"

namespace protrain::model {

std::int64_t first_row(const BlockCall& call) { return call.what.micro_batch * call.context->shape.tokens(); }

ops::AttentionBatch attention_batch(const Context& context, DeviceKind device, std::int64_t window,
                                    bool deterministic) {
  const BatchLayout layout = batch_layout(context.shape);
  const std::int64_t starts = context.shape.max_samples + 1;
  ops::AttentionBatch batch;
  batch.rows = context.shape.rows;
  batch.row_tokens = context.shape.row_tokens;
  batch.packed = context.shape.packed;
  batch.positions = view(context.batch + layout.positions, {context.shape.tokens()}, DType::kI32, device);
  batch.sample_starts = view(context.batch + layout.sample_starts, {starts}, DType::kI32, device);
  const auto* host = reinterpret_cast<const std::int32_t*>(context.host_batch + layout.sample_starts);
  batch.host_sample_starts = {host, static_cast<std::size_t>(starts)};
  batch.window = window;
  batch.deterministic = deterministic;
  return batch;
}

ops::Activation activation_of(MlpActivation activation) {
  switch (activation) {
    case MlpActivation::kSilu: return ops::Activation::kSilu;
    case MlpActivation::kGeluTanh: return ops::Activation::kGeluTanh;
    case MlpActivation::kGelu: return ops::Activation::kGelu;
    case MlpActivation::kRelu: return ops::Activation::kRelu;
  }
  fail_check(__FILE__, __LINE__, "activation", "unknown");
}

LayerBlock::LayerBlock(const Architecture& arch, const ModelSpec&, const BlockSpec& block, const ModelOptions& options,
                       std::shared_ptr<RopeTables> rope)
    : heads_{arch.heads, arch.kv_heads, arch.head_dim},
      epsilon_(arch.norm_epsilon),
      block_(block),
      options_(options),
      hidden_(arch.hidden),
      window_(arch.window.at(static_cast<std::size_t>(block.layer))),
      dropout_(arch.residual_dropout),
      rope_(std::move(rope)) {}

at::Tensor LayerBlock::drop(const at::Tensor& x, const LayerCall& call, std::uint32_t site) {
  PROTRAIN_CHECK(site < kSitesPerLayer);
  return call.dropout > 0 ? ops::dropout(x, call.dropout, call.dropout_key, call.first_site + site, call.first_row) : x;
}

at::Tensor LayerBlock::run(const BlockCall& call, const at::Tensor& x) const {
  const Context& context = *call.context;
  const Weights weights(call.parameters, options_.compute, options_.device);
  const ops::AttentionBatch batch = attention_batch(context, options_.device, window_, options_.deterministic);
  const LayerCall layer{weights,
                        batch,
                        rope_->at_least(context.shape.row_tokens),
                        call.output == nullptr,
                        call.what.light,
                        context.training ? dropout_ : 0,
                        context.dropout_key,
                        first_row(call),
                        kEmbeddingSite + 1 + static_cast<std::uint32_t>(block_.layer) * kSitesPerLayer};
  return compute(x, layer);
}

std::unique_ptr<SavedGraph> LayerBlock::forward(const BlockCall& call) {
  const bool keep = call.what.pass == Pass::kForwardKeep;
  PROTRAIN_CHECK(keep || (call.what.pass == Pass::kForward && call.output != nullptr));
  const std::vector<std::int64_t> shape{call.context->shape.tokens(), hidden_};
  std::unique_ptr<SavedGraph> graph;
  issue(call, options_.device, options_.traces.get(), trace_key(block_, call, call.what.pass), [&](CallScope& scope) {
    const at::AutoGradMode mode(keep);
    at::Tensor x = view(call.input, shape, options_.compute, options_.device);
    if (keep) x.set_requires_grad(true);
    const at::Tensor y = run(call, x);
    if (call.output != nullptr) deliver(scope, y, view(call.output, shape, options_.compute, options_.device));
    if (keep) graph = std::make_unique<BlockGraph>(x, y, gradient_kinds(call.parameters));
  });
  return graph;
}

void LayerBlock::backward(const BlockCall& call, std::unique_ptr<SavedGraph> saved) {
  PROTRAIN_CHECK(saved != nullptr && call.what.pass == Pass::kBackward);
  const std::vector<std::int64_t> shape{call.context->shape.tokens(), hidden_};
  auto& graph = static_cast<BlockGraph&>(*saved);
  TraceKey key = trace_key(block_, call, Pass::kBackward);
  key.gradients = graph.gradients();
  issue(call, options_.device, options_.traces.get(), key, [&](CallScope& scope) {
    const at::Tensor dy = view(call.output_gradient, shape, options_.compute, options_.device);
    const at::Tensor dx = graph.backward(dy);
    deliver(scope, dx, view(call.input_gradient, shape, options_.compute, options_.device));
    saved.reset();
  });
}

}  // namespace protrain::model
