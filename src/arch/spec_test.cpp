// What make_spec and rope_table derive. Expected counts and frequencies were computed with transformers 5.24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "arch/architecture.h"

namespace protrain {
namespace {

using testing::ElementsAre;

constexpr const char* kLlama32 = R"({"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192,
  "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "torch_dtype": "bfloat16"})";
constexpr const char* kLlama3 = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null,
  "tie_word_embeddings": false, "pretraining_tp": 1})";
constexpr const char* kQwen25 = R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
  "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
  "max_position_embeddings": 131072, "max_window_layers": 28, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "use_sliding_window": false, "tie_word_embeddings": false})";
constexpr const char* kQwen3 = R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
  "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
  "max_position_embeddings": 40960, "max_window_layers": 36, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "rope_scaling": null, "sliding_window": null, "use_sliding_window": false, "tie_word_embeddings": false})";
constexpr const char* kMistral = R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false})";
constexpr const char* kOptSmall = R"({"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
  "num_attention_heads": 12, "vocab_size": 50272, "word_embed_proj_dim": 768, "max_position_embeddings": 2048,
  "do_layer_norm_before": true, "dropout": 0.1, "attention_dropout": 0.0, "init_std": 0.02, "layerdrop": 0.0,
  "pad_token_id": 1, "activation_function": "relu", "_remove_final_layer_norm": false})";
constexpr const char* kOptPost = R"({"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
  "num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 512, "max_position_embeddings": 2048,
  "do_layer_norm_before": false, "dropout": 0.1, "pad_token_id": 1})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
  "n_ctx": 1024, "vocab_size": 50257, "attn_pdrop": 0.0, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05, "initializer_range": 0.02, "activation_function": "gelu_new"})";

ModelSpec spec_of(const std::string& config) { return make_spec(parse_architecture(config, "config.json")); }

