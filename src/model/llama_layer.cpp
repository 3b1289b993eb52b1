// The decoder layer of LLaMA, Mistral, Qwen2 and Qwen3: RMS norms before rotary attention and a gated MLP.
#include "model/layer_block.h"

namespace protrain::model {
namespace {

class LlamaLayer : public LayerBlock {
 public:
  LlamaLayer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block, const ModelOptions& options,
             std::shared_ptr<RopeTables> rope)
      : LayerBlock(arch, spec, block, options, std::move(rope)),
        qk_norm_(arch.qk_norm),
        activation_(activation_of(arch.activation)) {
    const Slots slots(spec, block);
    attention_norm_ = Norm(slots, "input_layernorm");
    qkv_ = Linear(slots, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    if (qk_norm_) {
      q_norm_ = Norm(slots, "self_attn.q_norm");
      k_norm_ = Norm(slots, "self_attn.k_norm");
    }
    output_ = Linear(slots, {"self_attn.o_proj"});
    mlp_norm_ = Norm(slots, "post_attention_layernorm");
    gate_up_ = Linear(slots, {"mlp.gate_proj", "mlp.up_proj"});
    down_ = Linear(slots, {"mlp.down_proj"});
  }

 protected:
  at::Tensor compute(const at::Tensor& x, const LayerCall& call) const override {
    ops::AddNorm middle = attend(x, call);
    const ops::Source inner = expand(std::exchange(middle.normed, {}), call);
    return down_(call.weights, inner, middle.sum, call.skip_value);
  }

 private:
  // Functions of their own, so that nothing is held longer than it is read: the memory of a forward.
  ops::AddNorm attend(const at::Tensor& x, const LayerCall& call) const {
    const Weights& w = call.weights;
    const ops::AddNorm start = ops::add_rms_norm(x, {}, w.get(attention_norm_.weight), epsilon_, call.light);
    ops::Source qkv = qkv_(w, start.normed);
    if (qk_norm_) qkv = ops::qk_norm(qkv, w.get(q_norm_.weight), w.get(k_norm_.weight), heads_, epsilon_, call.light);
    const at::Tensor attention = output_(w, ops::rope_attention(qkv, heads_, call.rope, call.batch));
    return ops::add_rms_norm(attention, start.sum, w.get(mlp_norm_.weight), epsilon_, call.light);
  }
  ops::Source expand(ops::Source x, const LayerCall& call) const {
    const at::Tensor gate_up = gate_up_(call.weights, x);
    x = {};
    return ops::gated_activation(gate_up, activation_, call.light);
  }

  const bool qk_norm_;
  const ops::Activation activation_;
  Norm attention_norm_, mlp_norm_, q_norm_, k_norm_;
  Linear qkv_, output_, gate_up_, down_;
};

}  // namespace

std::unique_ptr<Block> make_llama_layer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block,
                                        const ModelOptions& options, std::shared_ptr<RopeTables> rope) {
  return std::make_unique<LlamaLayer>(arch, spec, block, options, std::move(rope));
}

}  // namespace protrain::model
