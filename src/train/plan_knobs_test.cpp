#include "train/plan_knobs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "plan/plan_json.h"
#include "runtime/toy_model.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

constexpr Bytes kPlenty = Bytes{1} << 50;

class PlanKnobsTest : public ::testing::Test {
 protected:
  PlanKnobsTest() {
    shape.compute = DType::kBf16;
    shape.accumulation = 2;
    shape.train_shapes = {{3, 16, 3, false}};
    shape.eval_shapes = {{2, 31, 2, false}};
    profile = toy::make_profile(spec, shape.train_shapes, shape.eval_shapes);
    std::mt19937 random(1);
    rates = test::random_rates(profile, random, /*slows=*/true);
  }

  static PlanKnobs knobs_of(const std::string& plan, Switch recompute = Switch::kAuto) {
    TrainConfig config;
    config.plan = plan;
    config.recompute = recompute;
    return {real_files(), config};
  }
  SearchSpace space_of(const std::string& plan, Switch recompute = Switch::kAuto) const {
    return knobs_of(plan, recompute).space(spec, shape.compute);
  }
  SearchResult choose(const SearchSpace& space, Bytes device = kPlenty) const {
    MemoryLimits limits;
    limits.device = device;
    limits.host = kPlenty;
    return search(spec, shape, profile, rates, limits, space);
  }

  const ModelSpec spec = toy::make_spec(4, false);
  RunShape shape;
  Profile profile;
  Rates rates;
};

TEST_F(PlanKnobsTest, WhatIsNotSetIsFree) {
  const SearchSpace space = space_of("");
  EXPECT_FALSE(knobs_of("").any());
  EXPECT_FALSE(space.chunk_bytes || space.n_persist || space.n_buffer || space.gradient_slots || space.order ||
               space.activation || space.place || space.n_resident || space.embedding || space.head);
  EXPECT_TRUE(space.may_keep && space.may_recompute);
}

TEST_F(PlanKnobsTest, TheUsersKnobsStandUnderEveryLimit) {
  const SearchSpace space =
      space_of(R"({"chunk_bytes": 1, "n_persist": 2, "activation": "swap", "order": "layer", "n_buffer": 5})");
  Bytes limit = kPlenty;
  int plans = 0;
  for (SearchResult result = choose(space, limit); result.missing.fits(); result = choose(space, limit)) {
    const Plan& plan = result.memory.plan;
    EXPECT_EQ(plan.n_persist, 2);
    EXPECT_EQ(plan.n_buffer, 5);
    EXPECT_EQ(plan.order, Order::kLayer);
    for (std::size_t block = 1; block + 1 < spec.blocks.size(); ++block) {
      EXPECT_EQ(plan.activation[block], Activation::kSwap);
    }
    ASSERT_LE(result.memory.layout.bytes(Tier::kDevice), limit);
    limit = result.memory.layout.bytes(Tier::kDevice) - 1;
    ++plans;
  }
  EXPECT_GT(plans, 1);  // the rest is chosen
}

TEST_F(PlanKnobsTest, ACountOfLayersLeavesTheOthersFree) {
  const SearchSpace space = space_of(R"({"n_swap": 2})");
  EXPECT_EQ(space.n_swap, 2);
  EXPECT_FALSE(space.activation || space.n_keep_light || space.n_recompute || space.n_recompute_host ||
               space.swap_interval || space.chunk_bytes);
}

// A knob at the value that the search gave it anyway: what fitted fits, and is about as fast.
TEST_F(PlanKnobsTest, TheSearchsOwnKnobSetByHandLosesNothing) {
  Bytes limit = kPlenty;
  int plans = 0;
  for (SearchResult free = choose({}, limit); free.missing.fits() && plans < 20; free = choose({}, limit), ++plans) {
    const Plan& plan = free.memory.plan;
    for (const std::string& knob :
         {fmt::format(R"({{"n_persist": {}}})", plan.n_persist), fmt::format(R"({{"n_buffer": {}}})", plan.n_buffer),
          fmt::format(R"({{"gradient_slots": {}}})", plan.gradient_slots),
          fmt::format(R"({{"chunk_bytes": {}}})", plan.chunk_bytes),
          fmt::format(R"({{"order": "{}"}})", plan.order == Order::kLayer ? "layer" : "micro_batch")}) {
      SCOPED_TRACE(fmt::format("{} bytes, {}", limit, knob));
      const SearchResult set = choose(space_of(knob), limit);
      EXPECT_TRUE(set.missing.fits());
      EXPECT_LE(set.prediction.step_seconds, 1.03 * free.prediction.step_seconds);
    }
    limit = free.memory.layout.bytes(Tier::kDevice) - 1;
  }
  EXPECT_GT(plans, 5);
}

