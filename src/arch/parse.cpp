#include <map>

#include "arch/architecture.h"
#include "arch/config_reader.h"
#include "base/log.h"

namespace protrain {
namespace {

// Bounds that keep every product of sizes inside 63 bits and catch garbage; far above any model.
constexpr std::int64_t kMostWidth = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostVocabulary = INT32_MAX;  // token ids are int32
constexpr std::int64_t kMostPositions = INT32_MAX;

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> kFamilies{{"gpt2", Family::kGpt2},   {"opt", Family::kOpt},
                                                       {"llama", Family::kLlama}, {"mistral", Family::kMistral},
                                                       {"qwen2", Family::kQwen2}, {"qwen3", Family::kQwen3}};
  return kFamilies;
}

MlpActivation activation(const ConfigReader& config, const std::string& key, const std::string& fallback) {
  static const std::map<std::string, MlpActivation> kActivations{
      {"silu", MlpActivation::kSilu},          {"swish", MlpActivation::kSilu},
      {"gelu_new", MlpActivation::kGeluTanh},  {"gelu_pytorch_tanh", MlpActivation::kGeluTanh},
      {"gelu_fast", MlpActivation::kGeluTanh}, {"gelu", MlpActivation::kGelu},
      {"relu", MlpActivation::kRelu}};
  const auto found = kActivations.find(config.text(key, fallback));
  if (found == kActivations.end()) {
    config.unsupported(key, "supported are silu, swish, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu");
  }
  return found->second;
}

// No backward of attention applies a mask of its own, so the only supported value is 0.
void check_attention_dropout(const ConfigReader& config, const std::string& key, double fallback,
                             const ArchitectureOverrides& overrides) {
  const double dropout = overrides.attention_dropout.value_or(config.probability(key, fallback));
  if (dropout == 0) return;
  if (overrides.attention_dropout) {
    fail(ExitCode::kConfig, "attention_dropout: {} is not supported; set attention_dropout: 0", dropout);
  }
  config.unsupported(key, fmt::format("attention dropout must be off (here it is {}): set attention_dropout: 0 in the "
                                      "run's configuration, or \"{}\": 0 in the file",
                                      dropout, key));
}

// 0 is what a family without the dropout does anyway.
void refuse_without_effect(std::string_view key, std::optional<double> asked, double taken, std::string_view family) {
  if (!asked || *asked == taken) return;
  fail(ExitCode::kConfig, "{}: {} would have no effect: models of type {} have no such dropout; remove the key", key,
       *asked, family);
}

void check_head_width(const ConfigReader& config, const Architecture& arch, const std::string& key) {
  if (arch.hidden % arch.heads != 0) config.wrong(key, fmt::format("a divisor of the hidden size {}", arch.hidden));
}

std::int64_t pad_token(const ConfigReader& config, std::int64_t vocabulary, std::int64_t fallback) {
  if (!config.contains("pad_token_id")) return fallback < vocabulary ? fallback : -1;
  if (!config.has("pad_token_id")) return -1;
  const std::int64_t token = config.integer("pad_token_id", -1);
  if (token < -vocabulary || token >= vocabulary) {
    config.wrong("pad_token_id", fmt::format("null or a token id below vocab_size {}", vocabulary));
  }
  return token < 0 ? token + vocabulary : token;  // negative ids count from the end, as torch's padding_idx
}

double positive(const ConfigReader& config, const std::string& key, double fallback) {
  const double value = config.number(key, fallback);
  if (value <= 0) config.wrong(key, "a number above 0");
  return value;
}

RopeConfig parse_rope(const ConfigReader& config, std::int64_t max_positions) {
  const bool old = config.has("rope_scaling");
  const ConfigReader dict = config.object(old ? "rope_scaling" : "rope_parameters");
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (dict.contains(layer_type)) dict.unsupported(layer_type, "one set of rotary parameters serves all layers");
  }
  RopeConfig rope;
  rope.theta = dict.has("rope_theta") ? positive(dict, "rope_theta", 0) : positive(config, "rope_theta", 10000);
  if (rope.theta == 1) config.wrong("rope_theta", "a number other than 1");
  for (const ConfigReader* reader : {&dict, &config}) {
    if (reader->number("partial_rotary_factor", 1) != 1) {
      reader->unsupported("partial_rotary_factor", "whole heads are rotated (1)");
    }
  }
  const std::string key = dict.has("rope_type") ? "rope_type" : "type";
  const std::string type = dict.text(key, "default");
  static const std::map<std::string, RopeConfig::Type> kTypes{{"default", RopeConfig::Type::kDefault},
                                                              {"linear", RopeConfig::Type::kLinear},
                                                              {"llama3", RopeConfig::Type::kLlama3},
                                                              {"yarn", RopeConfig::Type::kYarn}};
  const auto found = kTypes.find(type);
  if (found == kTypes.end()) dict.unsupported(key, "supported are default, linear, llama3, yarn");
  rope.type = found->second;
  if (rope.type == RopeConfig::Type::kDefault) return rope;

