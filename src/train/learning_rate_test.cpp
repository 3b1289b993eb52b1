#include "train/learning_rate.h"

#include <gtest/gtest.h>

#include "base/error.h"

// Values against transformers' own schedulers: tests/train/test_learning_rate.py.
namespace protrain {
namespace {

LearningRate make(const std::string& type, double warmup, std::int64_t total, double decay = 0.1) {
  TrainConfig config;
  config.learning_rate = 2;
  config.lr_scheduler_type = type;
  config.warmup_steps = warmup;
  config.lr_decay_steps = decay;
  return make_learning_rate(config, total);
}

TEST(LearningRateTest, WarmupRisesFromZeroToThePeak) {
  for (const char* type : {"constant_with_warmup", "linear", "cosine", "wsd"}) {
    const LearningRate rate = make(type, 4, 100);
    EXPECT_EQ(rate.at(0), 0) << type;
    EXPECT_EQ(rate.at(1), 0.5) << type;
    EXPECT_EQ(rate.at(4), 2) << type;
  }
}

TEST(LearningRateTest, ConstantIgnoresWarmup) { EXPECT_EQ(make("constant", 10, 100).at(0), 2); }

TEST(LearningRateTest, WarmupBelowOneIsAShareRoundedUp) {
  EXPECT_EQ(make("linear", 0.1, 25).warmup_steps, 3);
  EXPECT_EQ(make("linear", 3.9, 25).warmup_steps, 3);
  EXPECT_EQ(make("linear", 1, 25).warmup_steps, 1);
  EXPECT_EQ(make("linear", 0, 25).warmup_steps, 0);
  TrainConfig config;
  config.warmup_ratio = 1;
  EXPECT_EQ(make_learning_rate(config, 25).warmup_steps, 25);
}

TEST(LearningRateTest, EndsAtTheMinimum) {
  for (const char* type : {"linear", "cosine", "wsd"}) {
    TrainConfig config;
    config.learning_rate = 2;
    config.lr_scheduler_type = type;
    config.min_lr_ratio = 0.25;
    const LearningRate rate = make_learning_rate(config, 50);
    EXPECT_NEAR(rate.at(50), 0.5, 1e-15) << type;
    for (std::int64_t update = 0; update < 50; ++update) {
      EXPECT_GE(rate.at(update), rate.at(update + 1)) << type << " " << update;
    }
  }
}

TEST(LearningRateTest, StablePhaseStaysAtThePeakUntilTheDecay) {
  const LearningRate rate = make("wsd", 10, 100, 20);
  for (std::int64_t update = 10; update <= 80; ++update) EXPECT_EQ(rate.at(update), 2) << update;
  EXPECT_LT(rate.at(81), 2);
}

TEST(LearningRateTest, WarmupAndDecayLongerThanTheRunAreRefused) { EXPECT_THROW(make("wsd", 60, 100, 50), Error); }

}  // namespace
}  // namespace protrain
