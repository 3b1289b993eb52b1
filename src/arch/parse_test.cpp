// What parse_architecture reads from real and from wrong configurations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arch/architecture.h"
#include "base/error.h"
#include "base/log.h"

namespace protrain {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::string llama(const std::string& more = "") {
  return R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
             "num_attention_heads": 4, "vocab_size": 503)" +
         more + "}";
}

// The error's message; the code is checked.
std::string refusal(const std::string& config, ExitCode code) {
  try {
    parse_architecture(config, "m/config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "not refused: " << config;
  return "";
}

TEST(ParseArchitecture, AnAbsentKeyTakesTheDefaultOfItsFamily) {
  const Architecture arch = parse_architecture(llama(), "config.json");
  EXPECT_EQ(arch.kv_heads, 4);
  EXPECT_EQ(arch.head_dim, 16);
  EXPECT_EQ(arch.norm_epsilon, 1e-6);
  EXPECT_EQ(arch.rope.theta, 10000);
  EXPECT_EQ(arch.pad_token, -1);
  EXPECT_FALSE(arch.tied);
  EXPECT_THAT(arch.window, Each(0));
}

TEST(ParseArchitecture, HeadDimOfTheFileWinsOverTheQuotient) {
  EXPECT_EQ(parse_architecture(llama(R"(, "head_dim": 24)"), "f").head_dim, 24);
  EXPECT_EQ(parse_architecture(llama(R"(, "head_dim": null)"), "f").head_dim, 16);
}

TEST(ParseArchitecture, WeightsMayBeDrawnWithoutAnySpread) {
  EXPECT_EQ(parse_architecture(llama(R"(, "initializer_range": 0)"), "f").init_std, 0);
  EXPECT_EQ(parse_architecture(llama(), "f").init_std, 0.02);
}

TEST(ParseArchitecture, QwenThreeHasHeadsOf128UnlessToldOtherwise) {
  std::string config = llama(R"(, "num_key_value_heads": 2)");
  config.replace(config.find("llama"), 5, "qwen3");
  const Architecture arch = parse_architecture(config, "f");
  EXPECT_EQ(arch.head_dim, 128);
  EXPECT_TRUE(arch.qk_norm);
  EXPECT_FALSE(arch.qkv_bias);
}

TEST(ParseArchitecture, RopeIsReadFromBothGenerationsOfKeys) {
  const Architecture old = parse_architecture(
      llama(R"(, "rope_theta": 5e5, "max_position_embeddings": 131072, "rope_scaling": {"factor": 32.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"),
      "f");
  const Architecture now = parse_architecture(
      llama(R"(, "max_position_embeddings": 131072, "rope_parameters": {"rope_theta": 5e5, "factor": 32.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"})"),
      "f");
  for (const Architecture& arch : {old, now}) {
    EXPECT_EQ(arch.rope.type, RopeConfig::Type::kLlama3);
    EXPECT_EQ(arch.rope.theta, 5e5);
    EXPECT_EQ(arch.rope.factor, 32);
    EXPECT_EQ(arch.rope.original_max_positions, 8192);
  }
}

TEST(ParseArchitecture, YarnTakesItsFactorFromTheRatioWhenItIsNull) {
  const Architecture arch = parse_architecture(
      llama(R"(, "max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": null, "beta_fast": null,
               "original_max_position_embeddings": 1024})"),
      "f");
  EXPECT_EQ(arch.rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(arch.rope.factor, 4);
  EXPECT_EQ(arch.rope.beta_fast, 32);
}

TEST(ParseArchitecture, MistralSlidesUnlessTheWindowIsNull) {
  const auto windows = [](const std::string& more) {
    std::string config = llama(R"(, "num_key_value_heads": 2)" + more);
    config.replace(config.find("llama"), 5, "mistral");
    return parse_architecture(config, "f").window;
  };
  EXPECT_THAT(windows(""), ElementsAre(4096, 4096, 4096));
  EXPECT_THAT(windows(R"(, "sliding_window": 16)"), ElementsAre(16, 16, 16));
  EXPECT_THAT(windows(R"(, "sliding_window": null)"), ElementsAre(0, 0, 0));
}

TEST(ParseArchitecture, QwenSlidesInLayersThatItsKeysName) {
  const auto windows = [](const std::string& more) {
    std::string config = llama(R"(, "num_key_value_heads": 2, "sliding_window": 16)" + more);
    config.replace(config.find("llama"), 5, "qwen2");
    return parse_architecture(config, "f").window;
  };
  EXPECT_THAT(windows(R"(, "max_window_layers": 1)"), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"(, "use_sliding_window": true, "max_window_layers": 1)"), ElementsAre(0, 16, 16));
  EXPECT_THAT(windows(R"(, "use_sliding_window": true,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])"),
              ElementsAre(16, 0, 16));
}

