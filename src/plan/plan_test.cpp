#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "plan/test_model.h"
#include "plan/validate.h"

namespace protrain {
namespace {

using test::small_model;
using test::small_run;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Gradients, AreSummedApartOnlyWhereTheWireDtypeIsNotExactEnough) {
  const ModelSpec spec = small_model();
  for (Id id = 0; id < 12; ++id) {
    const bool edge = id < 2 || id == 11;
    EXPECT_FALSE(accumulates(spec, small_run(DType::kF32, 4), id));
    EXPECT_TRUE(accumulates(spec, small_run(DType::kBf16, 2), id));
    EXPECT_EQ(accumulates(spec, small_run(DType::kBf16, 1), id), edge) << id;
  }
}

// Chunks of one layer each: 0 embedding, 1 to 3 layers, 4 head.
constexpr Bytes kOneLayer = (256 + 512 + 768) * 4;

Plan streamed(Order order = Order::kMicroBatch) {
  const ModelSpec spec = small_model();
  Plan plan = resident_plan(spec, small_run(DType::kF32, 1), kOneLayer);
  plan.n_persist = 1;
  plan.n_buffer = 1;
  plan.gradient_slots = 2;
  plan.order = order;
  std::fill(plan.place.begin() + 1, plan.place.end(), UpdatePlace::kCpu);
  return plan;
}

TEST(Slots, RotateOverWhatStreamsAndWhatIsUpdatedOnTheHost) {
  const Slots found = slots(make_chunks(small_model(), kOneLayer, DType::kF32), streamed());
  EXPECT_THAT(found.weight, ElementsAre(-1, -1, 0, 0, -1));
  EXPECT_THAT(found.gradient, ElementsAre(-1, 0, 1, 0, -1));
}

TEST(Slots, MustBeAsManyAsOneBlockTouches) {
  const ModelSpec spec = small_model();
  Plan plan = resident_plan(spec, small_run(DType::kF32, 1), 1);  // two chunks a layer
  plan.n_persist = 1;                                             // in the middle of a layer
  std::fill(plan.place.begin() + 3, plan.place.end() - 1, UpdatePlace::kCpu);
  const SlotNeed need = slot_need(spec, make_chunks(spec, 1, DType::kF32), plan);
  EXPECT_EQ(need.buffer, 2);
  EXPECT_EQ(need.buffer_block, 2);
  EXPECT_EQ(need.gradient, 2);
  EXPECT_EQ(need.gradient_block, 2);
}

TEST(Weights, AreReadFromStateHomeOrSlot) {
  const Plan plan = streamed();
  const Slots of = slots(make_chunks(small_model(), kOneLayer, DType::kF32), plan);
  EXPECT_EQ(weight_region(plan, of, 0), (RegionKey{Region::kState, 0}));
  EXPECT_EQ(weight_region(plan, of, 1), (RegionKey{Region::kWeightHome, 1}));
  EXPECT_EQ(weight_region(plan, of, 3), (RegionKey{Region::kWeightSlot, 0}));
  EXPECT_EQ(weight_region(plan, of, 4), (RegionKey{Region::kWeightHome, 4}));
}

TEST(Gradients, GoWhereTheirDTypeOrderAndPlaceSay) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, kOneLayer, DType::kF32);
  const auto of = [&](Id chunk, DType compute, std::int64_t accumulation, Order order) {
    const Plan plan = streamed(order);
    return gradient_regions(spec, chunks, small_run(compute, accumulation), plan, slots(chunks, plan), chunk);
  };
  const RegionKey accumulator{Region::kAccumulator, 2}, slot{Region::kGradientSlot, 1};
  for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
    const auto summed = of(2, DType::kBf16, 4, order);  // an fp32 sum, then rounded into the slot
    EXPECT_EQ(summed.sum, accumulator);
    EXPECT_EQ(summed.wire, slot);
    EXPECT_EQ(summed.sum_dtype, DType::kF32);
    const auto once = of(2, DType::kBf16, 1, order);
    EXPECT_EQ(once.sum, slot);
    EXPECT_EQ(once.wire, slot);
    EXPECT_EQ(once.sum_dtype, DType::kBf16);
    EXPECT_EQ(of(2, DType::kF32, 1, order).sum, slot);
    EXPECT_EQ(of(4, DType::kBf16, 1, order).sum, (RegionKey{Region::kAccumulator, 4}));
    EXPECT_EQ(of(4, DType::kBf16, 1, order).wire, (RegionKey{Region::kWireGradient, 4}));
    EXPECT_EQ(of(4, DType::kF32, 4, order).sum, (RegionKey{Region::kWireGradient, 4}));
    EXPECT_EQ(of(0, DType::kF32, 4, order).sum, (RegionKey{Region::kState, static_cast<Id>(Part::kGradient)}));
    EXPECT_EQ(of(0, DType::kBf16, 4, order).sum, (RegionKey{Region::kState, static_cast<Id>(Part::kAccumulator)}));
  }
  // In fp32 the sum is what leaves: it rotates only when no other chunk comes between two micro-batches.
  EXPECT_EQ(of(2, DType::kF32, 4, Order::kMicroBatch).sum, accumulator);
  EXPECT_EQ(of(2, DType::kF32, 4, Order::kMicroBatch).wire, accumulator);
  EXPECT_EQ(of(2, DType::kF32, 4, Order::kLayer).wire, slot);
}

