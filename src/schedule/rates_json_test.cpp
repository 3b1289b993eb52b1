#include "schedule/rates_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

StoredProfile drawn(std::mt19937& random) {
  const ModelSpec spec = test::make_model(2, false);
  RunShape shape = test::small_run(DType::kBf16, 4);
  shape.train_shapes.push_back({1, 40, 7, true});
  StoredProfile profile;
  profile.key = "a \"key\"\n";
  profile.machine = "some machine";
  profile.compute = random() % 2 == 0 ? DType::kF32 : DType::kBf16;
  profile.outside = static_cast<Bytes>(random());
  profile.memory = test::make_profile(spec, shape);
  profile.rates = test::random_rates(profile.memory, random, true);
  profile.rates.measured = random() % 2 == 0;
  return profile;
}

void expect_equal(const Rates::Linear& a, const Rates::Linear& b) {
  EXPECT_EQ(a.seconds, b.seconds);
  EXPECT_EQ(a.per_unit, b.per_unit);
}

TEST(ProfileJson, ComesBackAsItWas) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 10; ++round) {
    const StoredProfile profile = drawn(random);
    const std::string text = profile_json(profile);
    const StoredProfile back = parse_profile(text, "profile.json");
    EXPECT_EQ(back.key, profile.key);
    EXPECT_EQ(back.machine, profile.machine);
    EXPECT_EQ(back.compute, profile.compute);
    EXPECT_EQ(back.outside, profile.outside);
    EXPECT_EQ(back.memory.library_workspace, profile.memory.library_workspace);
    EXPECT_EQ(back.memory.tables, profile.memory.tables);
    ASSERT_EQ(back.memory.calls.size(), profile.memory.calls.size());
    for (std::size_t i = 0; i < profile.memory.calls.size(); ++i) {
      const auto& [key, memory] = profile.memory.calls[i];
      EXPECT_EQ(back.memory.calls[i].key, key);
      EXPECT_EQ(back.memory.calls[i].memory.saved, memory.saved);
      EXPECT_EQ(back.memory.calls[i].memory.workspace, memory.workspace);
      EXPECT_EQ(back.memory.calls[i].memory.workspace_bound, memory.workspace_bound);
    }
    EXPECT_EQ(back.rates.source, profile.rates.source);
    EXPECT_EQ(back.rates.measured, profile.rates.measured);
    ASSERT_EQ(back.rates.calls.size(), profile.rates.calls.size());
    for (std::size_t i = 0; i < profile.rates.calls.size(); ++i) {
      EXPECT_EQ(back.rates.calls[i].key, profile.rates.calls[i].key);
      EXPECT_EQ(back.rates.calls[i].steady, profile.rates.calls[i].steady);
      EXPECT_EQ(back.rates.calls[i].rested, profile.rates.calls[i].rested);
      EXPECT_EQ(back.rates.calls[i].graph_alone, profile.rates.calls[i].graph_alone);
    }
    expect_equal(back.rates.h2d, profile.rates.h2d);
    expect_equal(back.rates.d2h, profile.rates.d2h);
    expect_equal(back.rates.cpu_update, profile.rates.cpu_update);
    expect_equal(back.rates.gpu_update, profile.rates.gpu_update);
    expect_equal(back.rates.norm, profile.rates.norm);
    expect_equal(back.rates.round, profile.rates.round);
    EXPECT_EQ(back.rates.finish_norm, profile.rates.finish_norm);
    EXPECT_EQ(back.rates.between_steps, profile.rates.between_steps);
    EXPECT_EQ(back.rates.slowdown, profile.rates.slowdown);
    EXPECT_EQ(profile_json(back), text);
  }
}

TEST(ProfileJson, NeedsNoKeyAndNoSlowdown) {
  const StoredProfile profile =
      parse_profile(R"({"schema": 2, "machine": "m", "compute_dtype": "bfloat16", "outside_bytes": 7,
    "rates": {"source": "by hand", "measured": false, "h2d": {"seconds": 1e-5, "per_byte": 2e-11},
              "d2h": {"seconds": 0, "per_byte": 1}, "cpu_update": {"seconds": 0, "per_element": 1},
              "gpu_update": {"seconds": 0, "per_element": 1}, "norm": {"seconds": 0, "per_element": 1},
              "round": {"seconds": 0, "per_element": 1}, "finish_norm": 0, "between_steps": 0, "calls": []},
    "memory": {"library_workspace": 1, "tables": 0, "calls": []}})",
                    "hand.json");
  EXPECT_EQ(profile.key, "");
  EXPECT_EQ(profile.compute, DType::kBf16);
  EXPECT_EQ(profile.outside, 7);
  EXPECT_EQ(profile.rates.h2d.of(1e6), 1e-5 + 1e6 * 2e-11);
  EXPECT_EQ(profile.rates.slowdown, Rates::no_slowdown());
}