TEST_F(PlanKnobsTest, PlacesInWordsFixWhatTheyNameOnly) {
  const SearchSpace space = space_of(R"({"place": {"n_resident": 1, "head": "cpu"}})");
  EXPECT_EQ(space.n_resident, 1);
  const SearchSpace two = space_of(R"({"place": {"n_resident": 2}})");  // of chunks whose size is free
  EXPECT_EQ(two.n_resident, 2);
  EXPECT_EQ(std::ranges::count(choose(two).memory.plan.place, UpdatePlace::kCpu), 0);
  EXPECT_EQ(space.head, UpdatePlace::kCpu);
  EXPECT_FALSE(space.embedding || space.place || space.n_persist);
  EXPECT_FALSE(space.chunk_bytes);
  const SearchSpace words = space_of(R"({"chunk_bytes": "1MiB", "place": {"embedding": "cpu"}})");
  EXPECT_EQ(words.embedding, UpdatePlace::kCpu);
  EXPECT_EQ(words.chunk_bytes, kMiB);
  EXPECT_FALSE(words.head || words.n_resident);
}

TEST_F(PlanKnobsTest, RecomputeOfTheConfigurationIsKept) {
  const auto modes = [&](Switch recompute, Bytes limit) {
    const Plan plan = choose(space_of("", recompute), limit).memory.plan;
    return std::vector<Activation>(plan.activation.begin() + 1, plan.activation.end() - 1);
  };
  const auto recomputes = [](Activation mode) { return traits(mode).recompute; };
  for (const Bytes limit : {kPlenty, Bytes{1}}) {
    EXPECT_TRUE(std::ranges::all_of(modes(Switch::kTrue, limit), recomputes));
    EXPECT_TRUE(std::ranges::none_of(modes(Switch::kFalse, limit), recomputes));
  }
}

std::string refusal(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST_F(PlanKnobsTest, KnobsThatCannotBeAreRefusedWithTheReason) {
  const auto refused = [&](const std::string& plan, Switch recompute = Switch::kAuto) {
    return refusal([&] { choose(space_of(plan, recompute)); });
  };
  EXPECT_NE(refused(R"({"n_persist": 99})").find("n_persist"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persit": 1})").find("n_persist"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persist": 1, "place": {"n_resident": 2}})").find("n_resident"), std::string::npos);
  EXPECT_NE(refused(R"({"place": {"n_resident": 99}})").find("n_resident"), std::string::npos);
  EXPECT_NE(refused(R"({"place": ["cpu"]})").find("chunk_bytes"), std::string::npos);
  EXPECT_NE(refused(R"({"activation": {"swap": 1}})").find("n_swap"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persist": 0, "n_buffer": 0})").find("n_buffer"), std::string::npos);
  EXPECT_NE(refused(R"({"activation": "swap"})", Switch::kTrue).find("recompute"), std::string::npos);
  EXPECT_NE(refused("{").find("JSON"), std::string::npos);
  const std::string key(5000, 'x');
  EXPECT_LT(refused(fmt::format(R"({{"{}": 1}})", key)).size(), 400);
  EXPECT_LT(refused(fmt::format(R"({{"{0}": 1, "{0}": 1}})", key)).size(), 400);
  EXPECT_LT(refused(fmt::format(R"({{"plan": {{}}, "{}": 1}})", key)).size(), 400);
  for (const char* path : {"absent.json", "/"}) {  // a folder is no file to read either
    const std::string message = refused(path);
    EXPECT_TRUE(message.starts_with(fmt::format("plan: cannot open {}: ", path))) << message;
    EXPECT_NE(message.find("plan.json"), std::string::npos) << message;
  }
}

TEST_F(PlanKnobsTest, AWrittenPlanReadsBackToTheSamePlan) {
  const SearchResult result = choose({}, choose({}, 1).memory.layout.bytes(Tier::kDevice) * 2);
  const std::string text = plan_json(result.memory.plan, result.memory.layout);
  const SearchResult again = choose(space_of(text));
  EXPECT_EQ(plan_json(again.memory.plan, again.memory.layout), text);
}

TEST_F(PlanKnobsTest, AnAnswerStandsForItsPlanAndNothingElseDoes) {
  const SearchSpace space = space_of(R"({"schema": 1, "fits": true, "notes": [], "plan": {"n_persist": 2}})");
  EXPECT_EQ(space.n_persist, 2);
  EXPECT_FALSE(space.n_buffer);
  EXPECT_NE(refusal([&] { space_of(R"({"fits": true, "plan": {"n_persit": 2}})"); }).find("n_persist"),
            std::string::npos);
  EXPECT_NE(refusal([&] { space_of(R"({"n_bufer": 3, "plan": {"n_persist": 2}})"); }).find("'n_bufer' beside 'plan'"),
            std::string::npos);
  EXPECT_NE(refusal([&] { space_of(R"({"plan": "a.json"})"); }).find("unknown key 'plan'"), std::string::npos);
}

}  // namespace
}  // namespace protrain
