#include "train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace protrain {
namespace {

TEST(ProgressTest, PlainLinesForLoggedStepsOnly) {
  std::string out;
  {
    Progress progress({.terminal = false, .print = [&](const std::string& text) { out += text; }}, 0, 10);
    progress.step(1, {.loss = 2.5}, false);
    progress.step(2, {.loss = 1.25, .skipped = true}, true);
  }
  EXPECT_THAT(out, ::testing::StartsWith("step 2/10  loss 1.2500"));
  EXPECT_THAT(out, ::testing::HasSubstr("skipped"));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_EQ(out.find('\r'), std::string::npos);
}

TEST(ProgressTest, ATerminalSeesOneLineRedrawnAndLeftClean) {
  std::string out;
  {
    Progress progress({.terminal = true, .print = [&](const std::string& text) { out += text; }}, 5, 10);
    progress.step(10, {}, false);
  }
  EXPECT_THAT(out, ::testing::StartsWith("\r"));
  EXPECT_THAT(out, ::testing::HasSubstr("[========================]"));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_EQ(out.back(), '\n');
}

TEST(ProgressTest, DurationsReadAsClocks) {
  EXPECT_EQ(format_duration(7.2), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "?");
}

}  // namespace
}  // namespace protrain
