// The estimate against what runs on an H200 recorded: layouts and traces of bench/results/offload_h200 (*.plan.json.gz,
// *.trace.json.gz; medians of the tasks' times) and the log of bench/results/main_job_h200.
#include "search/roofline.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "plan/plan_json.h"
#include "schedule/layout.h"
#include "schedule/simulate.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(fs::path(__FILE__).parent_path() / "../.." / path).rdbuf();
  return text.str();
}

struct Recorded {
  std::string_view model;
  BatchShape batch;
  std::int64_t accumulation;
  // Bytes of regions.
  Bytes saved, forward, keep, backward, embedding_backward, head, tables;
  double forward_seconds, recompute_seconds, backward_seconds, head_seconds;
  bool rested;  // forward waits for updates half of the time, so it and the head come to a device that has rested
};

const Recorded kRecorded[] = {
    {"bench/main_job/llama-3.2-3b/config.json",
     {4, 4096, 4, false},
     4,
     1377436672,
     905969664,
     100663296,
     672662016,
     100663808,
     726794240,
     2097152,
     6.154e-3,
     5.084e-3,
     13.142e-3,
     63.03e-3,
     false},
    {"bench/offload/qwen2.5-14b/config.json",
     {4, 4096, 4, false},
     4,
     2267677696,
     1526726656,
     167772160,
     1076363776,
     167772672,
     802816000,
     2097152,
     15.566e-3,
     12.095e-3,
     32.278e-3,
     125.145e-3,
     false},
    {"bench/offload/llama-18b/config.json",
     {2, 4096, 2, false},
     1,
     1343816704,
     905969664,
     100663296,
     639107584,
     100663808,
     729874432,
     2097152,
     9.212e-3,
     8.292e-3,
     21.875e-3,
     19.407e-3,
     true},
};

class Roofline : public ::testing::TestWithParam<Recorded> {
 protected:
  StoredProfile estimate(const Recorded& recorded) const {
    const Architecture arch = parse_architecture(read(std::string(recorded.model)), std::string(recorded.model));
    RunShape run;
    run.compute = DType::kBf16;
    run.accumulation = recorded.accumulation;
    run.train_shapes = {recorded.batch};
    return estimate_profile(arch, make_spec(arch), run, parse_hardware(read("hardware/h200.json"), "h200.json"));
  }
  ModelSpec spec(const Recorded& recorded) const {
    return make_spec(parse_architecture(read(std::string(recorded.model)), std::string(recorded.model)));
  }
};

TEST_P(Roofline, KnowsTheBytesOfEveryCall) {
  const Recorded& recorded = GetParam();
  const ModelSpec spec = this->spec(recorded);
  const StoredProfile profile = estimate(recorded);
  const auto memory = [&](std::size_t block, Pass pass) {
    return profile.memory.find({spec.blocks.at(block).trace, pass, false, recorded.batch, true});
  };
  EXPECT_EQ(memory(1, Pass::kForwardKeep).saved, recorded.saved);
  EXPECT_EQ(memory(1, Pass::kForward).workspace, recorded.forward);
  EXPECT_EQ(memory(1, Pass::kForwardKeep).workspace, recorded.keep);
  EXPECT_EQ(memory(1, Pass::kBackward).workspace, recorded.backward);
  EXPECT_EQ(memory(0, Pass::kBackward).workspace, recorded.embedding_backward);
  EXPECT_EQ(memory(spec.blocks.size() - 1, Pass::kBackward).workspace, recorded.head);
  EXPECT_EQ(profile.memory.tables, recorded.tables);
}

TEST_P(Roofline, IsWithinFifteenPercentOfTheMeasuredTimes) {
  const Recorded& recorded = GetParam();
  const ModelSpec spec = this->spec(recorded);
  const StoredProfile profile = estimate(recorded);
  const auto expect = [&](std::size_t block, Pass pass, double measured, bool rested) {
    const Rates::Call call = profile.rates.find({spec.blocks.at(block).trace, pass, false, recorded.batch, true});
    EXPECT_NEAR((rested ? call.rested : call.steady) / measured, 1, 0.15)
        << "block " << block << " pass " << static_cast<int>(pass);
  };
  expect(1, Pass::kForward, recorded.forward_seconds, recorded.rested);
  expect(1, Pass::kForwardKeep, recorded.forward_seconds, recorded.rested);
  expect(1, Pass::kBackward, recorded.backward_seconds, false);
  const Rates::Call keep =
      profile.rates.find({spec.blocks.at(1).trace, Pass::kForwardKeep, false, recorded.batch, true});
  EXPECT_NEAR(keep.steady * keep.graph_alone / recorded.recompute_seconds, 1, 0.15);
  expect(spec.blocks.size() - 1, Pass::kBackward, recorded.head_seconds, recorded.rested);
}

