#include "schedule/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "plan/budget.h"
#include "schedule/simulation.h"

namespace protrain {
namespace {

using test::Case;
using test::Simulation;

using ::testing::HasSubstr;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Case resident(DType compute, std::int64_t accumulation, Activation mode) {
  const ModelSpec spec = test::make_model(3, false);
  const RunShape shape = test::small_run(compute, accumulation);
  return {spec, shape, resident_plan(spec, shape, kMiB, mode)};
}

TEST(Layout, AlignsEveryRegionAndKeepsThemInOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const Case one = test::make_case(test::random_knobs(random));
    const auto& entries = one.bytes.entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(entries[i].range.offset % kAlignment, 0);
      EXPECT_GT(entries[i].range.bytes, 0);
      if (i == 0) continue;
      EXPECT_LT(std::pair(entries[i - 1].region, entries[i - 1].index), std::pair(entries[i].region, entries[i].index));
    }
  }
}

TEST(Layout, CountsStatesExactlyAsTheRulesSay) {
  const Case one = resident(DType::kBf16, 3, Activation::kKeep);
  // Elements rounded up to 256 a tensor: table and output 512 each, three layers of 256 + 768 + 256, a norm of 256.
  const Bytes elements = 512 + 512 + 3 * 1280 + 256;
  Bytes whole = 0, lent = 0;
  for (const auto& entry : one.bytes.entries) {
    if (entry.region == Region::kState) (entry.whole_run ? whole : lent) += entry.range.bytes;
  }
  EXPECT_EQ(whole, 12 * elements);  // weight 2, residual 2, m 4, v 4
  EXPECT_EQ(lent, 6 * elements);    // gradient 2, accumulator 4
}

TEST(Layout, PutsTheStatesOfHostChunksIntoTheTiersThatThePlanSays) {
  const ModelSpec spec = test::make_model(4, false);
  const RunShape shape = test::small_run(DType::kBf16, 1);
  Plan plan = resident_plan(spec, shape, 2600);
  plan.n_persist = 1;
  plan.n_buffer = 2;
  plan.gradient_slots = 1;
  std::fill(plan.place.begin() + 1, plan.place.end() - 1, UpdatePlace::kCpu);
  for (const Tier tier : {Tier::kPageable, Tier::kPinned}) {
    plan.state_tier = tier;
    const Case one(spec, shape, plan);
    const auto find = [&](Id chunk, Part part) {
      return one.bytes.find(Region::kState, chunk * kParts + static_cast<Id>(part));
    };
    EXPECT_EQ(find(2, Part::kWeight).tier, Tier::kPinned);
    EXPECT_EQ(find(2, Part::kGradient).tier, Tier::kPinned);
    EXPECT_EQ(find(2, Part::kM).tier, tier);
    EXPECT_EQ(find(2, Part::kResidual).tier, tier);
    EXPECT_EQ(find(0, Part::kM).tier, Tier::kDevice);
    EXPECT_TRUE(one.bytes.contains(Region::kWeightHome, 1));   // persistent, updated on the host
    EXPECT_FALSE(one.bytes.contains(Region::kWeightHome, 2));  // streamed
    EXPECT_EQ(one.bytes.find(Region::kWeightSlot, 0).bytes, 1280 * 2);
    EXPECT_TRUE(one.bytes.contains(Region::kWeightSlot, 1));
    EXPECT_FALSE(one.bytes.contains(Region::kWeightSlot, 2));
  }
}

TEST(Layout, GivesASwappedSavedSetToOthersWhileItIsAway) {
  const ModelSpec spec = test::make_model(24, false);
  const RunShape shape = test::small_run(DType::kF32, 1);
  Plan plan = resident_plan(spec, shape, kMiB);
  plan.offload_distance = 1;
  const auto activations = [&](Activation mode) {
    plan.activation.assign(spec.blocks.size(), mode);
    const Case one(spec, shape, plan);
    Bytes whole = 0;
    for (const auto& entry : one.bytes.entries) {
      if (entry.whole_run && entry.range.tier == Tier::kDevice) whole += round_up(entry.range.bytes, kAlignment);
    }
    return static_cast<double>(one.bytes.bytes(Tier::kDevice) - whole) / (16 * 10 * 4);  // in activations
  };
  // In activations of 640 bytes, aligned: input 1.6, full set 15.2, light set 9.6; workspace and the gradients of
  // inputs at most 30; the gradients of all chunks, which meet whatever is kept last.
  const double gradients = 4.0 * (512 + 512 + 24 * 1280 + 256) / 640, around = 30;
  EXPECT_GE(activations(Activation::kKeep), 24 * (1.6 + 15.2));
  EXPECT_GE(activations(Activation::kKeepLight), 24 * (1.6 + 9.6));
  EXPECT_LT(activations(Activation::kKeepLight), 24 * (1.6 + 9.6) + gradients + around);
  EXPECT_LT(activations(Activation::kRecompute), 24 * 1.6 + gradients + around);
  EXPECT_LT(activations(Activation::kSwap), 3 * (1.6 + 9.6) + gradients + around);
  EXPECT_LT(activations(Activation::kRecomputeHost), 3 * 1.6 + gradients + around);
}

