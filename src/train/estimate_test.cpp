// The estimate from shapes (search/roofline.h), which is one for CUDA, against what the CPU device records of real
// blocks in fp32. What differs: the CPU has an intermediate tensor inside a gated activation and more of them in its
// backward, log-probabilities beside the head's logits, and another attention kernel. The bytes of CUDA itself are in
// search/roofline_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "model/model.h"
#include "profile/memory.h"
#include "search/roofline.h"
#include "tensor/tensor.h"

namespace protrain {
namespace {

struct Family {
  const char* name;
  const char* config;
};

const Family kFamilies[] = {
    {"gpt2", R"({"model_type": "gpt2", "n_embd": 192, "n_layer": 1, "n_head": 3, "n_positions": 64, "vocab_size": 503,
       "attn_pdrop": 0, "resid_pdrop": 0.1, "embd_pdrop": 0.1})"},
    {"opt", R"({"model_type": "opt", "hidden_size": 192, "ffn_dim": 640, "num_hidden_layers": 1,
       "num_attention_heads": 3, "max_position_embeddings": 64, "vocab_size": 503, "dropout": 0.1,
       "attention_dropout": 0, "pad_token_id": 1, "word_embed_proj_dim": 192})"},
    {"opt_post_norm", R"({"model_type": "opt", "hidden_size": 192, "ffn_dim": 640, "num_hidden_layers": 1,
       "num_attention_heads": 3, "max_position_embeddings": 64, "vocab_size": 503, "dropout": 0,
       "attention_dropout": 0, "pad_token_id": 1, "word_embed_proj_dim": 96, "do_layer_norm_before": false})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 192, "intermediate_size": 512,
       "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2})"},
    {"qwen2", R"({"model_type": "qwen2", "vocab_size": 503, "hidden_size": 192, "intermediate_size": 512,
       "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": true})"},
    {"qwen3", R"({"model_type": "qwen3", "vocab_size": 503, "hidden_size": 192, "intermediate_size": 512,
       "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 48})"},
};

constexpr BatchShape kBatch{4, 64, 4, false};
constexpr double kSavedTolerance = 0.01, kTolerance = 0.02, kBackwardTolerance = 0.35;
constexpr Bytes kGrain = 8 * kKiB;  // scalars, rounding up
constexpr std::int64_t kFfn = 512;  // of the gated families

class Estimate : public ::testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 1, .deterministic = false});
    run_.compute = DType::kF32;
    run_.accumulation = 2;
    run_.train_shapes = run_.eval_shapes = {kBatch};
    const Architecture arch = parse_architecture(GetParam().config, "config.json");
    spec_ = make_spec(arch);
    const auto device = make_cpu_device();
    const auto book = std::make_shared<TraceBook>(DeviceKind::kCpu);
    const auto tables = std::make_shared<model::RopeTables>(arch, DeviceKind::kCpu, kBatch.row_tokens);
    const auto blocks = make_blocks(arch, spec_,
                                    {.compute = run_.compute,
                                     .device = DeviceKind::kCpu,
                                     .positions = kBatch.row_tokens,
                                     .traces = book,
                                     .tables = tables});
    recorded_ = record_memory(spec_, blocks, *book, run_, *device, tables->bytes());
    Hardware hardware;
    hardware.bf16_flops = hardware.f32_flops = hardware.attention_flops = hardware.device_bytes = 1e12;
    hardware.h2d_bytes = hardware.d2h_bytes = hardware.host_bytes = 1e10;
    estimated_ = estimate_profile(arch, spec_, run_, hardware).memory;
  }

  bool gated() const { return std::string_view(GetParam().config).find("intermediate_size") != std::string_view::npos; }

  // Every recorded call of this kind with the workspace that is estimated.
  template <typename Each>
  void for_each(Pass pass, BlockKind kind, const Each& each) const {
    int found = 0;
    for (const Profile::Call& call : recorded_.calls) {
      if (call.key.pass != pass) continue;
      if (std::ranges::find(spec_.blocks, call.key.trace, &BlockSpec::trace)->kind != kind) continue;
      each(call.key, estimated_.find(call.key).workspace, call.memory);
      ++found;
    }
    EXPECT_GT(found, 0);
  }
  static void expect_near(Bytes estimate, Bytes recorded, double tolerance, const CallKey& key) {
    EXPECT_LE(std::abs(static_cast<double>(estimate - recorded)),
              tolerance * static_cast<double>(recorded) + static_cast<double>(kGrain))
        << key.trace << " pass " << static_cast<int>(key.pass) << " light " << key.light << " training " << key.training
        << ": " << estimate << " for " << recorded;
  }

  RunShape run_;
  ModelSpec spec_;
  Profile recorded_, estimated_;
};

TEST_P(Estimate, HasEveryCallThatIsRecorded) {
  for (const Profile::Call& call : recorded_.calls) {
    EXPECT_NO_THROW(estimated_.find(call.key)) << call.key.trace;
  }
  EXPECT_EQ(recorded_.tables, estimated_.tables);
}

TEST_P(Estimate, OfWhatIsSavedIsThatOfTheBlocks) {
  for_each(Pass::kForwardKeep, BlockKind::kLayer, [&](const CallKey& key, Bytes, const CallMemory& recorded) {
    expect_near(estimated_.find(key).saved, recorded.saved, kSavedTolerance, key);
  });
}

TEST_P(Estimate, OfForwardsWorkspaceIsThatOfTheBlocks) {
  // Beside a gated activation's result the CPU has that of its gate.
  const Bytes more = gated() ? kBatch.tokens() * kFfn * 4 : 0;
  for_each(Pass::kForward, BlockKind::kLayer, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
    expect_near(estimate + more, recorded.workspace, kTolerance, key);
  });
  if (gated()) return;
  for_each(Pass::kForwardKeep, BlockKind::kLayer, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
    expect_near(estimate, recorded.workspace, kTolerance, key);
  });
}

TEST_P(Estimate, OfBackwardsWorkspaceIsNearThatOfTheBlocks) {
  for_each(Pass::kBackward, BlockKind::kLayer, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
    if (!gated()) return expect_near(estimate, recorded.workspace, kBackwardTolerance, key);
    EXPECT_LE(estimate, recorded.workspace) << key.trace;
    EXPECT_GE(2.1 * static_cast<double>(estimate), static_cast<double>(recorded.workspace)) << key.trace;
  });
}

TEST_P(Estimate, OfTheEndsWorkspaceIsThatOfTheBlocks) {
  const Bytes tile = kBatch.tokens() * spec_.vocabulary * 4;  // log-probabilities
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for_each(pass, BlockKind::kHead, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
      expect_near(estimate + tile, recorded.workspace, kTolerance, key);
    });
  }
  for_each(Pass::kForward, BlockKind::kEmbedding, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
    expect_near(estimate, recorded.workspace, kTolerance, key);
  });
  for_each(Pass::kBackward, BlockKind::kEmbedding, [&](const CallKey& key, Bytes estimate, const CallMemory& recorded) {
    expect_near(estimate, recorded.workspace, kBackwardTolerance, key);
  });
}

INSTANTIATE_TEST_SUITE_P(Families, Estimate, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace protrain