  // A value beside the dictionary wins over the one in it.
  const ConfigReader& outer = config.has("original_max_position_embeddings") ? config : dict;
  rope.original_max_positions = positive(outer, "original_max_position_embeddings", static_cast<double>(max_positions));
  const bool from_ratio = rope.type == RopeConfig::Type::kYarn && dict.contains("factor") && !dict.has("factor");
  if (!from_ratio && !dict.has("factor")) dict.wrong("factor", "a number of at least 1");
  rope.factor =
      from_ratio ? static_cast<double>(max_positions) / rope.original_max_positions : positive(dict, "factor", 1);
  if (rope.type == RopeConfig::Type::kLlama3) {
    for (const char* required : {"low_freq_factor", "high_freq_factor"}) {
      if (!dict.has(required)) dict.wrong(required, "a number above 0");
    }
    rope.low_freq_factor = positive(dict, "low_freq_factor", 1);
    rope.high_freq_factor = positive(dict, "high_freq_factor", 4);
    if (rope.high_freq_factor <= rope.low_freq_factor) dict.wrong("high_freq_factor", "above low_freq_factor");
  }
  if (rope.type == RopeConfig::Type::kYarn) {
    const double fast = dict.number("beta_fast", 0), slow = dict.number("beta_slow", 0);
    if (fast < 0) dict.wrong("beta_fast", "a number above 0");
    if (slow < 0) dict.wrong("beta_slow", "a number above 0");
    if (fast != 0) rope.beta_fast = fast;
    if (slow != 0) rope.beta_slow = slow;
    rope.mscale = dict.number("mscale", 0);
    rope.mscale_all_dim = dict.number("mscale_all_dim", 0);
    rope.truncate = dict.flag("truncate", true);
    if (dict.has("attention_factor")) rope.attention_factor = positive(dict, "attention_factor", 1);
  }
  return rope;
}

std::vector<std::int64_t> parse_windows(const ConfigReader& config, const Architecture& arch) {
  std::vector<std::int64_t> window(static_cast<std::size_t>(arch.layers), 0);
  const bool listed = arch.family == Family::kQwen2 || arch.family == Family::kQwen3;
  if (!listed && arch.family != Family::kMistral) return window;

  constexpr std::int64_t kDefaultWindow = 4096;
  bool on = arch.family == Family::kMistral || config.flag("use_sliding_window", false);
  if (config.contains("sliding_window") && !config.has("sliding_window")) on = false;
  const std::int64_t size = config.size("sliding_window", kMostPositions, kDefaultWindow);
  const std::int64_t first = listed ? config.integer("max_window_layers", 28) : 0;
  const std::vector<std::string> types = listed ? config.texts("layer_types") : std::vector<std::string>{};
  if (!types.empty() && std::ssize(types) != arch.layers) {
    config.wrong("layer_types", fmt::format("a list of num_hidden_layers = {} entries", arch.layers));
  }
  for (std::int64_t i = 0; i < arch.layers; ++i) {
    bool sliding = on && i >= first;
    if (!types.empty()) {
      const std::string& type = types[static_cast<std::size_t>(i)];
      if (type != "full_attention" && type != "sliding_attention") {
        config.unsupported("layer_types", "supported are full_attention and sliding_attention");
      }
      sliding = type == "sliding_attention";
      if (sliding && !on) {
        config.wrong("layer_types", "without sliding_attention unless use_sliding_window and sliding_window are set");
      }
    }
    if (sliding) window[static_cast<std::size_t>(i)] = size;
  }
  return window;
}

