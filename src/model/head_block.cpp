// Final norm, output projection (OPT), output matrix and loss; forward and backward in one go.
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "model/autograd.h"
#include "model/layer_block.h"
#include "tensor/tensor.h"

namespace protrain::model {
namespace {

class HeadBlock : public Block {
 public:
  HeadBlock(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block, const ModelOptions& options)
      : block_(block),
        options_(options),
        hidden_(arch.hidden),
        epsilon_(arch.norm_epsilon),
        rms_(arch.rotary),
        has_norm_(arch.final_norm),
        has_projection_(arch.embedding_width != 0) {
    const Slots slots(spec, block);
    if (has_norm_) norm_ = Norm(slots, arch.family == Family::kGpt2 ? "ln_f" : rms_ ? "norm" : "final_layer_norm");
    if (has_projection_) projection_ = Linear(slots, {"project_out"});
    output_ = slots.last();
  }
  const BlockSpec& spec() const override { return block_; }

  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    run(call, false);
    return nullptr;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override { run(call, true); }

  void logits(const BlockCall& call, float* to) {
    issue(call, options_.device, nullptr, {}, [&](CallScope& scope) {  // never traced
      const at::NoGradGuard no_grad;
      const Weights weights(call.parameters, options_.compute, options_.device);
      const at::Tensor logits = ops::linear(last_hidden(weights, input(call)), weights.get(output_));
      deliver(scope, logits, view(reinterpret_cast<std::byte*>(to), logits.sizes(), DType::kF32, options_.device));
    });
  }

 private:
  at::Tensor input(const BlockCall& call) const {
    return view(call.input, {call.context->shape.tokens(), hidden_}, options_.compute, options_.device);
  }

  // What the output matrix multiplies.
  at::Tensor last_hidden(const Weights& weights, at::Tensor x) const {
    if (has_norm_ && rms_) x = ops::add_rms_norm(x, {}, weights.get(norm_.weight), epsilon_).normed;
    if (has_norm_ && !rms_) {
      x = ops::add_layer_norm(x, {}, weights.get(norm_.weight), weights.get(norm_.bias), epsilon_).normed;
    }
    return has_projection_ ? projection_(weights, x) : x;
  }

  void run(const BlockCall& call, bool gradients) {
    TraceKey key = trace_key(block_, call, gradients ? Pass::kBackward : Pass::kForward);
    if (gradients) key.gradients = gradient_kinds(call.parameters);
    issue(call, options_.device, options_.traces.get(), key, [&](CallScope& scope) {
      const Context& context = *call.context;
      const Weights weights(call.parameters, options_.compute, options_.device);
      const at::Tensor labels = view(context.batch + batch_layout(context.shape).labels, {context.shape.tokens()},
                                     DType::kI32, options_.device);
      const at::AutoGradMode mode(gradients);
      at::Tensor x = input(call);
      if (gradients) x.set_requires_grad(true);
      const at::Tensor last = last_hidden(weights, x);
      ops::Loss loss;
      {
        const at::NoGradGuard no_grad;
        loss = ops::cross_entropy(last.detach(), weights.get(output_), labels, {context.loss_scale, gradients});
      }
      deliver(scope, loss.sum, view(call.output, {1}, DType::kF64, options_.device));
      if (!gradients) return;
      at::Tensor dx = loss.input_gradient;
      if (has_norm_ || has_projection_) dx = BlockGraph(x, last).backward(dx);
      deliver(scope, dx, view(call.input_gradient, x.sizes(), options_.compute, options_.device));
    });
  }

  const BlockSpec& block_;
  const ModelOptions options_;
  const std::int64_t hidden_;
  const double epsilon_;
  const bool rms_, has_norm_, has_projection_;
  Norm norm_;
  Linear projection_;
  Slot output_;
};

}  // namespace

std::unique_ptr<Block> make_head_block(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block,
                                       const ModelOptions& options) {
  return std::make_unique<HeadBlock>(arch, spec, block, options);
}

}  // namespace protrain::model

namespace protrain {

void head_logits(Block& head, const BlockCall& call, float* logits) {
  auto* block = dynamic_cast<model::HeadBlock*>(&head);
  PROTRAIN_CHECK(block != nullptr, "not a head");
  block->logits(call, logits);
}

}  // namespace protrain
