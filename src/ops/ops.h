// Fused operators with autograd. Each one that touches a parameter writes the parameter's gradient straight to where it
// is wanted and returns none to autograd; weights are plain tensors without requires_grad, in every pass.
//
// Shapes: T tokens, h hidden. Compute dtype C = fp32 or bf16; reductions in fp32. All tensors contiguous unless said.
// Backward runs on the thread that calls it, or on autograd's device thread (CUDA), on the stream current in forward,
// once for each forward (what an operator saved is let go with it). A graph is recorded when grad mode is on and an
// input asks for a gradient. Operators have no state; each call is thread-safe on its own tensors. All sums that leave
// an operator are taken in an order fixed by shape: equal inputs give equal bits, except cuDNN's attention backward
// (see AttentionBatch::deterministic).
//
// Note [Memory of operators]
// Sizes, lifetimes and order of an operator's allocations are functions of shapes, dtypes and flags, never of values:
// attention whose tiles follow the packed samples takes one scratch range of the worst case. Nothing waits for the
// device, and nothing is copied to it from host memory. "Saves" below says what stays from forward to backward, in
// elements of C per token; statistics of a few fp32 values per token come on top. (A layer of LLaMA-3-8B: 65,536 with
// 34 statistics, light 43,008, a third less, beside its input of 4,096.) Where "backward overwrites" a tensor, its
// gradient takes its memory: nothing else may read it in backward, or after.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <utility>

#include "ops/activation_kind.h"

namespace protrain::ops {

// A parameter, and the place of its gradient (same shape; C or fp32). gradient undefined: none is wanted.
struct Parameter {
  at::Tensor weight;
  at::Tensor gradient = {};
  bool first = true;  // overwrite the gradient, else add. An fp32 gradient of bf16 inputs is accumulated in fp32.
};

enum class WeightLayout { kOutIn, kInOut };  // [out, in] (torch Linear) or [in, out] (GPT-2's Conv1D)

// A tensor that the next operator reads; one made with `light` knows how to be made again in backward, and is then not
// saved by what reads it. Made once a backward however many read it, with the same bits.
class Recipe;
struct Source : at::Tensor {
  Source() = default;
  Source(at::Tensor value, std::shared_ptr<Recipe> how = nullptr)  // NOLINT: a plain tensor is a source
      : at::Tensor(std::move(value)), recipe(std::move(how)) {}
  std::shared_ptr<Recipe> recipe;
};

// y = x W^T + b (+ residual), x [T, in], y [T, out]. skip_value: only the graph is wanted, y is not computed (its
// contents are undefined). Saves x: in.
at::Tensor linear(const Source& x, const Parameter& weight, const Parameter* bias = nullptr,
                  const at::Tensor& residual = {}, WeightLayout layout = WeightLayout::kOutIn, bool skip_value = false);

// (x + residual, norm of that sum); without residual the first is x itself (same memory). x [T, h]. Go on with `sum`
// rather than with x: the gradient that comes back on it is added inside the norm's backward, without a pass of its
// own. Saves sum: h. Backward overwrites the sum with a residual, never x itself.
struct AddNorm {
  at::Tensor sum;
  Source normed;
};
AddNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, double epsilon,
                     bool light = false);
AddNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const Parameter& weight, const Parameter& bias,
                       double epsilon, bool light = false);

// Heads of a projection: qkv [T, (heads + 2 kv_heads) x head_dim], q first, then k, then v.
struct HeadShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};
// RMS norm of every q head with `q`, every k head with `k` [head_dim] (Qwen3); v passes through. Saves qkv.
Source qk_norm(const at::Tensor& qkv, const Parameter& q, const Parameter& k, const HeadShape&, double epsilon,
               bool light = false);

// Rotary tables, fp32 [positions, rotary_dim / 2]; attention factor already in them. Undefined cos: no rotation.
// Elements from rotary_dim on pass through.
struct Rope {
  at::Tensor cos, sin;
};

// Which tokens see which: causal inside a sample. As in block/batch.h.
struct AttentionBatch {
  std::int64_t rows = 0, row_tokens = 0;
  bool packed = false;
  at::Tensor positions = {};      // int32 [T], device: position inside the sample
  at::Tensor sample_starts = {};  // int32 [samples + 1], device; read when packed, as is the next
  std::span<const std::int32_t> host_sample_starts = {};  // the same on the host; empty samples at the end are allowed
  std::int64_t window = 0;     // a query sees its `window` last keys, itself included; 0 = all
  bool deterministic = false;  // CUDA: flash attention instead of cuDNN (also set_up_torch's flag)
  double scale = 0;            // 0: 1 / sqrt(head_dim)
};
// Rotates q and k (half-split pairs, as HF's rotate_half), then attends; returns [T, heads x head_dim]. Saves qkv
// (rotated) and its result. Forward and backward overwrite qkv.
at::Tensor rope_attention(const Source& qkv, const HeadShape&, const Rope&, const AttentionBatch&);

// [T, 2f], gate first -> act(gate) * up [T, f]. Saves gate_up: 2f. Backward overwrites it.
Source gated_activation(const at::Tensor& gate_up, Activation, bool light = false);
// Saves x (ReLU: its result, which what reads it shares; light changes nothing there). Backward overwrites that.
Source activation(const at::Tensor& x, Activation, bool light = false);

// Mask from a counter-based generator (ops/philox.h): a function of key, site, row and column only, the same on all
// devices. `first_row` is the number of x's first row among all rows of the step, so that the mask does not depend on
// how the step is cut into micro-batches. x [T, h]; probability in [0, 1); kept elements are scaled by 1 / (1 -
// probability).
at::Tensor dropout(const at::Tensor& x, double probability, std::uint64_t key, std::uint32_t site,
                   std::int64_t first_row = 0);

// y[t] = table[ids[t]], ids int32 [T] in [0, rows of table). Learned positions are a second embedding(), and add(). The
// graph hangs on `anchor` (a tiny tensor that requires grad; its gradient is zero), since ids have none. With `first`
// the whole gradient table is written, rows that no id names as zeros.
at::Tensor embedding(const at::Tensor& ids, const Parameter& table, const at::Tensor& anchor);

// Cross-entropy of x W^T over token tiles, logits never whole. labels int32 [T], -100 = none. Tile and order are
// functions of shape, dtype and device only. 64-bit offsets throughout. No graph: forward and backward in one call.
struct LossOptions {
  double loss_scale = 0;   // gradients are those of loss_scale x loss
  bool gradients = false;  // also dx (returned) and the weight's gradient
};
struct Loss {
  at::Tensor sum;             // fp64 [1]: sum of -log softmax(logits)[label], logits in C, softmax in fp32
  at::Tensor input_gradient;  // [T, h], with gradients
};
Loss cross_entropy(const at::Tensor& x, const Parameter& weight, const at::Tensor& labels, const LossOptions&);

}  // namespace protrain::ops