ModelSpec layers(Id count) {
  ModelSpec spec = small_model();
  const BlockSpec layer = spec.blocks[1], head = spec.blocks.back();
  spec.blocks.resize(1);
  spec.blocks.insert(spec.blocks.end(), static_cast<std::size_t>(count), layer);
  spec.blocks.push_back(head);
  return spec;
}

std::string modes(const std::vector<Activation>& all) {
  std::string text;
  for (auto mode = all.begin() + 1; mode != all.end() - 1; ++mode) text += "klsrh"[static_cast<int>(*mode)];
  return text;
}

TEST(Interleave, SpacesSwapsFillsGapsAndKeepsTheLast) {
  EXPECT_EQ(modes(interleave(layers(10), {3, 1, 2, 1}, 2)), "shsrsrlkkk");
  EXPECT_EQ(modes(interleave(layers(10), {2, 0, 1, 0}, 4)), "srkkskkkkk");
  EXPECT_EQ(modes(interleave(layers(6), {5, 0, 1, 0}, 3)), "sssssr");  // nearer, so that all fit
  EXPECT_EQ(modes(interleave(layers(3), {})), "kkk");
  EXPECT_EQ(modes(interleave(layers(4), {0, 0, 4, 0})), "rrrr");
  const auto edges = interleave(layers(2), {2, 0, 0, 0});
  EXPECT_EQ(edges.front(), Activation::kKeep);
  EXPECT_EQ(edges.back(), Activation::kKeep);
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(Interleave, RefusesMoreThanThereAre) {
  EXPECT_THAT(error_of([] { interleave(layers(3), {2, 0, 2, 0}); }), HasSubstr("= 4, but this model has 3 layers"));
  EXPECT_THAT(error_of([] { interleave(layers(3), {-1, 0, 0, 0}); }), HasSubstr("n_swap -1, must be 0 to 3"));
  EXPECT_THAT(error_of([] { interleave(layers(3), {1, 0, 0, 0}, 0); }), HasSubstr("swap_interval 0"));
}

TEST(Plan, IsRefusedWithKnobValueAndWhatWouldDo) {
  const ModelSpec spec = small_model();
  const RunShape shape = small_run(DType::kF32, 1);
  const auto refusal = [&](const std::function<void(Plan&)>& change) {
    Plan plan = streamed();
    change(plan);
    return error_of([&] { validate(spec, make_chunks(spec, kOneLayer, shape.compute), shape, plan); });
  };
  EXPECT_EQ(refusal([](Plan&) {}), "");
  EXPECT_EQ(refusal([](Plan& p) { p.n_buffer = p.gradient_slots = 50; }), "");
  EXPECT_THAT(refusal([](Plan& p) { p.activation.pop_back(); }), HasSubstr("4 entries, this model has 5 blocks"));
  EXPECT_THAT(refusal([](Plan& p) { p.chunk_bytes = 0; }), HasSubstr("chunk_bytes 0"));
  EXPECT_THAT(refusal([](Plan& p) { p.schema = 7; }), HasSubstr("schema 7"));
  EXPECT_THAT(refusal([](Plan& p) { p.place.pop_back(); }), HasSubstr("place has 4 entries"));
  EXPECT_THAT(refusal([](Plan& p) { p.n_persist = 4; }), HasSubstr("n_persist 4, must be 0 to 3"));
  EXPECT_THAT(refusal([](Plan& p) { p.n_persist = -1; }), HasSubstr("n_persist -1"));
  EXPECT_THAT(refusal([](Plan& p) { p.n_buffer = 0; }), HasSubstr("n_buffer 0, must be at least 1: layer 1 touches 1"));
  EXPECT_THAT(refusal([](Plan& p) { p.gradient_slots = 0; }),
              HasSubstr("gradient_slots 0, must be at least 1: layer 0"));
  EXPECT_THAT(refusal([](Plan& p) {
                p.n_persist = 3;
                p.n_buffer = -2;
              }),
              HasSubstr("n_buffer -2"));
  EXPECT_THAT(refusal([](Plan& p) { p.place[3] = UpdatePlace::kResident; }),
              HasSubstr("place of chunk 3 is resident, but it streams (body chunk 2, n_persist 1)"));
  EXPECT_THAT(refusal([](Plan& p) { p.place[3] = UpdatePlace::kResident; }), HasSubstr("n_persist of at least 3"));
  EXPECT_THAT(refusal([](Plan& p) { p.offload_distance = 0; }), HasSubstr("offload_distance 0, must be at least 1"));
  EXPECT_THAT(refusal([](Plan& p) { p.state_tier = Tier::kDisk; }), HasSubstr("state_tier disk"));
}

TEST(Plan, IsRefusedForARunThatNothingCanRun) {
  const ModelSpec spec = small_model();
  const auto refusal = [&](const ModelSpec& model, const std::function<void(RunShape&)>& change) {
    RunShape shape = small_run(DType::kF32, 1);
    change(shape);
    const Plan plan = streamed();
    return error_of([&] { validate(model, make_chunks(model, kOneLayer, DType::kF32), shape, plan); });
  };
  EXPECT_THAT(refusal(spec, [](RunShape& s) { s.accumulation = 0; }), HasSubstr("gradient_accumulation_steps: 0"));
  EXPECT_EQ(refusal(spec, [](RunShape& s) { s.accumulation = 40'000; }), "");  // of 5 blocks
  EXPECT_THAT(refusal(spec, [](RunShape& s) { s.accumulation = 40'001; }),
              HasSubstr("gradient_accumulation_steps: 40001, must be at most 40000 for a model of 5 blocks"));
  EXPECT_THAT(refusal(spec, [](RunShape& s) { s.accumulation = std::int64_t{1} << 62; }),
              HasSubstr("gradient_accumulation_steps: 4611686018427387904, must be at most 40000"));
  EXPECT_THAT(refusal(spec, [](RunShape& s) { s.compute = DType::kF16; }), HasSubstr("float16"));
  EXPECT_THAT(refusal(spec, [](RunShape& s) { s.train_shapes[0].max_samples = 3; }),
              HasSubstr("training shape of 2 rows: 3 samples"));
  ModelSpec bounded = spec;
  bounded.max_positions = 15;
  EXPECT_THAT(refusal(bounded, [](RunShape&) {}), HasSubstr("16 tokens, but this model takes at most 15"));
}

TEST(Plan, IsRefusedByLayersForMoreMicroBatchesThanPlanningCanHold) {
  const ModelSpec spec = small_model();  // 5 blocks
  const auto refusal = [&](Order order, std::int64_t accumulation) {
    return error_of([&] {
      validate(spec, make_chunks(spec, kOneLayer, DType::kF32), small_run(DType::kF32, accumulation), streamed(order));
    });
  };
  EXPECT_EQ(most_accumulation(spec, Order::kLayer), 2'400);
  EXPECT_EQ(refusal(Order::kLayer, 2'400), "");
  EXPECT_EQ(refusal(Order::kMicroBatch, 2'401), "");
  EXPECT_THAT(refusal(Order::kLayer, 2'401),
              HasSubstr("order layer with gradient_accumulation_steps 2401, must be at most 2400 for a model of 5"));
  EXPECT_EQ(most_accumulation(layers(20'000), Order::kLayer), 1);
}

TEST(Addresses, StackWhatStaysAndLendTheRest) {
  Layout layout;
  layout.entries = {
      {Region::kState, 0, {Tier::kDevice, 0, 700}, true},  {Region::kState, 1, {Tier::kPinned, 0, 100}, true},
      {Region::kState, 2, {Tier::kDevice, 0, 100}, true},  {Region::kSaved, 0, {Tier::kDevice, 0, 600}, false},
      {Region::kSaved, 1, {Tier::kDevice, 0, 600}, false}, {Region::kSaved, 2, {Tier::kDevice, 0, 9000}, false}};
  assign_addresses(layout, {{}, {}, {}, {{0, 2}, {4, 5}}, {{2, 4}}, {}});
  ASSERT_EQ(layout.entries.size(), 5u);  // the last one never lives
  EXPECT_EQ(layout.find(Region::kState, 0).offset, 0);
  EXPECT_EQ(layout.find(Region::kState, 1).offset, 0);
  EXPECT_EQ(layout.find(Region::kState, 2).offset, 1024);
  EXPECT_EQ(layout.find(Region::kSaved, 0).offset, 1536);
  EXPECT_EQ(layout.find(Region::kSaved, 1).offset, 1536);
  EXPECT_EQ(layout.bytes(Tier::kDevice), 1536 + 600);
  EXPECT_EQ(layout.live_bound, 1536 + 1024);
}

TEST(Profile, NamesTheCallThatItDoesNotHave) {
  Profile profile;
  profile.calls = {{{"layer", Pass::kForward, false, {1, 8, 1, false}, true}, {1, 2, 3}},
                   {{"layer", Pass::kForward, false, {1, 8, 1, false}, false}, {4, 5, 6}}};
  EXPECT_EQ(profile.find({"layer", Pass::kForward, false, {1, 8, 1, false}, false}).workspace, 5);
  EXPECT_THROW(profile.find({"layer", Pass::kForward, true, {1, 8, 1, false}, true}), InternalError);
}

}  // namespace
}  // namespace protrain