TEST(ParseArchitecture, WhatIsNotSupportedIsRefusedWithKeyValueAndAWayOut) {
  struct Case {
    std::string config;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases{
      {R"({"model_type": "mamba"})",
       {"m/config.json", "model_type", "mamba", "gpt2, llama, mistral, opt, qwen2, qwen3"}},
      {llama(R"(, "attention_dropout": 0.1)"), {"attention_dropout", "0.1", "attention_dropout: 0"}},
      {llama(R"(, "rope_scaling": {"type": "dynamic", "factor": 2})"), {"rope_scaling.type", "dynamic", "yarn"}},
      {llama(R"(, "rope_parameters": {"rope_type": "longrope"})"), {"rope_parameters.rope_type", "longrope", "llama3"}},
      {llama(R"(, "quantization_config": {"quant_method": "gptq"})"), {"quantization_config", "gptq", "bf16"}},
      {llama(R"(, "hidden_act": "mish")"), {"hidden_act", "mish", "silu"}},
      {llama(R"(, "partial_rotary_factor": 0.5)"), {"partial_rotary_factor", "0.5"}},
      {R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 7})",
       {"attn_pdrop", "\"attn_pdrop\": 0"}},
      {R"({"model_type": "opt", "hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "vocab_size": 7, "layerdrop": 0.1})",
       {"layerdrop", "0.1"}},
  };
  for (const Case& one : cases) {
    const std::string message = refusal(one.config, ExitCode::kConfig);
    for (const std::string& word : one.words) EXPECT_THAT(message, HasSubstr(word));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ParseArchitecture, WhatIsWrongOrMissingIsNamed) {
  struct Case {
    std::string config;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases{
      {"{", {"m/config.json:1", "not JSON"}},
      {"[]", {"JSON object"}},
      {"{}", {"model_type", "absent"}},
      {R"({"model_type": "llama"})", {"hidden_size", "absent"}},
      {llama(R"(, "num_key_value_heads": 3)"), {"num_key_value_heads", "3", "divisor of num_attention_heads 4"}},
      {llama(R"(, "num_key_value_heads": "2")"), {"num_key_value_heads", "\"2\"", "whole number"}},
      {llama(R"(, "head_dim": 15)"), {"head_dim", "15", "even"}},
      {llama(R"(, "pad_token_id": 503)"), {"pad_token_id", "503", "vocab_size 503"}},
      {llama(R"(, "rms_norm_eps": 0)"), {"rms_norm_eps"}},
      {llama(R"(, "rope_scaling": {"type": "linear"})"), {"rope_scaling.factor", "absent"}},
      {llama(R"(, "rope_scaling": 4)"), {"rope_scaling", "object"}},
      {llama(R"(, "max_position_embeddings": 18446744073709551615)"), {"max_position_embeddings", "whole number"}},
      {llama(R"(, "max_position_embeddings": -5)"), {"max_position_embeddings", "-5"}},
      {R"({"model_type": "opt", "hidden_size": 9, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "vocab_size": 7})",
       {"num_attention_heads", "divisor of the hidden size 9"}},
  };
  for (const Case& one : cases) {
    const std::string message = refusal(one.config, ExitCode::kFiles);
    for (const std::string& word : one.words) EXPECT_THAT(message, HasSubstr(word));
  }
}

TEST(ParseArchitecture, ADropoutThatTheFamilyDoesNotHaveIsRefused) {
  const auto code_of = [](const std::string& config, const ArchitectureOverrides& overrides) {
    try {
      parse_architecture(config, "f", overrides);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kDone;
  };
  const std::string opt = R"({"model_type": "opt", "hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1,
                              "num_attention_heads": 2, "vocab_size": 7})";
  EXPECT_EQ(code_of(llama(), {.residual_dropout = 0.1}), ExitCode::kConfig);
  EXPECT_EQ(code_of(llama(), {.embedding_dropout = 0.1}), ExitCode::kConfig);
  EXPECT_EQ(code_of(llama(), {.residual_dropout = 0, .embedding_dropout = 0}), ExitCode::kDone);
  EXPECT_EQ(code_of(opt, {.residual_dropout = 0.2}), ExitCode::kDone);
  EXPECT_EQ(code_of(opt, {.embedding_dropout = 0.1}), ExitCode::kConfig);
}

TEST(ParseArchitecture, TheRunMaySwitchDropoutOff) {
  const std::string config = R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 7})";
  const Architecture arch = parse_architecture(config, "f", {.attention_dropout = 0, .residual_dropout = 0.25});
  EXPECT_EQ(arch.residual_dropout, 0.25);
  EXPECT_EQ(arch.embedding_dropout, 0.1);
}

TEST(ParseArchitecture, SlicedProductsOfPretrainingAreIgnoredWithAWord) {
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(parse_architecture(llama(R"(, "pretraining_tp": 1)"), "m/config.json").hidden, 64);
  EXPECT_THAT(lines, testing::IsEmpty());
  EXPECT_EQ(parse_architecture(llama(R"(, "pretraining_tp": 4)"), "m/config.json").hidden, 64);
  log::set_sink({});
  EXPECT_THAT(lines, ElementsAre(testing::StartsWith("m/config.json: \"pretraining_tp\" 4 has no effect")));
  EXPECT_THAT(refusal(llama(R"(, "pretraining_tp": 0)"), ExitCode::kFiles), HasSubstr("pretraining_tp"));
  EXPECT_THAT(refusal(llama(R"(, "pretraining_tp": "two")"), ExitCode::kFiles), HasSubstr("pretraining_tp"));
}

}  // namespace
}  // namespace protrain
