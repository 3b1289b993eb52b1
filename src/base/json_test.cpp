#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace protrain {
namespace {

std::string message_of(std::string_view text) {
  try {
    parse_json(text, "config.json", ExitCode::kFiles);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFiles);
    return error.what();
  }
  return "accepted";
}

TEST(Json, AGoodTextBecomesATree) {
  const auto tree = parse_json(R"({"a": [1, 2.5, {"a": "x"}], "b": {"a": null}})", "f", ExitCode::kConfig);
  EXPECT_EQ(tree["a"][0], 1);
  EXPECT_EQ(tree["a"][2]["a"], "x");
  EXPECT_TRUE(tree["b"]["a"].is_null());
}

TEST(Json, AnErrorNamesFileAndLine) {
  EXPECT_TRUE(message_of("{\n\"a\": 1,\n\"b\" 2}").starts_with("config.json:3: not JSON ("))
      << message_of("{\n\"a\": 1,\n\"b\" 2}");
  EXPECT_TRUE(message_of("").starts_with("config.json:1: ")) << message_of("");
  EXPECT_TRUE(message_of("{\"a\": NaN}").starts_with("config.json:1: ")) << message_of("{\"a\": NaN}");
  EXPECT_TRUE(message_of("{\"a\": 1} x").starts_with("config.json:1: ")) << message_of("{\"a\": 1} x");
  EXPECT_NE(message_of("[1e999]"), "accepted");
}

TEST(Json, AKeyThatComesTwiceIsRefusedAndNamed) {
  EXPECT_NE(message_of(R"({"x": 1, "y": {"x": 2}, "x": 3})").find("\"x\""), std::string::npos);
  EXPECT_EQ(message_of(R"([{"x": 1}, {"x": 2}])"), "accepted");
}

TEST(Json, ATextOfAMillionBracketsIsAnErrorAndNoOverflow) {
  EXPECT_NE(message_of(std::string(1000000, '[')), "accepted");
}

TEST(Json, ATreeTooDeepToWalkIsRefused) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_EQ(message_of(nested(200)), "accepted");
  EXPECT_EQ(message_of(nested(100000)), "config.json: nested more than 256 levels deep");
}

TEST(Json, AMessageShowsTheBeginningOfAValue) {
  EXPECT_EQ(shown({{"a", {1, "x\n"}}}), R"({"a":[1,"x\n"]})");
  EXPECT_EQ(shown("\xff"), R"("\ufffd")");
  EXPECT_EQ(shown(std::string(100000, 'x')), '"' + std::string(59, 'x') + "...");
}

}  // namespace
}  // namespace protrain