Architecture parse_gpt2(const ConfigReader& config, const ArchitectureOverrides& overrides) {
  // The general names are aliases of this family's own.
  const auto name = [&](const char* own, const char* alias) {
    return config.has(own) ? own : config.has(alias) ? alias : own;
  };
  Architecture arch;
  arch.hidden = config.size(name("n_embd", "hidden_size"), kMostWidth);
  arch.layers = config.size(name("n_layer", "num_hidden_layers"), kMostLayers);
  const std::string heads = name("n_head", "num_attention_heads");
  arch.heads = arch.kv_heads = config.size(heads, kMostWidth);
  check_head_width(config, arch, heads);
  arch.head_dim = arch.hidden / arch.heads;
  arch.ffn = config.size("n_inner", kMostWidth, 4 * arch.hidden);
  arch.vocabulary = config.size("vocab_size", kMostVocabulary);
  arch.max_positions = config.size(name("n_positions", "max_position_embeddings"), kMostPositions, 1024);
  arch.norm_epsilon = positive(config, "layer_norm_epsilon", 1e-5);
  arch.rotary = false;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = true;
  arch.tied = config.flag("tie_word_embeddings", true);
  arch.activation = activation(config, "activation_function", "gelu_new");
  arch.embedding_dropout = overrides.embedding_dropout.value_or(config.probability("embd_pdrop", 0.1));
  arch.residual_dropout = overrides.residual_dropout.value_or(config.probability("resid_pdrop", 0.1));
  arch.init_std = config.number("initializer_range", 0.02);
  check_attention_dropout(config, "attn_pdrop", 0.1, overrides);
  if (!config.flag("scale_attn_weights", true)) config.unsupported("scale_attn_weights", "only true is");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.flag(key, false)) config.unsupported(key, "only false is");
  }
  return arch;
}

Architecture parse_opt(const ConfigReader& config, const ArchitectureOverrides& overrides) {
  Architecture arch;
  arch.hidden = config.size("hidden_size", kMostWidth);
  arch.layers = config.size("num_hidden_layers", kMostLayers);
  arch.heads = arch.kv_heads = config.size("num_attention_heads", kMostWidth);
  check_head_width(config, arch, "num_attention_heads");
  arch.head_dim = arch.hidden / arch.heads;
  arch.ffn = config.size("ffn_dim", kMostWidth);
  arch.vocabulary = config.size("vocab_size", kMostVocabulary);
  arch.max_positions = config.size("max_position_embeddings", kMostPositions, 2048);
  arch.rotary = false;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = config.flag("enable_bias", true);
  arch.tied = config.flag("tie_word_embeddings", true);
  arch.activation = activation(config, "activation_function", "relu");
  arch.residual_dropout = overrides.residual_dropout.value_or(config.probability("dropout", 0.1));
  arch.init_std = config.number("init_std", 0.02);
  arch.pad_token = pad_token(config, arch.vocabulary, 1);
  arch.norm_before = config.flag("do_layer_norm_before", true);
  arch.final_norm = arch.norm_before && !config.flag("_remove_final_layer_norm", false);
  arch.position_offset = 2;
  const std::int64_t width = config.size("word_embed_proj_dim", kMostWidth, arch.hidden);
  arch.embedding_width = width == arch.hidden ? 0 : width;
  check_attention_dropout(config, "attention_dropout", 0, overrides);
  if (!config.flag("layer_norm_elementwise_affine", true)) {
    config.unsupported("layer_norm_elementwise_affine", "norms have weights (true)");
  }
  if (config.number("layerdrop", 0) != 0) config.unsupported("layerdrop", "every layer runs in every step (0)");
  return arch;
}