INSTANTIATE_TEST_SUITE_P(OfAnH200, Roofline, ::testing::ValuesIn(kRecorded), [](const auto& info) {
  std::string name = fs::path(info.param.model).parent_path().filename().string();
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// Whole steps: what the runs of bench/results/offload_h200/README.md used and took, under the plans of their
// *.knobs.json. The simulation has its part in this.
struct RecordedStep {
  const char* name;
  double tokens_per_second;
  Bytes device_bytes;
};

class RooflineStep : public ::testing::TestWithParam<RecordedStep> {};

TEST_P(RooflineStep, IsPredictedFromShapesAlone) {
  const Architecture arch = parse_architecture(read("bench/main_job/llama-3.2-3b/config.json"), "config.json");
  const ModelSpec spec = make_spec(arch);
  RunShape run;
  run.compute = DType::kBf16;
  run.accumulation = 4;
  run.train_shapes = {{4, 4096, 4, false}};
  const StoredProfile profile =
      estimate_profile(arch, spec, run, parse_hardware(read("hardware/h200.json"), "h200.json"));
  const std::string file = std::string("bench/results/offload_h200/") + GetParam().name + ".knobs.json";
  const Plan plan = parse_plan(read(file), file, spec, run.compute);
  const std::vector<Chunk> chunks = make_chunks(spec, plan.chunk_bytes, run.compute);
  const Layout layout = protrain::layout(spec, chunks, run, profile.memory, plan);
  // A few control bytes have come and gone since.
  EXPECT_NEAR(static_cast<double>(layout.bytes(Tier::kDevice)), static_cast<double>(GetParam().device_bytes), 4096);
  const Prediction prediction = predict(spec, chunks, run, profile.memory, plan, layout, profile.rates);
  EXPECT_NEAR(4 * 4 * 4096 / prediction.step_seconds / GetParam().tokens_per_second, 1, 0.15);
}

INSTANTIATE_TEST_SUITE_P(OfAnH200, RooflineStep,
                         ::testing::Values(RecordedStep{"3b-keep", 26798, 93792570368},
                                           RecordedStep{"3b-24-best", 21869, 21816175616}));

// operators.log: a layer of LLaMA-3-8B, two rows of 4096 tokens: forward 6.11 ms, with backward 18.45 ms.
TEST(RooflineOfAnH200, KnowsTheTimeOfALayerOfLlama8b) {
  const Architecture arch = parse_architecture(read("bench/main_job/llama-3-8b/config.json"), "config.json");
  const ModelSpec spec = make_spec(arch);
  RunShape run;
  run.compute = DType::kBf16;
  run.train_shapes = {{2, 4096, 2, false}};
  const StoredProfile profile =
      estimate_profile(arch, spec, run, parse_hardware(read("hardware/h200.json"), "h200.json"));
  const auto steady = [&](Pass pass) {
    return profile.rates.find({spec.blocks[1].trace, pass, false, run.train_shapes[0], true}).steady;
  };
  EXPECT_NEAR(steady(Pass::kForwardKeep) / 6.11e-3, 1, 0.15);
  EXPECT_NEAR((steady(Pass::kForwardKeep) + steady(Pass::kBackward)) / 18.45e-3, 1, 0.15);
}

// The light set of LLaMA-3-8B is 43,008 of 65,536 elements a token (ops.h), beside statistics.
TEST(RooflineOfAnH200, KnowsWhatALightCallSaves) {
  const Architecture arch = parse_architecture(read("bench/main_job/llama-3-8b/config.json"), "config.json");
  const ModelSpec spec = make_spec(arch);
  RunShape run;
  run.compute = DType::kBf16;
  run.train_shapes = {{1, 4096, 1, false}};
  const StoredProfile profile =
      estimate_profile(arch, spec, run, parse_hardware(read("hardware/h200.json"), "h200.json"));
  const auto saved = [&](bool light) {
    return static_cast<double>(
        profile.memory.find({spec.blocks[1].trace, Pass::kForwardKeep, light, run.train_shapes[0], true}).saved);
  };
  EXPECT_NEAR(saved(false) / (4096.0 * (65536 * 2 + 34 * 4)), 1, 0.001);
  EXPECT_NEAR(saved(true) / (4096.0 * (43008 * 2 + 34 * 4)), 1, 0.001);
}

// What a run can ask for under any plan is there, for each family.
TEST(RooflineOfAnyModel, HasEveryCallOfTheRun) {
  const std::string configs[] = {
      R"({"model_type": "gpt2", "vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4,
          "attn_pdrop": 0.0})",
      R"({"model_type": "opt", "vocab_size": 100, "hidden_size": 32, "ffn_dim": 96, "num_hidden_layers": 3,
          "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 16,
          "do_layer_norm_before": false, "dropout": 0.1, "attention_dropout": 0.0, "pad_token_id": 1})",
      R"({"model_type": "qwen3", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64})",
  };
  Hardware hardware = parse_hardware(read("hardware/rtx3090.json"), "rtx3090.json");
  for (const std::string& config : configs) {
    const Architecture arch = parse_architecture(config, "config.json");
    const ModelSpec spec = make_spec(arch);
    for (const DType compute : {DType::kBf16, DType::kF32}) {
      RunShape run;
      run.compute = compute;
      run.accumulation = 2;
      run.train_shapes = {{2, 48, 9, true}};
      run.eval_shapes = {{3, 32, 3, false}};
      const StoredProfile profile = estimate_profile(arch, spec, run, hardware);
      const auto both = [&](const BlockSpec& block, Pass pass, bool light, bool training) {
        const CallKey key = {block.trace, pass, light, training ? run.train_shapes[0] : run.eval_shapes[0], training};
        const CallMemory memory = profile.memory.find(key);
        EXPECT_GE(memory.workspace, 0);
        EXPECT_EQ(memory.workspace % kAlignment, 0);
        EXPECT_EQ(memory.saved > 0, block.kind == BlockKind::kLayer && pass == Pass::kForwardKeep);
        const Rates::Call call = profile.rates.find(key);
        EXPECT_GT(call.rested, 0);
        EXPECT_LE(call.rested, call.steady);
      };
      for (const BlockSpec& block : spec.blocks) {
        both(block, Pass::kForward, false, false);
        both(block, Pass::kBackward, false, true);
        if (block.kind == BlockKind::kHead) continue;
        both(block, Pass::kForward, false, true);
        both(block, Pass::kForwardKeep, false, true);
        if (block.kind != BlockKind::kLayer) continue;
        both(block, Pass::kForwardKeep, true, true);
        both(block, Pass::kBackward, true, true);
      }
      EXPECT_FALSE(profile.rates.measured);
    }
  }
}

