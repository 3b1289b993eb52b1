#include "train/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace protrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> words_at_resume(const RunState& now, const RunState& then) {
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, const std::string& line) { lines.push_back(line); });
  check_resume(now, 1, parse_run_state(run_state_json(then), "state.json"), 1, "out/checkpoint-3");
  log::set_sink({});
  return lines;
}

RunState state_of(const std::string& yaml, DType compute) {
  const std::string whole = "model_name_or_path: m\ntrain_file: t\noutput_dir: o\n" + yaml;
  RunState state;
  state.settings = update_settings(parse_config(whole, "run.yaml", {}), compute);
  return state;
}

TEST(RunStateTest, SettingsThatChangedAreNamedInOneLineWithBothValues) {
  const RunState then = state_of("weight_decay: 0.1\nmax_steps: 6\n", DType::kBf16);
  const RunState now = state_of("weight_decay: 0.25\nmax_steps: 9\nsave_steps: 3\n", DType::kF32);
  EXPECT_THAT(words_at_resume(now, then),
              ElementsAre(AllOf(HasSubstr("out/checkpoint-3"), HasSubstr("weight_decay: 0.25 (was 0.1)"),
                                HasSubstr("max_steps: 9 (was 6)"), HasSubstr("compute_dtype: float32 (was bfloat16)"),
                                Not(HasSubstr("save_steps")), Not(HasSubstr("adam_beta1")))));
}

TEST(RunStateTest, TheSameSettingsAndCheckpointsWithoutAnyAreSilent) {
  const RunState now = state_of("lr_scheduler_type: cosine\n", DType::kF32);
  EXPECT_THAT(words_at_resume(now, now), IsEmpty());
  EXPECT_THAT(words_at_resume(now, RunState()), IsEmpty());
}

}  // namespace
}  // namespace protrain
