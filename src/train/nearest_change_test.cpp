#include "train/nearest_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/toy_model.h"
#include "train/run_plan.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Bytes kRoomBytes = 10 * kGiB;

class NearestChangeTest : public ::testing::Test {
 protected:
  NearestChangeTest() {
    config.per_device_train_batch_size = 12;
    config.gradient_accumulation_steps = 2;
    shape.accumulation = 2;
    shape.train_shapes = {{12, 16, 12, false}};
    limits.device = limits.device_cap = kGiB;
    limits.host = config.host_memory_limit.bytes = kGiB;
    missing.host = 7;
  }

  using Fits = std::function<bool(const RunShape&, const MemoryLimits&, const SearchSpace&)>;
  std::string ask(const Fits& fits) const {
    return nearest_change({.config = config,
                           .knobs = knobs,
                           .spec = spec,
                           .shape = shape,
                           .limits = limits,
                           .space = space,
                           .missing = missing,
                           .room = room,
                           .told = told,
                           .fits = fits});
  }

  const ModelSpec spec = toy::make_spec(2, false);
  TrainConfig config;
  PlanKnobs knobs;
  RunShape shape;
  MemoryLimits limits;
  SearchSpace space;
  Shortfall missing;
  std::optional<Room> room = Room{kRoomBytes, kRoomBytes};
  std::optional<MemoryThere> told;
};

TEST_F(NearestChangeTest, KnobsThatWereSetGoFirst) {
  const auto always = [](const auto&...) { return true; };
  config.recompute = Switch::kFalse;
  EXPECT_EQ(ask(always), "without recompute it would fit");
  config.recompute = Switch::kAuto;
  config.plan = R"({"n_persist": 1})";
  knobs = PlanKnobs(real_files(), config);
  EXPECT_EQ(ask(always), "without plan it would fit");
  config.chunk_bytes.bytes = kMiB;
  knobs = PlanKnobs(real_files(), config);
  EXPECT_EQ(ask(always), "without plan and chunk_bytes it would fit");
}

TEST_F(NearestChangeTest, FewerRowsLeaveTheSamplesOfAnUpdateAsTheyAre) {
  const auto three = [](const RunShape& run, const auto&...) {
    EXPECT_EQ(run.train_shapes.front().rows * run.accumulation, 24);
    return run.train_shapes.front().rows <= 3;
  };
  EXPECT_EQ(ask(three), "per_device_train_batch_size: 3 with gradient_accumulation_steps: 8 would fit");
  config.per_device_train_batch_size = 0;  // auto: what was tried
  EXPECT_EQ(ask(three), "per_device_train_batch_size: 3 with gradient_accumulation_steps: 8 would fit");
}

TEST_F(NearestChangeTest, AShapeThatCannotBeTriedDoesNotFit) {
  const std::string text = ask([](const RunShape& run, const auto&...) -> bool {
    if (run.train_shapes.front().rows > 1) fail(ExitCode::kDoesNotFit, "out of memory");
    return true;
  });
  EXPECT_EQ(text, "per_device_train_batch_size: 1 with gradient_accumulation_steps: 24 would fit");
}

// Both tiers at once: one raised alone would be refused again.
TEST_F(NearestChangeTest, LimitsOfBothTiersAreNamedTogether) {
  missing.device = 5;
  const auto more = [](const RunShape&, const MemoryLimits& given, const auto&) {
    return given.device == kGiB + 5 && given.host == kGiB + 7 + kMeasuredAnew;
  };
  EXPECT_THAT(ask(more), HasSubstr(fmt::format("device_memory_limit: {} with host_memory_limit: {} would fit (weights",
                                               kGiB + 5, kGiB + 7 + kMeasuredAnew)));
}

TEST_F(NearestChangeTest, NoLimitIsNamedThatWouldNotHelpOrThatTheMachineDoesNotHave) {
  const auto more = [](const RunShape&, const MemoryLimits& given, const auto&) { return given.host > kGiB; };
  EXPECT_THAT(ask(more), HasSubstr("host_memory_limit: "));
  EXPECT_THAT(ask([](const auto&...) { return false; }), HasSubstr("a smaller model"));
  room->host = kGiB + 6;
  EXPECT_THAT(ask(more), HasSubstr("a smaller model"));
  room->host = kRoomBytes;
  config.host_memory_limit.bytes = 0;  // all that there is
  EXPECT_THAT(ask(more), HasSubstr("a smaller model"));
}

TEST_F(NearestChangeTest, AMachineThatIsNotThereMayHaveMore) {
  room.reset();
  config.host_memory_limit.bytes = 0;
  limits.device_cap = 0;
  limits.outside = 100;
  missing.device = 5;
  const auto more = [](const RunShape&, const MemoryLimits& given, const auto&) { return given.host > kGiB; };
  const std::string text = ask(more);
  EXPECT_THAT(text, HasSubstr(fmt::format("--device-memory {} with --host-memory {} would",
                                          kGiB + 105 + kMeasuredAnew + kDeviceReserve, kGiB + 7 + kMeasuredAnew)));
  EXPECT_THAT(text, Not(HasSubstr("_limit")));
}

TEST_F(NearestChangeTest, ALimitAboveTheMachineThatWasToldOfNeedsMoreOfThatToo) {
  room.reset();
  const auto more = [](const RunShape&, const MemoryLimits& given, const auto&) { return given.host > kGiB; };
  told = MemoryThere{kRoomBytes, kGiB + 7 + kMeasuredAnew};
  EXPECT_THAT(ask(more), Not(HasSubstr("--host-memory")));
  told->host -= 1;
  EXPECT_THAT(ask(more), HasSubstr(fmt::format("host_memory_limit: {0} with --host-memory {0} would fit",
                                               kGiB + 7 + kMeasuredAnew)));
}

}  // namespace
}  // namespace protrain
