#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "arch/architecture.h"

namespace protrain {

std::int64_t ModelSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) count += parameter.elements();
  return count;
}

double ModelSpec::flops_per_token(std::int64_t sequence_tokens) const {
  double layers = 0;
  for (const BlockSpec& block : blocks) layers += block.kind == BlockKind::kLayer ? 1 : 0;
  const auto multiplied = static_cast<double>(parameter_count() - lookup_elements);
  return 6 * multiplied + 6 * layers * static_cast<double>(attention_width) * static_cast<double>(sequence_tokens);
}

namespace {

// For linear and yarn some files state the original length, some the scaled one; for llama3 always the scaled one,
// which is not original x factor.
std::int64_t scaled_positions(const Architecture& arch) {
  if (arch.rope.type != RopeConfig::Type::kLinear && arch.rope.type != RopeConfig::Type::kYarn) {
    return arch.max_positions;
  }
  const double scaled = arch.rope.factor * arch.rope.original_max_positions;
  return std::max(arch.max_positions, static_cast<std::int64_t>(std::min(scaled, 9e15)));
}

// Adds parameters to the block that was opened last, in the order in which the block uses them.
class SpecBuilder {
 public:
  explicit SpecBuilder(const Architecture& arch) : arch_(arch) {
    spec_.hidden = arch.hidden;
    spec_.vocabulary = arch.vocabulary;
    spec_.max_positions = arch.rotary ? 0 : arch.max_positions;
    spec_.rotary_positions = arch.rotary ? scaled_positions(arch) : 0;
    spec_.tied = arch.tied;
    spec_.attention_width = arch.heads * arch.head_dim;
  }

  void open(BlockKind kind, Id layer, std::string trace) {
    spec_.blocks.push_back({kind, layer, std::move(trace), {}});
  }

  Id matrix(const std::string& name, std::int64_t rows, std::int64_t columns, Id group = -1) {
    return matrix(name, rows, columns, arch_.init_std, group);
  }
  Id matrix(const std::string& name, std::int64_t rows, std::int64_t columns, double std, Id group) {
    ParameterSpec parameter{name, {rows, columns}, group, true, Fill::kNormal, std, -1};
    return add(std::move(parameter));
  }
  // A table that only a lookup reads, unless the head uses it too.
  Id table(const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t zero_row, bool tied) {
    ParameterSpec parameter{name, {rows, columns}, -1, true, Fill::kNormal, arch_.init_std, zero_row};
    if (!tied) spec_.lookup_elements += parameter.elements();
    return add(std::move(parameter));
  }
  Id vector(const std::string& name, std::int64_t size, Fill fill, Id group = -1) {
    return add({name, {size}, group, false, fill, 0, -1});
  }
  void norm(const std::string& name, bool bias) {
    vector(name + ".weight", arch_.hidden, Fill::kOnes);
    if (bias) vector(name + ".bias", arch_.hidden, Fill::kZeros);
  }
  void head_norm(const std::string& name) { vector(name + ".weight", arch_.head_dim, Fill::kOnes); }
  void linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    matrix(name + ".weight", out, in);
    if (bias) vector(name + ".bias", out, Fill::kZeros);
  }
  // Linear layers of one input: their weights are one group, their biases another.
  void linears(const std::vector<std::pair<std::string, std::int64_t>>& names, std::int64_t in, bool bias) {
    Id group = -1;
    for (const auto& [name, out] : names) {
      const Id id = matrix(name + ".weight", out, in, group);
      if (group < 0) group = id;
    }
    group = -1;
    for (const auto& [name, out] : names) {
      if (!bias) break;
      const Id id = vector(name + ".bias", out, Fill::kZeros, group);
      if (group < 0) group = id;
    }
  }
  // The output matrix: the embedding's when tied.
  void output(Id embedding, std::int64_t width) {
    spec_.tied_names = arch_.tied ? std::vector<std::string>{"lm_head.weight"} : std::vector<std::string>{};
    if (arch_.tied) {
      spec_.blocks.back().parameters.push_back(embedding);
    } else {
      matrix("lm_head.weight", arch_.vocabulary, width);
    }
  }
  ModelSpec take() { return std::move(spec_); }

 private:
  Id add(ParameterSpec parameter) {
    const Id id = static_cast<Id>(spec_.parameters.size());
    if (parameter.group < 0) parameter.group = id;
    spec_.parameters.push_back(std::move(parameter));
    spec_.blocks.back().parameters.push_back(id);
    return id;
  }

  const Architecture& arch_;
  ModelSpec spec_;
};

// Whatever decides a block's code or shapes stands in its trace; the last number has a digit for each thing that is
// there or not.
std::string layer_trace(const Architecture& arch, std::int64_t layer) {
  return fmt::format("layer {} h{} q{} k{} d{} f{} w{} a{} {:d}{:d}{:d}{:d}{:d}{:d}", static_cast<int>(arch.family),
                     arch.hidden, arch.heads, arch.kv_heads, arch.head_dim, arch.ffn,
                     arch.window[static_cast<std::size_t>(layer)], static_cast<int>(arch.activation), arch.qkv_bias,
                     arch.output_bias, arch.mlp_bias, arch.qk_norm, arch.norm_before, arch.residual_dropout > 0);
}
std::string edge_trace(const Architecture& arch, const char* kind) {
  return fmt::format("{} {} h{} v{} e{} p{} {:d}{:d}{:d}", kind, static_cast<int>(arch.family), arch.hidden,
                     arch.vocabulary, arch.embedding_width, arch.rotary ? 0 : arch.max_positions, arch.tied,
                     arch.final_norm, arch.embedding_dropout > 0);
}

