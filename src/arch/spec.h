// What a model is made of, as data: parameters under their HF names and blocks in execution order. No tensors.
// Plain values; a ModelSpec is immutable once made.
#pragma once
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/units.h"

namespace protrain {

// How a parameter starts when no weights are given; the same distributions as transformers.
enum class Fill : std::uint8_t { kZeros, kOnes, kNormal };

struct ParameterSpec {
  std::string name;                 // as in the HF state dict, e.g. "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // as in the file
  // Parameters of one group lie side by side in a chunk and are never split between chunks, so that one GEMM can serve
  // them (q, k, v; gate, up). The first member's id; its own id when alone.
  Id group = -1;
  bool decay = false;  // weight decay applies (matrices and embeddings; not norms and biases)
  Fill fill = Fill::kZeros;
  double fill_std = 0;         // kNormal
  std::int64_t zero_row = -1;  // kNormal: this row starts as zeros (padding_idx)

  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, [](auto a, auto b) { return a * b; });
  }
};

enum class BlockKind : std::uint8_t { kEmbedding, kLayer, kHead };

struct BlockSpec {
  BlockKind kind = BlockKind::kLayer;
  Id layer = -1;               // index among the decoder layers; -1 for embedding and head
  std::string trace;           // blocks with equal `trace` allocate alike (same code, same shapes)
  std::vector<Id> parameters;  // in the block's own order; a tied matrix stands in embedding and head
};

struct ModelSpec {
  std::vector<ParameterSpec> parameters;  // in execution order of first use: embedding, layers, head
  std::vector<BlockSpec> blocks;          // embedding, layers..., head
  std::int64_t hidden = 0;                // width of the activations between blocks
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;  // longest sequence the model can take; 0 = no limit (rotary)
  // Positions that a rotary model was made for, its scaling included. Longer samples run, at positions that it has
  // never seen. 0 = not rotary.
  std::int64_t rotary_positions = 0;
  bool tied = false;                    // output matrix is the embedding's
  std::vector<std::string> tied_names;  // HF names that alias the embedding matrix in files ("lm_head.weight")

  std::int64_t parameter_count() const;  // a tied parameter counts once
  // Model FLOPs of one token at this sequence length, forward + backward: 6 N + 6 L h s, N without an untied input
  // embedding (token or position), h = heads x head_dim (causal attention; recompute not counted).
  double flops_per_token(std::int64_t sequence_tokens) const;
  std::int64_t attention_width = 0;  // heads x head_dim
  std::int64_t lookup_elements = 0;  // of tables that only a lookup reads
};

}  // namespace protrain
