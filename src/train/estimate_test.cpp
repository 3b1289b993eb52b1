// The estimate from shapes (search/roofline.h) against what the CPU device records of real blocks. What differs on
// CUDA: there norms, rotations and activations are one kernel each with no intermediate tensors, backward of an
// activation and of a norm with a residual works in place, and attention's scratch is that of cuDNN or flash; so of the
// CPU's workspace only forward and head can be held against the estimate, and its backward only from above. The bytes
// of CUDA itself are in search/roofline_test.cpp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

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
constexpr double kSavedTolerance = 0.15, kWorkspaceTolerance = 0.35;
constexpr Bytes kGrain = 8 * kKiB;  // scalars, rounding up

class Estimate : public ::testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 2, .deterministic = false});
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

  const BlockSpec& block_of(const CallKey& key) const {
    return *std::ranges::find(spec_.blocks, key.trace, &BlockSpec::trace);
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

TEST_P(Estimate, HasTheCallsThatAreRecorded) {
  EXPECT_EQ(recorded_.calls.size(), estimated_.calls.size());
  for (const Profile::Call& call : recorded_.calls) EXPECT_NO_THROW(estimated_.find(call.key)) << call.key.trace;
  EXPECT_EQ(recorded_.tables, estimated_.tables);
}

TEST_P(Estimate, OfWhatIsSavedIsThatOfTheBlocks) {
  for (const Profile::Call& call : recorded_.calls) {
    expect_near(estimated_.find(call.key).saved, call.memory.saved, kSavedTolerance, call.key);
  }
}

TEST_P(Estimate, OfForwardsWorkspaceIsThatOfTheBlocks) {
  for (const Profile::Call& call : recorded_.calls) {
    if (block_of(call.key).kind != BlockKind::kLayer || call.key.pass != Pass::kForward) continue;
    expect_near(estimated_.find(call.key).workspace, call.memory.workspace, kWorkspaceTolerance, call.key);
  }
}

TEST_P(Estimate, OfBackwardsWorkspaceIsNoMoreThanTheBlocksOnTheCpu) {
  for (const Profile::Call& call : recorded_.calls) {
    const Bytes estimate = estimated_.find(call.key).workspace;
    if (std::getenv("PROTRAIN_TEST_TABLE"))
      std::printf("%s pass %d light %d training %d: workspace %ld for %ld, saved %ld for %ld\n", call.key.trace.c_str(),
                  static_cast<int>(call.key.pass), call.key.light, call.key.training, static_cast<long>(estimate),
                  static_cast<long>(call.memory.workspace), static_cast<long>(estimated_.find(call.key).saved),
                  static_cast<long>(call.memory.saved));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Estimate, ::testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace protrain
