#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace protrain {
namespace {

// Steps of one row whose every token is the step's number.
class StepNumbers : public BatchSource {
 public:
  std::int64_t steps_per_epoch() const override { return 10; }
  std::int64_t rows() const override { return 10; }
  std::int64_t dropped_samples() const override { return 0; }
  std::vector<BatchShape> shapes() const override { return {shape_}; }
  Bytes step_bytes() const override { return batch_layout(shape_).bytes; }
  StepBatch fill(std::int64_t step, std::byte* to) const override {
    std::this_thread::sleep_for(fill_time_);
    filled_ = step + 1;
    if (step == failing_step_) fail(ExitCode::kData, "x.ptk: step {} is broken", step);
    auto* words = reinterpret_cast<std::int32_t*>(to);
    for (Bytes i = 0; i < step_bytes() / 4; ++i) words[i] = static_cast<std::int32_t>(step);
    StepBatch batch;
    batch.shape = shape_;
    batch.micro_batches = 1;
    batch.tokens = step;
    return batch;
  }

  BatchShape shape_{1, 64, 1, false};
  std::chrono::milliseconds fill_time_{0};
  std::int64_t failing_step_ = -1;
  mutable std::atomic<std::int64_t> filled_ = 0;
};

std::vector<std::int32_t> buffer_of(const BatchSource& source) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(source.step_bytes() / 4));
}
std::byte* bytes_of(std::vector<std::int32_t>& buffer) { return reinterpret_cast<std::byte*>(buffer.data()); }

TEST(Loader, GivesEveryStepInOrderFromWhereItStarts) {
  const StepNumbers source;
  Loader loader(source, 3, 200);
  std::vector<std::int32_t> buffer = buffer_of(source);
  for (std::int64_t step = 3; step < 200; ++step) {
    EXPECT_EQ(loader.next(bytes_of(buffer)).tokens, step);
    for (const std::int32_t word : buffer) ASSERT_EQ(word, step);
  }
  EXPECT_THROW(loader.next(bytes_of(buffer)), InternalError);
}

TEST(Loader, ReadsTwoStepsAheadAndNoFurther) {
  const StepNumbers source;
  Loader loader(source, 0, 100);
  const auto settled = [&](std::int64_t filled) {
    for (int i = 0; i < 2000 && source.filled_ < filled; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to go too far
    return source.filled_.load();
  };
  EXPECT_EQ(settled(2), 2);
  std::vector<std::int32_t> buffer = buffer_of(source);
  loader.next(bytes_of(buffer));
  EXPECT_EQ(settled(3), 3);
}

TEST(Loader, AnErrorComesOutAtItsStepAndStays) {
  StepNumbers source;
  source.failing_step_ = 2;
  Loader loader(source, 0, 10);
  std::vector<std::int32_t> buffer = buffer_of(source);
  EXPECT_EQ(loader.next(bytes_of(buffer)).tokens, 0);
  EXPECT_EQ(loader.next(bytes_of(buffer)).tokens, 1);
  for (int i = 0; i < 2; ++i) {
    try {
      loader.next(bytes_of(buffer));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_STREQ(error.what(), "x.ptk: step 2 is broken");
    }
  }
}

TEST(Loader, EndsAtOnceWhileReadingAhead) {
  StepNumbers source;
  source.fill_time_ = std::chrono::milliseconds(1);
  for (int i = 0; i < 20; ++i) {
    Loader loader(source, 0, 1 << 20);
    if (i % 2 == 1) {
      std::vector<std::int32_t> buffer = buffer_of(source);
      loader.next(bytes_of(buffer));
    }
  }
  const Loader empty(source, 5, 5);
}

TEST(Loader, CountsTheTimeThatTheStepHadToWait) {
  StepNumbers slow;
  slow.fill_time_ = std::chrono::milliseconds(20);
  std::vector<std::int32_t> buffer = buffer_of(slow);
  Loader loader(slow, 0, 3);
  for (int i = 0; i < 3; ++i) loader.next(bytes_of(buffer));
  EXPECT_GE(loader.stalled_seconds(), 0.05);

  const StepNumbers fast;
  Loader ahead(fast, 0, 3);
  while (fast.filled_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ahead.next(bytes_of(buffer));
  EXPECT_LT(ahead.stalled_seconds(), 0.02);
}

}  // namespace
}  // namespace protrain
