// Causal attention inside samples, on rotated heads: the back ends behind rope_attention. Internal to ops/.
#pragma once
#include <vector>

#include "base/units.h"
#include "ops/ops.h"

namespace protrain::ops {

// kCpuFlash: ATen's CPU kernel. kMath: products and softmax in fp32 over tiles of queries (any device, dtype, head_dim
// and window). kCudnn: dense samples. kFlash: ATen's flash, dense or packed, windows, reproducible when asked.
enum class AttentionBackend : std::uint8_t { kCpuFlash, kMath, kCudnn, kFlash };
// A function of shape, dtype, device and determinism only.
AttentionBackend choose_backend(const at::Tensor& qkv, const HeadShape&, const AttentionBatch&);

// What a call needs of AttentionBatch, owned: it lives until backward.
struct AttentionPlan {
  AttentionBackend backend = AttentionBackend::kMath;
  HeadShape shape;
  std::int64_t rows = 0, row_tokens = 0, window = 0;
  double scale = 0;
  bool packed = false;
  at::Tensor sample_starts;
  std::vector<std::int64_t> host_starts;  // edges of the samples that are not empty: samples + 1 entries
};

// fp32 or bf16 [T, heads x head_dim], and what backward needs beside qkv.
struct Attended {
  at::Tensor out;
  at::Tensor log_sum_exp;
  at::Tensor seed, offset;  // of the CUDA back ends' unused dropout
};
Attended attend(const at::Tensor& qkv, const AttentionPlan&);

// [T, heads, head_dim], [T, kv_heads, head_dim] twice; contiguous.
struct HeadGradients {
  at::Tensor q, k, v;
};
HeadGradients attend_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended&, const AttentionPlan&);

// Note [Packed scratch]
// kCpuFlash and kMath walk packed samples one by one, so what they allocate follows the data. That stays inside a
// ScratchScope of what a sample of row_tokens tokens would take: the sum of all that is allocated for one piece (sample
// or tile), after which nothing is alive, so that first fit always finds room. The other back ends take the starts as
// they are, empty samples at the end included, and allocate by the number of starts and row_tokens.
Bytes packed_scratch_bytes(const AttentionPlan&, const at::Tensor& qkv, bool backward);

// Queries of a tile of kMath; a constant, so that results are a function of shape only.
inline constexpr std::int64_t kMathTileQueries = 256;

// Back ends, by file.
Attended attend_math(const at::Tensor& qkv, const AttentionPlan&);
HeadGradients attend_math_backward(const at::Tensor& gradient, const at::Tensor& qkv, const Attended&,
                                   const AttentionPlan&);

}  // namespace protrain::ops
