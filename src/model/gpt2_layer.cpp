// The decoder layer of GPT-2: layer norms before attention and MLP, weights as [in, out].
#include "model/layer_block.h"

namespace protrain::model {
namespace {

class Gpt2Layer : public LayerBlock {
 public:
  Gpt2Layer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block, const ModelOptions& options,
            std::shared_ptr<RopeTables> rope)
      : LayerBlock(arch, spec, block, options, std::move(rope)), activation_(activation_of(arch.activation)) {
    const Slots slots(spec, block);
    attention_norm_ = Norm(slots, "ln_1");
    qkv_ = Linear(slots, {"attn.c_attn"}, ops::WeightLayout::kInOut);
    output_ = Linear(slots, {"attn.c_proj"}, ops::WeightLayout::kInOut);
    mlp_norm_ = Norm(slots, "ln_2");
    up_ = Linear(slots, {"mlp.c_fc"}, ops::WeightLayout::kInOut);
    down_ = Linear(slots, {"mlp.c_proj"}, ops::WeightLayout::kInOut);
  }

 protected:
  at::Tensor compute(const at::Tensor& x, const LayerCall& call) const override {
    ops::AddNorm middle = attend(x, call);
    const ops::Source inner = expand(std::exchange(middle.normed, {}), call);
    if (call.dropout == 0) return down_(call.weights, inner, middle.sum, call.skip_value);
    return drop(down_(call.weights, inner, {}, call.skip_value), call, 1).add(middle.sum);
  }

 private:
  // Functions of their own, so that nothing is held longer than it is read: the memory of a forward.
  ops::AddNorm attend(const at::Tensor& x, const LayerCall& call) const {
    const Weights& w = call.weights;
    const ops::AddNorm start =
        ops::add_layer_norm(x, {}, w.get(attention_norm_.weight), w.get(attention_norm_.bias), epsilon_, call.light);
    const at::Tensor attention = output_(w, ops::rope_attention(qkv_(w, start.normed), heads_, call.rope, call.batch));
    return ops::add_layer_norm(drop(attention, call, 0), start.sum, w.get(mlp_norm_.weight), w.get(mlp_norm_.bias),
                               epsilon_, call.light);
  }
  ops::Source expand(ops::Source x, const LayerCall& call) const {
    const at::Tensor up = up_(call.weights, x);
    x = {};
    return ops::activation(up, activation_, call.light);
  }

  const ops::Activation activation_;
  Norm attention_norm_, mlp_norm_;
  Linear qkv_, output_, up_, down_;
};

}  // namespace

std::unique_ptr<Block> make_gpt2_layer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block,
                                       const ModelOptions& options, std::shared_ptr<RopeTables> rope) {
  return std::make_unique<Gpt2Layer>(arch, spec, block, options, std::move(rope));
}

}  // namespace protrain::model