// What is said of a profile in which the first `from` reads `to`.
std::string refused(const std::string& from, const std::string& to) {
  std::mt19937 random(7);
  StoredProfile profile = drawn(random);
  profile.rates.measured = true;
  profile.outside = 5;
  profile.rates.h2d = {0.25, 0.5};
  profile.rates.slowdown[0][1] = 1.5;
  for (Rates::Call& call : profile.rates.calls) {
    call.steady = call.rested = 0.125;
    call.graph_alone = call.key.pass == Pass::kForwardKeep ? 0.75 : 1;
  }
  std::string text = profile_json(profile);
  const auto at = text.find(from);
  if (at == std::string::npos) return "no " + from + " in " + text;
  try {
    parse_profile(text.replace(at, from.size(), to), "some.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "nothing";
}

TEST(ProfileJson, SaysWhatIsWrongWithFileKeyAndValue) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"\"schema\": 2", "\"schema\": 1", "some.json: schema: 1, must be 2: this program reads no other"},
      {"\"schema\": 2,", "", "some.json: schema is missing, must be a whole number of at least 0"},
      {"\"machine\": \"some machine\"", "\"machine\": 3", "some.json: machine: 3, must be a string"},
      {"\"machine\"", "\"machin\"",
       "some.json: unknown key 'machin'; known are schema, key, machine, compute_dtype, outside_bytes, rates, memory"},
      {"\"outside_bytes\": 5", "\"outside_bytes\": -5",
       "some.json: outside_bytes: -5, must be a whole number of at least 0"},
      {"\"per_byte\": 0.5", "\"per_byte\": -0.5",
       "some.json: rates.h2d.per_byte: -0.5, must be a number of at least 0"},
      {"\"per_byte\"", "\"per_bit\"", "some.json: unknown key 'rates.h2d.per_bit'; known are seconds, per_byte"},
      {"\"measured\": true", "\"measured\": \"yes\"", "some.json: rates.measured: \"yes\", must be true or false"},
      {"\"h2d\": 1.5", "\"h2d\": 0.5",
       "some.json: rates.slowdown.compute.h2d: 0.5, must be a number of at least 1: how many times as long a task "
       "takes"},
      {"\"rested\": 0.125", "\"rested\": 0.5", "some.json: rates.calls[0].rested: 0.5, must be at most steady (0.125)"},
      {"\"graph_alone\": 0.75", "\"graph_alone\": 1.5",
       "some.json: rates.calls[0].graph_alone: 1.5, must be a number above 0 and at most 1: the call's time without "
       "its result / with it"},
      {"\"graph_alone\": 0.75", "\"graph_alone\": 0",
       "some.json: rates.calls[0].graph_alone: 0, must be a number above 0 and at most 1: the call's time without its "
       "result / with it"},
      {"\"pass\": \"forward_keep\"", "\"pass\": \"keep\"",
       "some.json: rates.calls[0].pass: \"keep\", must be one of forward, forward_keep, backward"},
      {"\"row_tokens\": 8", "\"row_tokens\": 1e3",
       "some.json: rates.calls[0].row_tokens: 1000.0, must be a whole number of at least 1"},
      {"\"rows\": 2,", "", "some.json: rates.calls[0].rows is missing, must be a whole number of at least 1"},
      {"\"library_workspace\": 4096", "\"library_workspace\": 18446744073709551615",
       "some.json: memory.library_workspace: 18446744073709551615, must be a whole number of at least 0"},
  };
  for (const auto& [from, to, message] : cases) EXPECT_EQ(refused(from, to), message);
  EXPECT_THAT(refused("{", "["), StartsWith("some.json:2: not JSON"));
  try {
    parse_profile("[1]", "list.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "list.json: a profile: [1], must be a JSON object");
  }
}

TEST(ProfileJson, RefusesToWriteWhatItWouldNotRead) {
  std::mt19937 random(7);
  StoredProfile profile = drawn(random);
  profile.rates.h2d.seconds = std::nan("");
  EXPECT_THROW(profile_json(profile), InternalError);
  profile = drawn(random);
  profile.rates.calls[0].rested = 2 * profile.rates.calls[0].steady;
  EXPECT_THROW(profile_json(profile), InternalError);
  profile = drawn(random);
  profile.rates.calls[0].graph_alone = 1.25;
  EXPECT_THROW(profile_json(profile), InternalError);
}

}  // namespace
}  // namespace protrain