const ParameterSpec* find(const ModelSpec& spec, const std::string& name) {
  for (const ParameterSpec& parameter : spec.parameters) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

TEST(ModelSpec, RealModelsHaveTheirPublishedParameterCounts) {
  EXPECT_EQ(spec_of(kLlama32).parameter_count(), 3212749824);
  EXPECT_EQ(spec_of(kLlama3).parameter_count(), 8030261248);
  EXPECT_EQ(spec_of(kQwen25).parameter_count(), 7615616512);
  EXPECT_EQ(spec_of(kQwen3).parameter_count(), 8190735360);
  EXPECT_EQ(spec_of(kMistral).parameter_count(), 7241732096);
  EXPECT_EQ(spec_of(kOptSmall).parameter_count(), 125239296);
  EXPECT_EQ(spec_of(kOptPost).parameter_count(), 331196416);
  EXPECT_EQ(spec_of(kGpt2).parameter_count(), 124439808);
}

TEST(ModelSpec, EveryParameterIsInTheBlockThatUsesItFirstAndOrderIsThatOfUse) {
  for (const char* config : {kLlama32, kLlama3, kQwen25, kQwen3, kMistral, kOptSmall, kOptPost, kGpt2}) {
    const ModelSpec spec = spec_of(config);
    std::vector<Id> order;
    std::set<Id> seen;
    for (const BlockSpec& block : spec.blocks) {
      for (const Id id : block.parameters) {
        if (seen.insert(id).second) order.push_back(id);
      }
    }
    ASSERT_EQ(std::ssize(order), std::ssize(spec.parameters));
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_EQ(spec.blocks.front().kind, BlockKind::kEmbedding);
    EXPECT_EQ(spec.blocks.back().kind, BlockKind::kHead);
  }
}

TEST(ModelSpec, GroupsAreRunsOfNeighboursThatOneInputFeeds) {
  const ModelSpec spec = spec_of(kQwen25);
  const auto members = [&](const std::string& first) {
    std::vector<std::string> names;
    const Id id = static_cast<Id>(find(spec, first) - spec.parameters.data());
    for (const ParameterSpec& parameter : spec.parameters) {
      if (parameter.group == id) names.push_back(parameter.name);
    }
    return names;
  };
  const std::string layer = "model.layers.3.";
  EXPECT_THAT(members(layer + "self_attn.q_proj.weight"),
              ElementsAre(layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                          layer + "self_attn.v_proj.weight"));
  EXPECT_THAT(
      members(layer + "self_attn.q_proj.bias"),
      ElementsAre(layer + "self_attn.q_proj.bias", layer + "self_attn.k_proj.bias", layer + "self_attn.v_proj.bias"));
  EXPECT_THAT(members(layer + "mlp.gate_proj.weight"),
              ElementsAre(layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"));
  EXPECT_THAT(members(layer + "mlp.down_proj.weight"), ElementsAre(layer + "mlp.down_proj.weight"));
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const Id group = spec.parameters[i].group;
    ASSERT_LE(group, static_cast<Id>(i));
    EXPECT_EQ(spec.parameters[static_cast<std::size_t>(group)].group, group);
    EXPECT_TRUE(group == static_cast<Id>(i) || spec.parameters[i - 1].group == group) << spec.parameters[i].name;
  }
}

TEST(ModelSpec, MatricesAndTablesDecayNormsAndBiasesDoNot) {
  for (const char* config : {kLlama32, kQwen25, kQwen3, kOptPost, kGpt2}) {
    for (const ParameterSpec& parameter : spec_of(config).parameters) {
      EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
      EXPECT_EQ(parameter.fill == Fill::kNormal, parameter.shape.size() == 2) << parameter.name;
      EXPECT_EQ(parameter.fill == Fill::kZeros, parameter.name.ends_with(".bias")) << parameter.name;
    }
  }
}

TEST(ModelSpec, ResidualProjectionsOfGpt2StartSmaller) {
  const ModelSpec spec = spec_of(kGpt2);
  EXPECT_DOUBLE_EQ(find(spec, "transformer.h.5.attn.c_proj.weight")->fill_std, 0.02 / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(find(spec, "transformer.h.5.mlp.c_proj.weight")->fill_std, 0.02 / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(find(spec, "transformer.h.5.attn.c_attn.weight")->fill_std, 0.02);
  EXPECT_THAT(find(spec, "transformer.h.0.attn.c_attn.weight")->shape, ElementsAre(768, 2304));
}

TEST(ModelSpec, OptKeepsItsOffsetPaddingRowAndProjections) {
  const ModelSpec spec = spec_of(kOptPost);
  EXPECT_THAT(find(spec, "model.decoder.embed_positions.weight")->shape, ElementsAre(2050, 1024));
  EXPECT_EQ(find(spec, "model.decoder.embed_tokens.weight")->zero_row, 1);
  EXPECT_THAT(find(spec, "model.decoder.project_in.weight")->shape, ElementsAre(1024, 512));
  EXPECT_THAT(find(spec, "model.decoder.project_out.weight")->shape, ElementsAre(512, 1024));
  EXPECT_EQ(find(spec, "model.decoder.final_layer_norm.weight"), nullptr);
  EXPECT_EQ(spec.max_positions, 2048);
  EXPECT_NE(find(spec_of(kOptSmall), "model.decoder.final_layer_norm.weight"), nullptr);
}

TEST(ModelSpec, ATiedMatrixStandsInEmbeddingAndHead) {
  const ModelSpec tied = spec_of(kLlama32), untied = spec_of(kLlama3);
  EXPECT_EQ(tied.blocks.back().parameters.back(), 0);
  EXPECT_THAT(tied.tied_names, ElementsAre("lm_head.weight"));
  EXPECT_TRUE(untied.tied_names.empty());
  EXPECT_EQ(untied.parameters.back().name, "lm_head.weight");
}

TEST(ModelSpec, FlopsCountEveryMultipliedWeightSixTimesAndCausalAttention) {
  const ModelSpec tied = spec_of(kLlama32), untied = spec_of(kLlama3);
  EXPECT_DOUBLE_EQ(tied.flops_per_token(4096), 6.0 * 3212749824 + 6.0 * 28 * 3072 * 4096);
  EXPECT_DOUBLE_EQ(untied.flops_per_token(4096), 6.0 * (8030261248 - 128256L * 4096) + 6.0 * 32 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(spec_of(kGpt2).flops_per_token(0), 6.0 * (124439808 - 1024 * 768));
}

TEST(ModelSpec, TracesDifferWhereWindowsDo) {
  std::string config = kQwen3;
  config.replace(config.find("\"sliding_window\": null, \"use_sliding_window\": false, "),
                 std::string("\"sliding_window\": null, \"use_sliding_window\": false, ").size(),
                 "\"sliding_window\": 64, \"use_sliding_window\": true, ");
  config.replace(config.find("\"max_window_layers\": 36"), 23, "\"max_window_layers\": 2 ");
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.blocks[1].trace, spec.blocks[2].trace);
  EXPECT_NE(spec.blocks[2].trace, spec.blocks[3].trace);
}

TEST(ModelSpec, TracesDifferWhereAnOperatorIsThereOrNot) {
  const Architecture plain = parse_architecture(kGpt2, "config.json");
  const ModelSpec spec = make_spec(plain);
  const auto expect_other = [&](std::size_t block, const auto& change) {
    Architecture changed = plain;
    change(changed);
    EXPECT_NE(make_spec(changed).blocks[block].trace, spec.blocks[block].trace) << block;
  };
  expect_other(0, [](Architecture& a) { a.embedding_dropout = a.embedding_dropout > 0 ? 0 : 0.1; });
  expect_other(0, [](Architecture& a) { a.max_positions += 1; });
  expect_other(1, [](Architecture& a) { a.residual_dropout = a.residual_dropout > 0 ? 0 : 0.1; });
  expect_other(1, [](Architecture& a) { a.qkv_bias = !a.qkv_bias; });
  expect_other(1, [](Architecture& a) { a.mlp_bias = !a.mlp_bias; });
  expect_other(1, [](Architecture& a) { a.activation = MlpActivation::kRelu; });
  expect_other(spec.blocks.size() - 1, [](Architecture& a) { a.tied = !a.tied; });
}

void expect_frequencies(const RopeTable& table, const std::vector<double>& expected) {
  const std::vector<std::size_t> at{0, 1, 20, 30, 31, 32, 40, 63};
  for (std::size_t i = 0; i < at.size(); ++i) {
    EXPECT_NEAR(table.inverse_frequency[at[i]] / expected[i], 1, 3e-7) << at[i];
  }
}

TEST(RopeTable, FrequenciesAreThoseOfTransformers) {
  const auto table = [](const std::string& config) {
    const Architecture arch = parse_architecture(config, "config.json");
    return rope_table(arch.rope, arch.head_dim);
  };
  expect_frequencies(table(kLlama3),
                     {1.0, 0.8146172165870667, 0.016560440883040428, 0.002131119603291154, 0.0017360467463731766,
                      0.001414213445968926, 0.00027424818836152554, 2.4551407022954663e-06});
  expect_frequencies(table(kLlama32),
                     {1.0, 0.8146172165870667, 0.016560440883040428, 0.0012905480107292533, 0.000762541254516691,
                      0.000429556705057621, 8.570255886297673e-06, 7.672314694673332e-08});
  std::string yarn = kQwen25;
  yarn.insert(1, R"("rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, )");
  expect_frequencies(table(yarn),
                     {1.0, 0.8058422207832336, 0.01333521492779255, 0.0010643609566614032, 0.000802959781140089,
                      0.0006029411451891065, 4.4456985051510856e-05, 3.102344408034696e-07});
  EXPECT_DOUBLE_EQ(table(yarn).attention_factor, 1.138629436111989);
}

TEST(MakeSpec, ARotaryModelSaysForHowManyPositionsItWasMade) {
  const auto positions = [](const std::string& config) { return make_spec(parse_architecture(config, "f")); };
  EXPECT_EQ(positions(kLlama32).rotary_positions, 131072);  // llama3: as stated, not 32 x 8192
  EXPECT_EQ(positions(kLlama3).rotary_positions, 8192);
  EXPECT_EQ(positions(kLlama3).max_positions, 0);
  EXPECT_EQ(positions(kOptSmall).rotary_positions, 0);
  EXPECT_EQ(positions(kOptSmall).max_positions, 2048);
  const auto scaled = [&](const std::string& scaling) {
    std::string config = kQwen3;
    return positions(config.replace(config.find("null"), 4, scaling)).rotary_positions;
  };
  EXPECT_EQ(scaled("null"), 40960);
  EXPECT_EQ(scaled(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"), 131072);
  EXPECT_EQ(scaled(R"({"rope_type": "yarn", "factor": 1.25, "original_max_position_embeddings": 32768})"), 40960);
  EXPECT_EQ(scaled(R"({"rope_type": "linear", "factor": 2.0})"), 81920);
}

}  // namespace
}  // namespace protrain
