// Token embedding, with learned positions and a projection into the hidden width where the family has them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "model/autograd.h"
#include "model/layer_block.h"
#include "tensor/tensor.h"

namespace protrain::model {
namespace {

class EmbeddingBlock : public Block {
 public:
  EmbeddingBlock(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block, const ModelOptions& options)
      : arch_(arch), block_(block), options_(options) {
    const Slots slots(spec, block);
    const bool gpt2 = arch.family == Family::kGpt2;
    tokens_ = slots.at(gpt2 ? "wte.weight" : "embed_tokens.weight");
    if (!arch.rotary) positions_ = slots.at(gpt2 ? "wpe.weight" : "embed_positions.weight");
    if (arch.embedding_width != 0) project_in_ = Linear(slots, {"project_in"});
  }
  const BlockSpec& spec() const override { return block_; }

  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    PROTRAIN_CHECK(call.what.pass != Pass::kBackward);
    if (call.output == nullptr) return nullptr;  // backward looks up again: nothing is worth keeping
    issue(call, options_.device, options_.traces.get(), trace_key(block_, call, Pass::kForward), [&](CallScope& scope) {
      const at::NoGradGuard no_grad;
      deliver(scope, run(call, {}), result(call, call.output));
    });
    return nullptr;
  }

  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override {
    TraceKey key = trace_key(block_, call, Pass::kBackward);
    key.gradients = gradient_kinds(call.parameters);
    issue(call, options_.device, options_.traces.get(), key, [&](CallScope&) {
      const at::AutoGradMode mode(true);
      at::Tensor anchor = at::zeros({1}, at::TensorOptions(scalar_type(options_.compute)).device(device()));
      anchor.set_requires_grad(true);
      BlockGraph graph(anchor, run(call, anchor));
      graph.backward(result(call, call.output_gradient));
    });
  }

 private:
  at::Device device() const { return options_.device == DeviceKind::kCuda ? at::kCUDA : at::kCPU; }
  at::Tensor result(const BlockCall& call, const std::byte* bytes) const {
    return view(bytes, {call.context->shape.tokens(), arch_.hidden}, options_.compute, options_.device);
  }

  at::Tensor run(const BlockCall& call, const at::Tensor& anchor) const {
    const Context& context = *call.context;
    const BatchLayout layout = batch_layout(context.shape);
    const Weights weights(call.parameters, options_.compute, options_.device);
    const std::int64_t tokens = context.shape.tokens();
    const at::Tensor ids = view(context.batch + layout.tokens, {tokens}, DType::kI32, options_.device);
    at::Tensor y = ops::embedding(ids, weights.get(tokens_), anchor);
    if (arch_.pad_token >= 0) y = stop_gradient_of(y, ids, arch_.pad_token);
    if (arch_.embedding_width != 0) y = project_in_(weights, y);
    if (!arch_.rotary) {
      at::Tensor positions = view(context.batch + layout.positions, {tokens}, DType::kI32, options_.device);
      if (arch_.position_offset != 0) positions = positions.add(arch_.position_offset);
      y = y.add(ops::embedding(positions, weights.get(positions_), anchor));
    }
    const double dropout = context.training ? arch_.embedding_dropout : 0;
    if (dropout == 0) return y;
    return ops::dropout(y, dropout, context.dropout_key, kEmbeddingSite, first_row(call));
  }

  const Architecture arch_;
  const BlockSpec& block_;
  const ModelOptions options_;
  Slot tokens_, positions_;
  Linear project_in_;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block,
                                            const ModelOptions& options) {
  return std::make_unique<EmbeddingBlock>(arch, spec, block, options);
}

}  // namespace protrain::model
