#include "plan/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

Layout two_tiers() {
  Layout layout;
  layout.entries = {{Region::kState, 0, {Tier::kDevice, 0, 3 * kMiB}},
                    {Region::kState, kParts, {Tier::kDevice, 3 * kMiB, kMiB}},
                    {Region::kState, kParts + 2, {Tier::kDevice, 4 * kMiB, 2 * kMiB}},
                    {Region::kResults, 0, {Tier::kPinned, 0, 24}}};
  return layout;
}

std::string error_of(const std::string& json) {
  try {
    parse_plan(json, "plan.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(PlanJson, ComesBackAsItWasWritten) {
  Plan plan;
  plan.chunk_bytes = 12345678901;
  plan.activation = {Activation::kKeep, Activation::kRecompute, Activation::kKeep};
  plan.predicted_device_bytes = 6 * kMiB;
  const Plan read = parse_plan(plan_json(plan, two_tiers()), "plan.json");
  EXPECT_EQ(read.schema, plan.schema);
  EXPECT_EQ(read.chunk_bytes, plan.chunk_bytes);
  EXPECT_EQ(read.activation, plan.activation);
  EXPECT_EQ(read.predicted_device_bytes, plan.predicted_device_bytes);
}

TEST(PlanJson, RefusesWhatItDoesNotUnderstandNamingFileKeyAndValue) {
  EXPECT_THAT(error_of(R"({"schema": 2})"), HasSubstr("plan.json: schema: 2, must be 1"));
  EXPECT_THAT(error_of(R"({"chunk_bytes": 5})"), HasSubstr("schema is missing"));
  EXPECT_THAT(error_of(R"({"schema": 1, "chunk_bytes": -3})"), HasSubstr("chunk_bytes: -3"));
  EXPECT_THAT(error_of(R"({"schema": 1, "chunk_bytes": 18446744073709551615})"), HasSubstr("chunk_bytes: 1844"));
  EXPECT_THAT(error_of(R"({"schema": 1, "activation": ["keep", "swap"]})"), HasSubstr("activation: \"swap\""));
  EXPECT_THAT(error_of(R"({"schema": 1, "chunkbytes": 3})"), HasSubstr("unknown key chunkbytes"));
  EXPECT_THAT(error_of("[]"), HasSubstr("plan.json"));
  EXPECT_THAT(error_of("{"), HasSubstr("plan.json"));
}

TEST(LayoutTable, SumsRegionsAndTiers) {
  const std::string table = layout_table(two_tiers());
  EXPECT_THAT(table,
              ::testing::ContainsRegex("device +total +6.00 MiB\n +state m +2.00 MiB\n +state weight +4.00 MiB\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("pinned +total +24 B\n +results +24 B\n"));
}

}  // namespace
}  // namespace protrain
