// The decoder layer of OPT: layer norms before each sublayer, or (opt-350m) after each residual addition.
#include "model/layer_block.h"

namespace protrain::model {
namespace {

class OptLayer : public LayerBlock {
 public:
  OptLayer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block, const ModelOptions& options,
           std::shared_ptr<RopeTables> rope)
      : LayerBlock(arch, spec, block, options, std::move(rope)),
        norm_before_(arch.norm_before),
        activation_(activation_of(arch.activation)) {
    const Slots slots(spec, block);
    attention_norm_ = Norm(slots, "self_attn_layer_norm");
    qkv_ = Linear(slots, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    output_ = Linear(slots, {"self_attn.out_proj"});
    mlp_norm_ = Norm(slots, "final_layer_norm");
    up_ = Linear(slots, {"fc1"});
    down_ = Linear(slots, {"fc2"});
  }

 protected:
  at::Tensor compute(const at::Tensor& x, const LayerCall& call) const override {
    return norm_before_ ? norm_first(x, call) : norm_last(x, call);
  }

 private:
  ops::AddNorm norm(const at::Tensor& x, const at::Tensor& residual, const Norm& norm, const LayerCall& call) const {
    return ops::add_layer_norm(x, residual, call.weights.get(norm.weight), call.weights.get(norm.bias), epsilon_,
                               call.light);
  }
  // Functions of their own, so that nothing is held longer than it is read: the memory of a forward.
  at::Tensor attention(const ops::Source& x, const LayerCall& call) const {
    const at::Tensor mixed = ops::rope_attention(qkv_(call.weights, x), heads_, call.rope, call.batch);
    return drop(output_(call.weights, mixed), call, 0);
  }
  ops::Source expand(ops::Source x, const LayerCall& call) const {
    const at::Tensor up = up_(call.weights, x);
    x = {};
    return ops::activation(up, activation_, call.light);
  }

  ops::AddNorm attend_norm_first(const at::Tensor& x, const LayerCall& call) const {
    const ops::AddNorm start = norm(x, {}, attention_norm_, call);
    return norm(attention(start.normed, call), start.sum, mlp_norm_, call);
  }
  at::Tensor norm_first(const at::Tensor& x, const LayerCall& call) const {
    ops::AddNorm middle = attend_norm_first(x, call);
    const ops::Source inner = expand(std::exchange(middle.normed, {}), call);
    if (call.dropout == 0) return down_(call.weights, inner, middle.sum, call.skip_value);
    return drop(down_(call.weights, inner, {}, call.skip_value), call, 1).add(middle.sum);
  }
  // The last norm's backward reads its input, so the last product is always computed.
  at::Tensor norm_last(const at::Tensor& x, const LayerCall& call) const {
    const ops::Source middle = norm(attention(x, call), x, attention_norm_, call).normed;
    return norm(drop(down_(call.weights, expand(middle, call)), call, 1), middle, mlp_norm_, call).normed;
  }

  const bool norm_before_;
  const ops::Activation activation_;
  Norm attention_norm_, mlp_norm_;
  Linear qkv_, output_, up_, down_;
};

}  // namespace

std::unique_ptr<Block> make_opt_layer(const Architecture& arch, const ModelSpec& spec, const BlockSpec& block,
                                      const ModelOptions& options, std::shared_ptr<RopeTables> rope) {
  return std::make_unique<OptLayer>(arch, spec, block, options, std::move(rope));
}

}  // namespace protrain::model