ModelSpec make_gpt2(const Architecture& arch) {
  SpecBuilder builder(arch);
  // Projections back into the residual stream start smaller, by the number of residual additions.
  const double residual_std = arch.init_std / std::sqrt(2.0 * static_cast<double>(arch.layers));
  builder.open(BlockKind::kEmbedding, -1, edge_trace(arch, "embedding"));
  const Id tokens = builder.table("transformer.wte.weight", arch.vocabulary, arch.hidden, -1, arch.tied);
  builder.table("transformer.wpe.weight", arch.max_positions, arch.hidden, -1, false);
  for (std::int64_t i = 0; i < arch.layers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    builder.open(BlockKind::kLayer, static_cast<Id>(i), layer_trace(arch, i));
    const auto conv = [&](const std::string& name, std::int64_t in, std::int64_t out, double std) {
      builder.matrix(layer + name + ".weight", in, out, std, -1);
      builder.vector(layer + name + ".bias", out, Fill::kZeros);
    };
    builder.norm(layer + "ln_1", true);
    conv("attn.c_attn", arch.hidden, 3 * arch.hidden, arch.init_std);
    conv("attn.c_proj", arch.hidden, arch.hidden, residual_std);
    builder.norm(layer + "ln_2", true);
    conv("mlp.c_fc", arch.hidden, arch.ffn, arch.init_std);
    conv("mlp.c_proj", arch.ffn, arch.hidden, residual_std);
  }
  builder.open(BlockKind::kHead, -1, edge_trace(arch, "head"));
  builder.norm("transformer.ln_f", true);
  builder.output(tokens, arch.hidden);
  return builder.take();
}

ModelSpec make_opt(const Architecture& arch) {
  SpecBuilder builder(arch);
  const std::string decoder = "model.decoder.";
  const std::int64_t width = arch.embedding_width != 0 ? arch.embedding_width : arch.hidden;
  builder.open(BlockKind::kEmbedding, -1, edge_trace(arch, "embedding"));
  const Id tokens = builder.table(decoder + "embed_tokens.weight", arch.vocabulary, width, arch.pad_token, arch.tied);
  if (arch.embedding_width != 0) builder.linear(decoder + "project_in", arch.hidden, width, false);
  builder.table(decoder + "embed_positions.weight", arch.max_positions + arch.position_offset, arch.hidden, -1, false);
  for (std::int64_t i = 0; i < arch.layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", decoder, i);
    builder.open(BlockKind::kLayer, static_cast<Id>(i), layer_trace(arch, i));
    if (arch.norm_before) builder.norm(layer + "self_attn_layer_norm", true);
    builder.linears({{layer + "self_attn.q_proj", arch.hidden},
                     {layer + "self_attn.k_proj", arch.hidden},
                     {layer + "self_attn.v_proj", arch.hidden}},
                    arch.hidden, arch.qkv_bias);
    builder.linear(layer + "self_attn.out_proj", arch.hidden, arch.hidden, arch.output_bias);
    builder.norm(layer + (arch.norm_before ? "final_layer_norm" : "self_attn_layer_norm"), true);
    builder.linear(layer + "fc1", arch.ffn, arch.hidden, arch.mlp_bias);
    builder.linear(layer + "fc2", arch.hidden, arch.ffn, arch.mlp_bias);
    if (!arch.norm_before) builder.norm(layer + "final_layer_norm", true);
  }
  builder.open(BlockKind::kHead, -1, edge_trace(arch, "head"));
  if (arch.final_norm) builder.norm(decoder + "final_layer_norm", true);
  if (arch.embedding_width != 0) builder.linear(decoder + "project_out", width, arch.hidden, false);
  builder.output(tokens, width);
  return builder.take();
}

ModelSpec make_llama_like(const Architecture& arch) {
  SpecBuilder builder(arch);
  builder.open(BlockKind::kEmbedding, -1, edge_trace(arch, "embedding"));
  const Id tokens = builder.table("model.embed_tokens.weight", arch.vocabulary, arch.hidden, arch.pad_token, arch.tied);
  const std::int64_t q = arch.heads * arch.head_dim, kv = arch.kv_heads * arch.head_dim;
  for (std::int64_t i = 0; i < arch.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    builder.open(BlockKind::kLayer, static_cast<Id>(i), layer_trace(arch, i));
    builder.norm(layer + "input_layernorm", false);
    builder.linears(
        {{layer + "self_attn.q_proj", q}, {layer + "self_attn.k_proj", kv}, {layer + "self_attn.v_proj", kv}},
        arch.hidden, arch.qkv_bias);
    if (arch.qk_norm) {
      builder.head_norm(layer + "self_attn.q_norm");
      builder.head_norm(layer + "self_attn.k_norm");
    }
    builder.linear(layer + "self_attn.o_proj", arch.hidden, q, arch.output_bias);
    builder.norm(layer + "post_attention_layernorm", false);
    builder.linears({{layer + "mlp.gate_proj", arch.ffn}, {layer + "mlp.up_proj", arch.ffn}}, arch.hidden,
                    arch.mlp_bias);
    builder.linear(layer + "mlp.down_proj", arch.hidden, arch.ffn, arch.mlp_bias);
  }
  builder.open(BlockKind::kHead, -1, edge_trace(arch, "head"));
  builder.norm("model.norm", false);
  builder.output(tokens, arch.hidden);
  return builder.take();
}

}  // namespace

ModelSpec make_spec(const Architecture& arch) {
  switch (arch.family) {
    case Family::kGpt2: return make_gpt2(arch);
    case Family::kOpt: return make_opt(arch);
    default: return make_llama_like(arch);
  }
}

}  // namespace protrain
