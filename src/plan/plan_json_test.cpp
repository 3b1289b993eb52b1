#include "plan/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/test_model.h"

namespace protrain {
namespace {

using test::small_model;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Layout two_tiers() {
  Layout layout;
  layout.entries = {{Region::kState, 0, {Tier::kDevice, 0, 3 * kMiB}, true},
                    {Region::kState, kParts, {Tier::kDevice, 3 * kMiB, kMiB}, true},
                    {Region::kState, kParts + 2, {Tier::kDevice, 4 * kMiB, 2 * kMiB}, true},
                    {Region::kResults, 0, {Tier::kPinned, 0, 24}, true},
                    {Region::kBlockInput, 1, {Tier::kDevice, 6 * kMiB, kMiB}, false},
                    {Region::kBlockInput, 2, {Tier::kDevice, 6 * kMiB, kMiB}, false}};
  return layout;
}

Plan parse(const std::string& json) { return parse_plan(json, "plan.json", small_model(), DType::kF32); }

std::string error_of(const std::string& json) {
  try {
    parse(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

// Six body chunks: two a layer.
TEST(PlanJson, ComesBackAsItWasWritten) {
  Plan plan;
  plan.chunk_bytes = 1;
  plan.n_persist = 2;
  plan.n_buffer = 3;
  plan.gradient_slots = 4;
  plan.offload_distance = 5;
  plan.order = Order::kLayer;
  plan.activation = {Activation::kKeep, Activation::kRecompute, Activation::kSwap, Activation::kRecomputeHost,
                     Activation::kKeepLight};
  plan.place.assign(8, UpdatePlace::kCpu);
  plan.place[1] = UpdatePlace::kResident;
  plan.state_tier = Tier::kPinned;
  plan.predicted_device_bytes = 12345678901;
  const std::string text = plan_json(plan, two_tiers());
  const Plan read = parse(text);
  EXPECT_EQ(read.chunk_bytes, plan.chunk_bytes);
  EXPECT_EQ(read.n_persist, plan.n_persist);
  EXPECT_EQ(read.n_buffer, plan.n_buffer);
  EXPECT_EQ(read.gradient_slots, plan.gradient_slots);
  EXPECT_EQ(read.offload_distance, plan.offload_distance);
  EXPECT_EQ(read.order, plan.order);
  EXPECT_EQ(read.activation, plan.activation);
  EXPECT_EQ(read.place, plan.place);
  EXPECT_EQ(read.state_tier, plan.state_tier);
  EXPECT_EQ(read.predicted_device_bytes, plan.predicted_device_bytes);
  EXPECT_EQ(plan_json(read, two_tiers()), text);
}

TEST(PlanJson, OfNothingIsTheResidentPlan) {
  const Plan read = parse("{}");
  const RunShape shape = test::small_run(DType::kF32, 1);
  EXPECT_EQ(plan_json(read, {}), plan_json(resident_plan(small_model(), shape, Plan().chunk_bytes), {}));
}

TEST(PlanJson, FillsInWhatIsNotGiven) {
  const Plan read = parse(R"({"chunk_bytes": "1B", "n_persist": 1})");
  EXPECT_EQ(read.chunk_bytes, 1);
  EXPECT_EQ(read.place[0], UpdatePlace::kResident);
  EXPECT_EQ(read.place[1], UpdatePlace::kResident);
  EXPECT_EQ(read.place[2], UpdatePlace::kCpu);
  EXPECT_EQ(read.place[7], UpdatePlace::kResident);  // head
  EXPECT_EQ(read.n_buffer, 4);                       // twice the two chunks of a layer
  EXPECT_EQ(read.gradient_slots, 4);
  validate(small_model(), make_chunks(small_model(), 1, DType::kF32), test::small_run(DType::kF32, 1), read);
}

TEST(PlanJson, TakesCountsOfModesAndOfPlaces) {
  const Plan read = parse(R"({"chunk_bytes": 1, "n_swap": 1, "n_recompute": 1, "n_keep_light": 1,
                              "place": {"n_resident": 2, "embedding": "cpu"}})");
  EXPECT_THAT(read.activation, ElementsAre(Activation::kKeep, Activation::kSwap, Activation::kRecompute,
                                           Activation::kKeepLight, Activation::kKeep));
  EXPECT_EQ(read.place[0], UpdatePlace::kCpu);
  EXPECT_EQ(read.place[2], UpdatePlace::kResident);
  EXPECT_EQ(read.place[3], UpdatePlace::kCpu);
  EXPECT_EQ(read.place[7], UpdatePlace::kResident);
  EXPECT_THAT(parse(R"({"activation": "recompute_host"})").activation, Each(Activation::kRecomputeHost));
  const auto of_layers = parse(R"({"activation": ["swap", "keep", "recompute"]})").activation;
  EXPECT_THAT(of_layers, ElementsAre(Activation::kKeep, Activation::kSwap, Activation::kKeep, Activation::kRecompute,
                                     Activation::kKeep));
}

TEST(PlanJson, RefusesWhatItDoesNotUnderstandNamingFileKeyAndValue) {
  EXPECT_THAT(error_of(R"({"schema": 1})"), HasSubstr("plan.json: schema: 1, must be 2"));
  EXPECT_THAT(error_of(R"({"chunk_bytes": -3})"), HasSubstr("chunk_bytes: -3"));
  EXPECT_THAT(error_of(R"({"chunk_bytes": "much"})"), HasSubstr("chunk_bytes: \"much\""));
  EXPECT_THAT(error_of(R"({"chunk_bytes": "0.4"})"), HasSubstr("chunk_bytes: \"0.4\""));
  for (const char* bytes : {"9000000000000000001", "\"9000000000000000001\"", "0"}) {
    EXPECT_THAT(
        error_of(fmt::format("{{\"chunk_bytes\": {}}}", bytes)),
        HasSubstr(fmt::format("chunk_bytes: {}, must be a whole number, 1 to 9000000000000000000, or a size", bytes)));
  }
  EXPECT_THAT(error_of(R"({"chunk_bytes": 18446744073709551615})"), HasSubstr("chunk_bytes: 1844"));
  EXPECT_THAT(error_of(R"({"activation": ["keep"]})"), HasSubstr("3 layers (or 5 blocks"));
  EXPECT_THAT(error_of(R"({"activation": ["keep", "swop", "keep"]})"), HasSubstr("did you mean \"swap\"?"));
  EXPECT_THAT(error_of(R"({"activation": "swap", "n_swap": 1})"), HasSubstr("activation and n_swap are both given"));
  EXPECT_THAT(error_of(R"({"n_swap": 7})"), HasSubstr("n_swap 7, must be 0 to 3"));
  EXPECT_THAT(error_of(R"({"n_buffer": 1.5})"), HasSubstr("n_buffer: 1.5, must be a whole number"));
  EXPECT_THAT(error_of(R"({"n_persist": 99999999999})"), HasSubstr("n_persist: 99999999999"));
  EXPECT_THAT(error_of(R"({"offload_distance": 0})"), HasSubstr("offload_distance: 0"));
  EXPECT_THAT(error_of(R"({"offload_distance": 1000000000000})"),
              HasSubstr("offload_distance: 1000000000000, must be a whole number, 1 to 1000000000"));
  EXPECT_THAT(error_of(R"({"n_buffer": 1000000001})"),
              HasSubstr("1000000001, must be a whole number, 0 to 1000000000"));
  EXPECT_THAT(error_of(R"({"order": "layers"})"), HasSubstr("did you mean \"layer\"?"));
  EXPECT_THAT(error_of(R"({"state_tier": "disk"})"), HasSubstr("state_tier: \"disk\""));
  EXPECT_THAT(error_of(R"({"place": "cpu"})"), HasSubstr("place: \"cpu\""));
  EXPECT_THAT(error_of(R"({"place": ["cpu"]})"), HasSubstr("place has 1 entries"));
  EXPECT_THAT(error_of(R"({"place": {"heat": "cpu"}})"), HasSubstr("'place.heat'; did you mean 'place.head'?"));
  EXPECT_THAT(error_of(R"({"n_persist": 0, "place": {"n_resident": 1}})"), HasSubstr("0 to n_persist (0)"));
  EXPECT_THAT(error_of(R"({"chunkbytes": 3})"), HasSubstr("unknown key 'chunkbytes'; did you mean 'chunk_bytes'?"));
  EXPECT_THAT(error_of(R"({"foo": 3})"), HasSubstr("unknown key 'foo'; known are schema, chunk_bytes"));
  EXPECT_THAT(error_of("[]"), HasSubstr("plan.json"));
  EXPECT_THAT(error_of("{"), HasSubstr("plan.json"));
}

}  // namespace
}  // namespace protrain
