// Fused operators with autograd. Each one that touches a parameter writes the parameter's gradient straight to where it is
// wanted and returns none to autograd; weights are plain tensors without requires_grad, in every pass.
//
// Shapes: T tokens, h hidden. Compute dtype C = fp32 or bf16; reductions in fp32. All tensors contiguous unless said.
// Backward runs on the thread that calls it, or on autograd's device thread (CUDA), on the stream current in forward.
// Operators have no state; each call is thread-safe on its own tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <span>

namespace protrain::ops {

// A parameter, and the place of its gradient (same shape; C or fp32). gradient undefined: none is wanted.
struct Parameter {
  at::Tensor weight;
  at::Tensor gradient;
  bool first = true;  // overwrite the gradient, else add. An fp32 gradient of bf16 inputs is accumulated in fp32.
};

enum class WeightLayout { kOutIn, kInOut };  // [out, in] (torch Linear) or [in, out] (GPT-2's Conv1D)

// y = x W^T + b (+ residual), x [T, in], y [T, out]. skip_value: only the graph is wanted, y is not computed.
at::Tensor linear(const at::Tensor& x, const Parameter& weight, const Parameter* bias = nullptr,
                  const at::Tensor& residual = {}, WeightLayout layout = WeightLayout::kOutIn, bool skip_value = false);

// (x + residual, norm of that sum); without residual the first is x itself. x [T, h].
struct AddNorm {
  at::Tensor sum, normed;
};
AddNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, double epsilon);
AddNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter& bias,
                       double epsilon);

// Heads of a projection: qkv [T, (heads + 2 kv_heads) x head_dim], q first, then k, then v.
struct HeadShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};
// RMS norm of every q head with `q`, every k head with `k` (Qwen3); v passes through. epsilon as given.
at::Tensor qk_norm(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape&, double epsilon);

// Rotary tables, fp32 [positions, rotary_dim / 2]; attention factor already in them. Undefined cos: no rotation.
struct Rope {
  at::Tensor cos, sin;
};

// Which tokens see which: causal inside a sample. As in block/batch.h.
struct AttentionBatch {
  std::int64_t rows = 0, row_tokens = 0;
  bool packed = false;
  at::Tensor positions;                          // int32 [T], device: position inside the sample
  at::Tensor sample_starts;                      // int32 [samples + 1], device
  std::span<const std::int32_t> host_sample_starts;
  std::int64_t window = 0;                       // a query sees its `window` last keys, itself included; 0 = all
  bool deterministic = false;
  double scale = 0;                              // 0: 1 / sqrt(head_dim)
};
// Rotates q and k (half-split pairs, as HF's rotate_half), then attends; returns [T, heads x head_dim]. May overwrite qkv.
at::Tensor rope_attention(const at::Tensor& qkv, const HeadShape&, const Rope&, const AttentionBatch&);

enum class Activation { kSilu, kGeluTanh, kGelu, kRelu };
at::Tensor gated_activation(const at::Tensor& gate_up, Activation);  // [T, 2f], gate first -> act(gate) * up [T, f]
at::Tensor activation(const at::Tensor& x, Activation);

// Mask from a counter-based generator: element i of sample position p under `key` and `site`. probability in [0, 1).
at::Tensor dropout(const at::Tensor& x, double probability, std::uint64_t key, std::uint32_t site);

// y[t] = table[ids[t]] (+ positions_table[positions[t] + offset]). The graph hangs on `anchor` (requires grad), since ids
// have none; the gradient of the table is summed in a fixed order. ids, positions int32 [T].
at::Tensor embedding(const at::Tensor& ids, const Parameter& table, const at::Tensor& anchor);

// Cross-entropy of x W^T over token tiles, logits never whole. labels int32 [T], -100 = none. Tile and order are functions
// of shape only. 64-bit offsets throughout.
struct LossOptions {
  double loss_scale = 0;            // gradients are those of loss_scale x loss
  bool gradients = false;           // also dx (returned) and the weight's gradient
};
struct Loss {
  at::Tensor sum;                   // fp64 [1]: sum of -log softmax(logits)[label], logits in C, softmax in fp32
  at::Tensor input_gradient;        // [T, h], with gradients
};
Loss cross_entropy(const at::Tensor& x, const Parameter& weight, const at::Tensor& labels, const LossOptions&);

}  // namespace protrain::ops