Architecture parse_llama_like(const ConfigReader& config, Family family, const ArchitectureOverrides& overrides) {
  struct Defaults {
    std::int64_t kv_heads, head_dim, max_positions;  // kv_heads 0: as many as heads; head_dim 0: hidden / heads
  };
  static const std::map<Family, Defaults> kDefaults{{Family::kLlama, {0, 0, 2048}},
                                                    {Family::kMistral, {8, 0, 4096 * 32}},
                                                    {Family::kQwen2, {32, 0, 32768}},
                                                    {Family::kQwen3, {32, 128, 32768}}};
  const Defaults& defaults = kDefaults.at(family);
  Architecture arch;
  arch.family = family;
  arch.hidden = config.size("hidden_size", kMostWidth);
  arch.layers = config.size("num_hidden_layers", kMostLayers);
  arch.heads = config.size("num_attention_heads", kMostWidth);
  // An explicit null means as many as heads, in every family.
  const bool as_heads = defaults.kv_heads == 0 || config.contains("num_key_value_heads");
  arch.kv_heads = config.size("num_key_value_heads", kMostWidth, as_heads ? arch.heads : defaults.kv_heads);
  if (arch.heads % arch.kv_heads != 0) {
    config.wrong("num_key_value_heads", fmt::format("a divisor of num_attention_heads {} (its default is {})",
                                                    arch.heads, as_heads ? arch.heads : defaults.kv_heads));
  }
  if (!config.has("head_dim") && defaults.head_dim == 0) check_head_width(config, arch, "num_attention_heads");
  arch.head_dim =
      config.size("head_dim", kMostWidth, defaults.head_dim != 0 ? defaults.head_dim : arch.hidden / arch.heads);
  if (arch.head_dim % 2 != 0) {
    config.wrong("head_dim", fmt::format("even: rotary positions turn pairs (it is {} here)", arch.head_dim));
  }
  if (arch.head_dim * arch.heads > kMostWidth) config.wrong("head_dim", "a sensible width");
  arch.ffn = config.size("intermediate_size", kMostWidth);
  arch.vocabulary = config.size("vocab_size", kMostVocabulary);
  arch.max_positions = config.size("max_position_embeddings", kMostPositions, defaults.max_positions);
  arch.norm_epsilon = positive(config, "rms_norm_eps", 1e-6);
  arch.rope = parse_rope(config, arch.max_positions);
  arch.window = parse_windows(config, arch);
  const bool has_attention_bias = family == Family::kLlama || family == Family::kQwen3;
  arch.output_bias = has_attention_bias && config.flag("attention_bias", false);
  arch.qkv_bias = arch.output_bias || family == Family::kQwen2;
  arch.mlp_bias = family == Family::kLlama && config.flag("mlp_bias", false);
  arch.qk_norm = family == Family::kQwen3;
  arch.tied = config.flag("tie_word_embeddings", false);
  arch.activation = activation(config, "hidden_act", "silu");
  arch.init_std = config.number("initializer_range", 0.02);
  arch.pad_token = pad_token(config, arch.vocabulary, -1);
  check_attention_dropout(config, "attention_dropout", 0, overrides);
  // It cut matrices into slices whose products are the same; transformers' layers no longer read it.
  const std::int64_t slices = config.size("pretraining_tp", kMostWidth, 1);
  if (slices != 1) {
    log::warning("{}: \"pretraining_tp\" {} has no effect, as in transformers: its sliced products are the whole ones",
                 config.file(), slices);
  }
  return arch;
}

}  // namespace

Architecture parse_architecture(const std::string& config_json, const std::string& file,
                                const ArchitectureOverrides& overrides) {
  const ConfigReader config(config_json, file);
  std::string supported;
  for (const auto& [name, family] : families()) supported += (supported.empty() ? "" : ", ") + name;
  if (!config.has("model_type")) config.wrong("model_type", "one of " + supported);
  const auto found = families().find(config.text("model_type", ""));
  if (found == families().end()) config.unsupported("model_type", "supported are " + supported);
  if (config.has("quantization_config")) {
    config.unsupported("quantization_config", "convert the weights to bf16, fp16 or fp32 and remove the key");
  }
  Architecture arch;
  switch (found->second) {
    case Family::kGpt2: arch = parse_gpt2(config, overrides); break;
    case Family::kOpt: arch = parse_opt(config, overrides); break;
    default: arch = parse_llama_like(config, found->second, overrides); break;
  }
  arch.family = found->second;
  refuse_without_effect("embedding_dropout", overrides.embedding_dropout, arch.embedding_dropout, found->first);
  refuse_without_effect("residual_dropout", overrides.residual_dropout, arch.residual_dropout, found->first);
  arch.window.resize(static_cast<std::size_t>(arch.layers), 0);
  if (arch.init_std < 0) config.wrong(arch.family == Family::kOpt ? "init_std" : "initializer_range", "0 or more");
  return arch;
}

}  // namespace protrain
