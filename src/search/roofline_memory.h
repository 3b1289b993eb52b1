// What one call of a block asks of device memory, from shapes alone: the allocations of ops/ and model/ on CUDA, walked
// as they come and go. Internal to search/. Pure; thread-safe.
//
// Exact for bf16 with cuDNN's or flash attention (bench/results/offload_h200 holds recorded sizes); elsewhere an
// estimate. roofline_test.cpp and train/estimate_test.cpp hold it against recorded figures.
#pragma once
#include "arch/architecture.h"
#include "plan/plan.h"

namespace protrain {

// Widths of one block's tensors, in elements a token.
struct LayerWidths {
  LayerWidths(const Architecture&, std::int64_t layer);  // a decoder layer; -1 for embedding and head

  std::int64_t hidden = 0, q = 0, kv = 0, qkv = 0, ffn = 0;
  std::int64_t up = 0;  // columns of the first product of the MLP: gate and up side by side, or up alone
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;  // 0: none
  bool gated = false, relu = false, layer_norm = false, norm_before = true, rotary = true, qk_norm = false;
  bool biases = false;  // of the projections back into the residual stream
  bool dropout = false;
};

// Tokens of the head's logits that are there at one time.
std::int64_t head_tile_rows(std::int64_t tokens, std::int64_t vocabulary, Bytes element_bytes);

CallMemory estimate_layer_memory(const LayerWidths&, const BatchShape&, DType compute, Pass, bool light, bool training);
CallMemory estimate_embedding_memory(const Architecture&, const BatchShape&, DType compute, Pass, bool training);
CallMemory estimate_head_memory(const Architecture&, const BatchShape&, DType compute, Pass);

}  // namespace protrain
