#include "train/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace protrain {
namespace {

using ::testing::HasSubstr;

Prediction predicted(double seconds) {
  Prediction prediction;
  prediction.step_seconds = seconds;
  prediction.busy[static_cast<std::size_t>(Lane::kCompute)] = seconds / 2;
  return prediction;
}

Timeline computing(double seconds) {
  Timeline timeline;
  timeline.spans = {{0, Lane::kCompute, 0, seconds / 2}, {1, Lane::kCompute, seconds / 2, seconds}};
  timeline.seconds = seconds;
  return timeline;
}

// Steps of so many seconds until an interval ends.
std::optional<ForecastError> run(Forecast& forecast, double seconds, int most = 1000) {
  const Timeline timeline = computing(seconds / 4);
  for (int i = 0; i < most; ++i) {
    const bool traced = forecast.wants_trace();
    const auto error = forecast.step(seconds, true, traced ? &timeline : nullptr);
    EXPECT_EQ(error.has_value(), traced);
    if (error) return error;
  }
  return std::nullopt;
}

TEST(Forecast, SaysHowMuchLongerThanPredictedTheStepAndEachLaneTook) {
  Forecast forecast(50);
  forecast.expect(predicted(1));
  const auto error = run(forecast, 1.2);
  ASSERT_TRUE(error);
  EXPECT_NEAR(error->step, 0.2, 1e-12);
  EXPECT_NEAR(*error->lanes[static_cast<std::size_t>(Lane::kCompute)], 1.2 / 2 - 1, 1e-12);
  EXPECT_FALSE(error->lanes[static_cast<std::size_t>(Lane::kH2d)]);
  EXPECT_THAT(forecast.describe(*error), HasSubstr("+20.0 %"));
  EXPECT_THAT(forecast.describe(*error), HasSubstr("compute -40.0 %"));
}

TEST(Forecast, ComparesEarlyAndThenEveryInterval) {
  Forecast forecast(25);
  forecast.expect(predicted(1));
  std::vector<int> ends;
  const Timeline timeline = computing(1);
  for (int step = 1; step <= 80; ++step) {
    const bool traced = forecast.wants_trace();
    if (forecast.step(1, true, traced ? &timeline : nullptr)) ends.push_back(step);
  }
  EXPECT_EQ(ends, (std::vector<int>{10, 25, 50, 75}));
}

TEST(Forecast, OneSlowStepOrAShortOneIsNoError) {
  Forecast forecast(20);
  forecast.expect(predicted(1));
  const Timeline timeline = computing(1);
  for (int step = 1; step <= 20; ++step) {
    const bool full = step % 3 != 0 || step == 20;
    const double seconds = !full ? 0.1 : step == 4 ? 30 : 1;
    const auto error = forecast.step(seconds, full, forecast.wants_trace() ? &timeline : nullptr);
    if (error) {
      EXPECT_EQ(error->step, 0);
    }
  }
}

TEST(Forecast, AnErrorLastsWhenThreeIntervalsInARowWereFarOff) {
  Forecast forecast(5);
  forecast.expect(predicted(1));
  const std::vector<std::pair<double, bool>> intervals = {{1.5, false}, {1.5, false}, {1.05, false}, {0.8, false},
                                                          {1.2, false}, {1.11, true}, {1.3, true}};
  for (const auto& [seconds, lasting] : intervals) {
    ASSERT_TRUE(run(forecast, seconds));
    EXPECT_EQ(forecast.lasting(), lasting) << seconds;
  }
  forecast.expect(predicted(1.3));
  EXPECT_FALSE(forecast.lasting());
}

TEST(Forecast, OfNoIntervalAsksForNoTrace) {
  Forecast forecast(0);
  forecast.expect(predicted(1));
  for (int step = 0; step < 30; ++step) {
    EXPECT_FALSE(forecast.wants_trace());
    EXPECT_FALSE(forecast.step(9, true, nullptr));
  }
}

}  // namespace
}  // namespace protrain
