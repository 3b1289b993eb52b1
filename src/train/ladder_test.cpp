#include "train/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "plan/plan_json.h"
#include "runtime/toy_model.h"

namespace protrain {
namespace {

constexpr Bytes kPlenty = Bytes{1} << 50;

class LadderTest : public ::testing::Test {
 protected:
  LadderTest() {
    shape.compute = DType::kBf16;
    shape.accumulation = 2;
    shape.train_shapes = {{3, 16, 3, false}};
    shape.eval_shapes = {{2, 31, 2, false}};
    profile = toy::make_profile(spec, shape.train_shapes, shape.eval_shapes);
  }

  static PlanKnobs knobs_of(const std::string& plan, Switch recompute = Switch::kAuto) {
    TrainConfig config;
    config.plan = plan;
    config.recompute = recompute;
    config.chunk_bytes.bytes = plan.find("chunk_bytes") == std::string::npos ? 1 : config.chunk_bytes.bytes;
    return {real_files(), config};
  }
  LadderResult choose(Bytes device, Bytes host = kPlenty, const PlanKnobs& knobs = knobs_of("")) const {
    MemoryLimits limits;
    limits.device = device;
    limits.host = host;
    return climb_down(spec, shape, profile, knobs, limits);
  }
  static Bytes device_bytes(const LadderResult& result) { return result.memory.layout.bytes(Tier::kDevice); }

  const ModelSpec spec = toy::make_spec(4, false);
  RunShape shape;
  Profile profile;
};

TEST_F(LadderTest, EverythingStaysOnTheDeviceWhereThereIsRoom) {
  const LadderResult result = choose(kPlenty);
  EXPECT_TRUE(result.missing.fits());
  EXPECT_EQ(std::ranges::count(result.memory.plan.place, UpdatePlace::kCpu), 0);
  EXPECT_EQ(result.memory.plan.activation[1], Activation::kKeep);
  EXPECT_EQ(device_bytes(choose(device_bytes(result))), device_bytes(result));  // exactly its bytes are enough
}

TEST_F(LadderTest, OneByteLessThanAPlanNeedsTakesALeanerOneUntilNoneIsLeft) {
  Bytes limit = kPlenty;
  int plans = 0;
  for (LadderResult result = choose(limit); result.missing.fits(); result = choose(limit)) {
    ASSERT_LE(device_bytes(result), limit);
    EXPECT_EQ(result.memory.plan.predicted_device_bytes, device_bytes(result));
    limit = device_bytes(result) - 1;
    ++plans;
  }
  EXPECT_GT(plans, 5);
  const LadderResult leanest = choose(limit);
  EXPECT_EQ(leanest.missing.device, 1);  // it names the leanest plan, which the last limit lacks one byte for
  EXPECT_EQ(leanest.memory.plan.n_persist, 0);
  EXPECT_EQ(std::ranges::count(leanest.memory.plan.place, UpdatePlace::kResident), 0);
}

TEST_F(LadderTest, HostMemoryBoundsWhatIsMovedThere) {
  const Bytes lean = device_bytes(choose(1));
  const LadderResult roomy = choose(2 * lean);
  const MemoryNeed need(roomy.memory.layout);
  const Bytes host = need.pinned + need.pageable;
  EXPECT_TRUE(choose(2 * lean, host).missing.fits());
  const LadderResult poor = choose(lean, kPlenty / 2);
  const MemoryNeed most(poor.memory.layout);
  const LadderResult refused = choose(lean, most.pinned + most.pageable - 1);
  EXPECT_FALSE(refused.missing.fits());
  EXPECT_GT(refused.missing.host, 0);
}

TEST_F(LadderTest, TheUsersKnobsStandUnderEveryLimit) {
  const PlanKnobs knobs = knobs_of(R"({"n_persist": 2, "activation": "swap", "order": "layer", "n_buffer": 5})");
  Bytes limit = kPlenty;
  int plans = 0;
  for (LadderResult result = choose(limit, kPlenty, knobs); result.missing.fits();
       result = choose(limit, kPlenty, knobs)) {
    const Plan& plan = result.memory.plan;
    EXPECT_EQ(plan.n_persist, 2);
    EXPECT_EQ(plan.n_buffer, 5);
    EXPECT_EQ(plan.order, Order::kLayer);
    for (std::size_t block = 1; block + 1 < spec.blocks.size(); ++block) {
      EXPECT_EQ(plan.activation[block], Activation::kSwap);
    }
    limit = device_bytes(result) - 1;
    ++plans;
  }
  EXPECT_GT(plans, 1);  // the rest is chosen
}

TEST_F(LadderTest, RecomputeOfTheConfigurationIsKept) {
  for (const Switch recompute : {Switch::kTrue, Switch::kFalse}) {
    const LadderResult result = choose(kPlenty, kPlenty, knobs_of("", recompute));
    EXPECT_EQ(result.memory.plan.activation[1],
              recompute == Switch::kTrue ? Activation::kRecompute : Activation::kKeep);
  }
  const LadderResult lean = choose(1, kPlenty, knobs_of("", Switch::kFalse));
  EXPECT_EQ(lean.memory.plan.activation[1], Activation::kKeep);
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

TEST_F(LadderTest, KnobsThatCannotBeAreRefusedWithTheReason) {
  const auto refused = [&](const std::string& plan, Switch recompute = Switch::kAuto) {
    return refusal([&] { choose(kPlenty, kPlenty, knobs_of(plan, recompute)); });
  };
  EXPECT_NE(refused(R"({"n_persist": 99})").find("n_persist"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persit": 1})").find("n_persist"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persist": 1, "place": {"n_resident": 2}})").find("n_resident"), std::string::npos);
  EXPECT_NE(refused(R"({"n_persist": 0, "n_buffer": 0})").find("n_buffer"), std::string::npos);
  EXPECT_NE(refused(R"({"activation": "swap"})", Switch::kTrue).find("recompute"), std::string::npos);
  EXPECT_NE(refused("{").find("JSON"), std::string::npos);
  EXPECT_NE(refused("absent.json").find("absent.json"), std::string::npos);
}

TEST_F(LadderTest, AWrittenPlanReadsBackToTheSamePlan) {
  const LadderResult result = choose(device_bytes(choose(1)) * 2);
  const std::string text = plan_json(result.memory.plan, result.memory.layout);
  const LadderResult again = choose(kPlenty, kPlenty, knobs_of(text));
  EXPECT_EQ(plan_json(again.memory.plan, again.memory.layout), text);
}

}  // namespace
}  // namespace protrain