// Post-norm layers (opt-350m) read the last product's result in backward; all others leave it out.
TEST(RooflineOfAnyModel, LeavesTheLastProductOutOfAGraphAloneButBeforeANorm) {
  for (const bool norm_before : {true, false}) {
    const Architecture arch = parse_architecture(
        fmt::format(R"({{"model_type": "opt", "vocab_size": 100, "hidden_size": 1024, "ffn_dim": 4096,
                         "num_hidden_layers": 2, "num_attention_heads": 16, "max_position_embeddings": 2048,
                         "word_embed_proj_dim": 1024, "do_layer_norm_before": {}, "attention_dropout": 0.0,
                         "pad_token_id": 1}})",
                    norm_before),
        "config.json");
    const ModelSpec spec = make_spec(arch);
    RunShape run;
    run.compute = DType::kBf16;
    run.train_shapes = {{8, 2048, 8, false}};
    const StoredProfile profile =
        estimate_profile(arch, spec, run, parse_hardware(read("hardware/h200.json"), "h200.json"));
    for (const Rates::Call& call : profile.rates.calls) {
      const bool less = norm_before && call.key.trace == spec.blocks[1].trace && call.key.pass == Pass::kForwardKeep;
      EXPECT_EQ(call.graph_alone < 1, less) << call.key.trace << " pass " << static_cast<int>(call.key.pass);
      EXPECT_GT(call.graph_alone, 0.5);
    }
  }
}

// A faster machine is never slower, and twice the rows take about twice the bytes.
TEST(RooflineOfAnyModel, FollowsTheHardwareAndTheShape) {
  const Architecture arch = parse_architecture(read("bench/main_job/llama-3.2-3b/config.json"), "config.json");
  const ModelSpec spec = make_spec(arch);
  RunShape run;
  run.compute = DType::kBf16;
  run.train_shapes = {{2, 2048, 2, false}};
  Hardware hardware = parse_hardware(read("hardware/rtx3090.json"), "rtx3090.json");
  const StoredProfile slow = estimate_profile(arch, spec, run, hardware);
  hardware.bf16_flops *= 2;
  hardware.attention_flops *= 2;
  hardware.device_bytes *= 2;
  const StoredProfile fast = estimate_profile(arch, spec, run, hardware);
  ASSERT_EQ(slow.rates.calls.size(), fast.rates.calls.size());
  for (std::size_t i = 0; i < slow.rates.calls.size(); ++i) {
    EXPECT_LE(fast.rates.calls[i].steady, slow.rates.calls[i].steady);
    EXPECT_GE(fast.rates.calls[i].steady, 0.49 * slow.rates.calls[i].steady);
  }
  run.train_shapes[0].rows = 4;
  const StoredProfile large = estimate_profile(arch, spec, run, hardware);
  const CallKey keep = {spec.blocks[1].trace, Pass::kForwardKeep, false, {2, 2048, 2, false}, true};
  CallKey larger = keep;
  larger.shape.rows = 4;
  EXPECT_NEAR(static_cast<double>(large.memory.find(larger).saved) / static_cast<double>(slow.memory.find(keep).saved),
              2, 0.01);
}

}  // namespace
}  // namespace protrain
