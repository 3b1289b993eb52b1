// A model's config.json, read and checked. Plain values.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "arch/spec.h"

namespace protrain {

enum class Family : std::uint8_t { kGpt2, kOpt, kLlama, kMistral, kQwen2, kQwen3 };
enum class MlpActivation : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

// Rotary frequencies as in transformers' modeling_rope_utils. Those that depend on the sequence (dynamic, longrope) are
// refused.
struct RopeConfig {
  enum class Type : std::uint8_t { kDefault, kLinear, kLlama3, kYarn } type = Type::kDefault;
  double theta = 10000, factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4, original_max_positions = 0;  // llama3, yarn
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0;          // yarn
  std::optional<double> attention_factor;                                        // yarn
  bool truncate = true;                                                          // yarn
};

struct Architecture {
  Family family = Family::kLlama;
  std::int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  std::int64_t max_positions = 0;
  double norm_epsilon = 1e-5;
  bool rotary = true;
  RopeConfig rope;
  std::vector<std::int64_t> window;  // per layer; 0 = full attention
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false, tied = false;
  MlpActivation activation = MlpActivation::kSilu;
  double embedding_dropout = 0, residual_dropout = 0;
  double init_std = 0.02;
  std::int64_t pad_token = -1;  // its embedding starts as zeros and takes no gradient from the input side
  // OPT: norm before (true) or after each sublayer; embedding width (0 = hidden); learned positions start at an offset.
  bool norm_before = true, final_norm = true;
  std::int64_t embedding_width = 0, position_offset = 0;
};

// What a run may set against the file. Attention dropout has no other way off than 0.
struct ArchitectureOverrides {
  std::optional<double> attention_dropout = {}, residual_dropout = {}, embedding_dropout = {};
};

// Keys and defaults are those of the transformers configuration class of `model_type`; the sizes must be there.
// Error(kFiles) for what is missing or wrong, Error(kConfig) for what is not supported; both name file, key, value and
// what would do.
Architecture parse_architecture(const std::string& config_json, const std::string& file,
                                const ArchitectureOverrides& = {});
ModelSpec make_spec(const Architecture&);

// Rotary inverse frequencies [head_dim / 2] and the factor on cos and sin, after transformers' modeling_rope_utils: the
// unscaled frequencies are rounded to fp32 where it rounds them.
struct RopeTable {
  std::vector<double> inverse_frequency;
  double attention_factor = 1;
};
RopeTable rope_table(const RopeConfig&, std::int64_t head_dim);

}  // namespace protrain