TEST(Layout, SaysWhatLivesAtThePeak) {
  const ModelSpec spec = test::make_model(6, false);
  const RunShape shape = test::small_run(DType::kBf16, 3);
  for (const Activation mode : {Activation::kKeep, Activation::kSwap, Activation::kRecomputeHost}) {
    Plan plan = resident_plan(spec, shape, kMiB);
    plan.order = Order::kLayer;
    plan.activation.assign(spec.blocks.size(), mode);
    const Case one(spec, shape, plan);
    Bytes live = 0;
    for (const auto& entry : one.bytes.entries) {
      if (entry.at_peak && entry.range.tier == Tier::kDevice) live += round_up(entry.range.bytes, kAlignment);
    }
    EXPECT_EQ(live, one.bytes.live_bound);
    for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
      Bytes sum = 0;
      for (const auto& [tag, bytes] : bytes_by_tag(one.bytes, tier)) sum += bytes;
      EXPECT_LE(sum, one.bytes.bytes(tier));
    }
  }
}

TEST(Layout, HoldsForTheLargestShapeAndCoversEvaluation) {
  const Case one = resident(DType::kF32, 1, Activation::kKeep);
  EXPECT_EQ(one.bytes.find(Region::kBlockInput, 1).bytes, 16 * 10 * 4);
  EXPECT_EQ(one.bytes.find(Region::kBlockInput, 5).bytes, 27 * 10 * 4);  // evaluation's, after those of 5 blocks
  EXPECT_EQ(one.bytes.find(Region::kBatch, 1).bytes, 2 * batch_layout({3, 9, 3, false}).bytes);
  EXPECT_EQ(one.bytes.find(Region::kLosses).bytes, 2 * 8);
  EXPECT_EQ(one.bytes.find(Region::kTables).bytes, 700);
  EXPECT_THROW(one.bytes.find(Region::kBlockInput, 0), InternalError);
}

TEST(Layout, OfARunWithoutTrainingHasNoGradients) {
  const ModelSpec spec = test::make_model(2, false);
  RunShape shape = test::small_run(DType::kBf16, 1);
  shape.train_shapes.clear();
  const Case one(spec, shape, resident_plan(spec, shape, kMiB));
  for (const auto& entry : one.bytes.entries) EXPECT_NE(region_tag(entry.region, entry.index), "gradients");
  EXPECT_EQ(race(one.expand(one.evaluation_step())), "");
}

TEST(Layout, RefusesAnInvalidPlan) {
  Case one = resident(DType::kF32, 1, Activation::kKeep);
  one.plan.n_persist = 0;
  try {
    layout(one.spec, one.chunks, one.shape, one.profile, one.plan);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("resident, but it streams"));
  }
}

// LLaMA-like: 80 layers of 7 matrices and 2 norms.
ModelSpec large_model() {
  ModelSpec spec;
  spec.hidden = 8192;
  spec.vocabulary = 128256;
  const auto add = [&](std::vector<std::int64_t> shape) {
    const auto id = static_cast<Id>(spec.parameters.size());
    ParameterSpec parameter;
    parameter.name = fmt::format("p{}", id);
    parameter.shape = std::move(shape);
    parameter.group = id;
    spec.parameters.push_back(parameter);
    spec.blocks.back().parameters.push_back(id);
  };
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {}});
  add({128256, 8192});
  for (Id layer = 0; layer < 80; ++layer) {
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {}});
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{8192},
                                                                    {8192, 8192},
                                                                    {1024, 8192},
                                                                    {1024, 8192},
                                                                    {8192, 8192},
                                                                    {8192},
                                                                    {28672, 8192},
                                                                    {28672, 8192},
                                                                    {8192, 28672}}) {
      add(shape);
    }
  }
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {}});
  add({8192});
  add({128256, 8192});
  return spec;
}

TEST(Layout, OfALargeModelIsMadeInAFractionOfASecond) {
  const ModelSpec spec = large_model();
  RunShape shape;
  shape.compute = DType::kBf16;
  shape.accumulation = 16;
  shape.train_shapes = {{1, 4096, 1, false}};
  shape.eval_shapes = {{1, 4096, 1, false}};
  for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
    Plan plan = resident_plan(spec, shape, 512 * kMiB);
    const int body = plan.n_persist;
    plan.order = order;
    plan.n_persist = body / 8;
    plan.place.assign(plan.place.size(), UpdatePlace::kCpu);
    plan.activation = interleave(spec, {24, 8, 24, 8});
    const auto chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
    const SlotNeed need = slot_need(spec, chunks, plan);
    plan.n_buffer = need.buffer + 2;
    plan.gradient_slots = need.gradient + 1;
    const Profile profile = test::make_profile(spec, shape);
    Layout bytes;
    const double laying = seconds_of([&] { bytes = layout(spec, chunks, shape, profile, plan); });
    StepShape step;
    step.batch = shape.train_shapes[0];
    step.micro_batches = 16;
    for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) step.pending.push_back(chunk);
    Schedule schedule;
    const double expanding = seconds_of([&] { schedule = expand(spec, chunks, shape, profile, plan, bytes, step); });
    std::string found;
    const double checking = seconds_of([&] { found = race(schedule); });
    EXPECT_EQ(found, "");
    const double ratio = static_cast<double>(bytes.bytes(Tier::kDevice)) / static_cast<double>(bytes.live_bound);
    fmt::print(
        "order {}: {} regions laid out in {:.3f} s, {:.4f} of the bound; {} tasks expanded in {:.3f} s, race {:.3f} "
        "s\n",
        static_cast<int>(order), bytes.entries.size(), laying, ratio, schedule.tasks.size(), expanding, checking);
    EXPECT_LE(ratio, 1.03);
    EXPECT_LT(laying + expanding, 10.0);  // half a second in release; sanitizers and a busy machine get room
  }
}

}  // namespace
}  // namespace protrain
