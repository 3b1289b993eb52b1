#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "data/loader.h"
#include "data/row_index.h"
#include "data/shuffle.h"
#include "data/test_support.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

// Samples of given lengths. Token i of the file has id i + 1, so a token in a batch says where it came from and padding
// is no token.
class NumberedTokens : public TokenFile {
 public:
  explicit NumberedTokens(const std::vector<std::int64_t>& lengths) {
    for (const std::int64_t length : lengths) starts_.push_back(starts_.back() + length);
    mask_.assign(static_cast<std::size_t>(starts_.back()), 1);
  }
  std::int64_t tokens() const override { return starts_.back(); }
  std::int64_t samples() const override { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t vocabulary() const override { return tokens() + 1; }
  std::int64_t sample_start(std::int64_t sample) const override { return starts_[static_cast<std::size_t>(sample)]; }
  std::uint64_t fingerprint() const override { return 0; }
  void check_digest() const override {}
  void read(std::int64_t first, std::int64_t count, std::int32_t* tokens, std::uint8_t* supervised) const override {
    ASSERT_TRUE(first >= 0 && count >= 0 && first + count <= this->tokens());
    if (tokens != nullptr) std::iota(tokens, tokens + count, static_cast<std::int32_t>(first + 1));
    if (supervised != nullptr) std::copy_n(mask_.begin() + first, count, supervised);
    tokens_read_ += count;
  }
  std::int64_t sample_of(std::int64_t token) const {
    return std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin() - 1;
  }

  std::vector<std::uint8_t> mask_;
  mutable std::atomic<std::int64_t> tokens_read_ = 0;

 private:
  std::vector<std::int64_t> starts_ = {0};
};

struct Case {
  std::shared_ptr<NumberedTokens> file;
  SamplingOptions options;
};

Case random_case(std::mt19937& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Case c;
  c.options.cutoff_len = 2 + below(60);
  c.options.split_long = below(2) == 0;
  c.options.packing = below(2) == 0;
  c.options.shuffle = below(4) != 0;
  c.options.seed = random();
  c.options.micro_batch = 1 + below(4);
  c.options.accumulation = 1 + below(3);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(1 + below(60)));
  const std::int64_t longest = 1 + below(below(2) == 0 ? 8 : 150);
  for (std::int64_t& length : lengths) length = below(longest + 1);
  lengths.push_back(2);  // so that something is left
  c.file = std::make_shared<NumberedTokens>(lengths);
  for (std::size_t i = 0; i + 2 < c.file->mask_.size(); ++i) c.file->mask_[i] = below(3) != 0;
  return c;
}

std::unique_ptr<BatchSource> source_of(const Case& c) { return make_batch_source(c.file, c.options, "x.ptk"); }

constexpr std::size_t kGuard = 64;

// One step's bytes with a guard behind the most that a fill may write.
struct Step {
  StepBatch batch;
  std::vector<std::byte> bytes;
  const std::int32_t* array(std::int64_t micro_batch, Bytes BatchLayout::* which) const {
    const BatchLayout layout = batch_layout(batch.shape);
    return reinterpret_cast<const std::int32_t*>(bytes.data() + micro_batch * layout.bytes + layout.*which);
  }
};

Step fill_step(const BatchSource& source, std::int64_t step) {
  Step result;
  result.bytes.assign(static_cast<std::size_t>(source.step_bytes()) + kGuard, std::byte{0xa5});
  result.batch = source.fill(step, result.bytes.data());
  for (std::size_t i = 0; i < kGuard; ++i) EXPECT_EQ(result.bytes[result.bytes.size() - 1 - i], std::byte{0xa5});
  return result;
}

// What a row holds, from the batch alone: the file's tokens in order, -1 for padding.
using Row = std::vector<std::int64_t>;

// Checks one step against the rules with no help from the code under test, and returns its rows that hold a sample.
std::vector<Row> check_step(const Case& c, const Step& step) {
  const BatchShape& shape = step.batch.shape;
  const std::int64_t all = shape.tokens();
  EXPECT_LE(shape.rows, c.options.micro_batch);
  EXPECT_EQ(shape.packed, c.options.packing);
  EXPECT_LE(shape.row_tokens, c.options.cutoff_len);
  std::vector<Row> rows;
  std::int64_t tokens = 0;
  std::int64_t supervised = 0;
  for (std::int64_t m = 0; m < step.batch.micro_batches; ++m) {
    const std::int32_t* ids = step.array(m, &BatchLayout::tokens);
    const std::int32_t* labels = step.array(m, &BatchLayout::labels);
    const std::int32_t* positions = step.array(m, &BatchLayout::positions);
    const std::int32_t* starts = step.array(m, &BatchLayout::sample_starts);

    EXPECT_EQ(starts[0], 0);
    EXPECT_EQ(starts[shape.max_samples], all);
    std::vector<std::int32_t> segment_of(static_cast<std::size_t>(all), 0);
    for (std::int64_t s = 0; s < shape.max_samples; ++s) {
      EXPECT_LE(starts[s], starts[s + 1]);
      EXPECT_LE(starts[s + 1] - starts[s], shape.row_tokens);
      for (std::int32_t i = starts[s]; i < starts[s + 1]; ++i) {
        segment_of[static_cast<std::size_t>(i)] = starts[s];
        EXPECT_EQ(positions[i], i - starts[s]);
        EXPECT_EQ(i / shape.row_tokens, starts[s] / shape.row_tokens) << "a sample crosses a row's edge";
      }
    }
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      Row row;
      for (std::int64_t t = 0; t < shape.row_tokens; ++t) {
        const std::int64_t i = r * shape.row_tokens + t;
        const bool real = ids[i] != 0;
        const std::int64_t token = ids[i] - 1;
        if (real) {
          if (segment_of[static_cast<std::size_t>(i)] != i) {
            EXPECT_EQ(token, row.back() + 1) << "a segment must be consecutive tokens";
            EXPECT_EQ(c.file->sample_of(token), c.file->sample_of(row.back())) << "two samples in one segment";
          }
        } else {
          EXPECT_EQ(labels[i], kIgnoredLabel);
        }
        row.push_back(token);
        if (labels[i] != kIgnoredLabel) {
          ++supervised;
          EXPECT_EQ(labels[i] - 1, token + 1);
          EXPECT_NE(c.file->mask_[static_cast<std::size_t>(token + 1)], 0);
          EXPECT_EQ(c.file->sample_of(token + 1), c.file->sample_of(token));
        }
        tokens += real;
      }
      if (std::any_of(row.begin(), row.end(), [](std::int64_t t) { return t >= 0; })) rows.push_back(row);
    }
  }
  EXPECT_EQ(tokens, step.batch.tokens);
  EXPECT_EQ(supervised, step.batch.supervised_tokens);
  return rows;
}

// All targets of an epoch by the rules, straight from the samples.
std::multiset<std::int64_t> expected_targets(const Case& c) {
  std::multiset<std::int64_t> targets;
  for (std::int64_t s = 0; s < c.file->samples(); ++s) {
    const std::int64_t begin = c.file->sample_start(s);
    std::int64_t end = c.file->sample_start(s + 1);
    if (!c.options.split_long) end = std::min(end, begin + c.options.cutoff_len);
    for (std::int64_t t = begin + 1; t < end; ++t) {
      if (c.file->mask_[static_cast<std::size_t>(t)] != 0) targets.insert(t);
    }
  }
  return targets;
}

TEST(BatchSource, EveryTargetIsLearntOnceAnEpochWhateverTheOptions) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const Case c = random_case(random);
    SCOPED_TRACE(fmt::format("round {} cutoff {} packing {} split {}", round, c.options.cutoff_len, c.options.packing,
                             c.options.split_long));
    const auto source = source_of(c);
    const std::multiset<std::int64_t> expected = expected_targets(c);
    const std::vector<BatchShape> shapes = source->shapes();
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::multiset<std::int64_t> targets;
      std::int64_t rows = 0;
      for (std::int64_t s = 0; s < source->steps_per_epoch(); ++s) {
        const Step step = fill_step(*source, epoch * source->steps_per_epoch() + s);
        EXPECT_NE(std::find(shapes.begin(), shapes.end(), step.batch.shape), shapes.end());
        rows += static_cast<std::int64_t>(check_step(c, step).size());
        for (std::int64_t m = 0; m < step.batch.micro_batches; ++m) {
          const std::int32_t* labels = step.array(m, &BatchLayout::labels);
          for (std::int64_t i = 0; i < step.batch.shape.tokens(); ++i) {
            if (labels[i] != kIgnoredLabel) targets.insert(labels[i] - 1);
          }
        }
      }
      ASSERT_EQ(targets, expected);
      ASSERT_EQ(rows, source->rows());
    }
    if (HasFailure()) return;
  }
}

TEST(BatchSource, PacksHoldWholeSamplesAndFewRows) {
  std::vector<std::int64_t> lengths;
  std::mt19937 random(7);
  std::int64_t total = 0;
  for (int i = 0; i < 4000; ++i) {
    lengths.push_back(3 + static_cast<std::int64_t>(random() % 498));
    total += lengths.back();
  }
  Case c{std::make_shared<NumberedTokens>(lengths), {}};
  c.options.packing = true;
  c.options.cutoff_len = 1024;
  const auto source = source_of(c);
  EXPECT_LE(source->rows(), total / 1024 * 102 / 100 + 2) << "more than 2 % padding";
  EXPECT_EQ(source->shapes().size(), 1u);
  EXPECT_EQ(source->shapes().front().row_tokens, 1024);
}

TEST(BatchSource, APackClosesAtItsPlannedNumberOfSamples) {
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>(100, 2)), {}};
  c.options.packing = true;
  c.options.cutoff_len = 64;
  c.options.micro_batch = 2;
  const auto source = source_of(c);
  EXPECT_EQ(source->rows(), 25);  // 4 samples of 2 tokens each, not 32
  EXPECT_EQ(source->shapes().front().max_samples, 2 * 5);
  for (std::int64_t s = 0; s < source->steps_per_epoch(); ++s) check_step(c, fill_step(*source, s));
}

TEST(BatchSource, TheCutOfAStepIntoMicroBatchesKeepsItsSamples) {
  const std::vector<std::int64_t> lengths = {3, 500, 17, 64, 250, 128, 9, 90, 33, 70, 21};
  for (const bool packing : {false, true}) {
    std::map<std::int64_t, std::vector<std::vector<Row>>> by_cut;
    std::vector<std::vector<std::int64_t>> supervised;
    for (const auto& [micro_batch, accumulation] : {std::pair{8, 1}, {4, 2}, {1, 8}}) {
      Case c{std::make_shared<NumberedTokens>(lengths), {}};
      c.options.cutoff_len = 512;
      c.options.packing = packing;
      c.options.micro_batch = micro_batch;
      c.options.accumulation = accumulation;
      const auto source = source_of(c);
      supervised.emplace_back();
      for (std::int64_t s = 0; s < 3 * source->steps_per_epoch(); ++s) {
        const Step step = fill_step(*source, s);
        by_cut[micro_batch].push_back(check_step(c, step));
        supervised.back().push_back(step.batch.supervised_tokens);
      }
    }
    EXPECT_EQ(by_cut[8], by_cut[4]);
    EXPECT_EQ(by_cut[8], by_cut[1]);
    EXPECT_EQ(supervised[0], supervised[1]);
    EXPECT_EQ(supervised[0], supervised[2]);
  }
}

TEST(BatchSource, AnyStepCanBeFilledInAnyOrderByAnyThread) {
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    const Case c = random_case(random);
    const auto first = source_of(c);
    const std::int64_t steps = 3 * first->steps_per_epoch() + 1;
    std::vector<Step> in_order;
    in_order.reserve(static_cast<std::size_t>(steps));
    for (std::int64_t s = 0; s < steps; ++s) in_order.push_back(fill_step(*first, s));
    const auto second = source_of(c);
    std::vector<std::thread> threads;
    threads.reserve(2);
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (std::int64_t s = steps - 1 - t; s >= 0; s -= 2) {
          const Step step = fill_step(*second, s);
          const Step& expected = in_order[static_cast<std::size_t>(s)];
          wrong += step.bytes != expected.bytes || step.batch.shape != expected.batch.shape ||
                   step.batch.epoch != expected.batch.epoch;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

TEST(BatchSource, EpochsEndWhereAnnouncedAndAreShuffledDifferently) {
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>(101, 8)), {}};
  c.options.cutoff_len = 8;
  c.options.micro_batch = 2;
  c.options.accumulation = 5;
  const auto source = source_of(c);
  EXPECT_EQ(source->rows(), 101);
  EXPECT_EQ(source->steps_per_epoch(), 11);
  const Step last = fill_step(*source, 10);
  EXPECT_EQ(last.batch.micro_batches, 1);  // one row left: a shorter update
  EXPECT_EQ(last.batch.tokens, 8);
  EXPECT_DOUBLE_EQ(last.batch.epoch, 1.0);
  EXPECT_DOUBLE_EQ(fill_step(*source, 32).batch.epoch, 3.0);
  EXPECT_NEAR(fill_step(*source, 0).batch.epoch, 10.0 / 101, 1e-12);

  const auto epoch_rows = [&](const BatchSource& from, std::int64_t epoch) {
    std::vector<Row> rows;
    for (std::int64_t s = 0; s < 11; ++s) {
      for (Row& row : check_step(c, fill_step(from, epoch * 11 + s))) rows.push_back(std::move(row));
    }
    return rows;
  };
  const std::vector<Row> zero = epoch_rows(*source, 0);
  std::vector<Row> one = epoch_rows(*source, 1);
  EXPECT_NE(zero, one);
  c.options.seed = 43;
  EXPECT_NE(epoch_rows(*source_of(c), 0), zero);
  c.options.shuffle = false;
  const std::vector<Row> in_file_order = epoch_rows(*source_of(c), 0);
  std::sort(one.begin(), one.end());
  EXPECT_EQ(in_file_order, one);  // sorted rows of numbered tokens are file order
  EXPECT_EQ(epoch_rows(*source_of(c), 1), in_file_order);
}

TEST(BatchSource, AStepTakesTheShortestBucketThatFits) {
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>{100, 50, 25, 13, 7, 3}), {}};
  c.options.cutoff_len = 100;
  c.options.micro_batch = 1;
  c.options.shuffle = false;
  const auto source = source_of(c);
  std::vector<std::int64_t> planned;
  for (const BatchShape& shape : source->shapes()) planned.push_back(shape.row_tokens);
  EXPECT_THAT(planned, ::testing::ElementsAre(100, 56, 32, 16, 8));
  std::vector<std::int64_t> used;
  used.reserve(6);
  for (std::int64_t s = 0; s < 6; ++s) used.push_back(fill_step(*source, s).batch.shape.row_tokens);
  EXPECT_THAT(used, ::testing::ElementsAre(100, 56, 32, 16, 8, 8));
}

TEST(BatchSource, ShapesLongerThanAnySampleAreNotPlanned) {
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>{100, 3}), {}};
  c.options.cutoff_len = 2048;
  EXPECT_EQ(source_of(c)->shapes().front().row_tokens, 112);
  c.options.packing = true;
  EXPECT_EQ(source_of(c)->shapes().front().row_tokens, 112);  // all in one row of 103
  c.options.packing = false;
  c.options.cutoff_len = 1 << 20;
  std::vector<std::int64_t> planned;
  for (const BatchShape& shape : source_of(c)->shapes()) planned.push_back(shape.row_tokens);
  EXPECT_THAT(planned, ::testing::ElementsAre(112, 56, 32, 16, 8));
  c.options.cutoff_len = 30;  // not a multiple of 8, and no row may be longer
  EXPECT_EQ(source_of(c)->shapes().front().row_tokens, 30);
}

TEST(BatchSource, AMicroBatchHasNoMoreRowsThanTheDataAndTheSameSteps) {
  for (const bool packing : {false, true}) {
    std::vector<Step> steps;
    for (const std::int64_t micro_batch : {3, 100000}) {
      Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>{30, 20, 31}), {}};
      c.options.cutoff_len = 32;
      c.options.packing = packing;
      c.options.micro_batch = micro_batch;
      c.options.accumulation = 4;
      const auto source = source_of(c);
      EXPECT_EQ(source->rows(), 3);
      EXPECT_EQ(source->shapes().front().rows, 3);
      EXPECT_EQ(source->steps_per_epoch(), 1);
      steps.push_back(fill_step(*source, 0));
      EXPECT_EQ(steps.back().batch.micro_batches, 1);
      EXPECT_EQ(steps.back().batch.tokens, 81);
    }
    EXPECT_EQ(steps[0].bytes, steps[1].bytes);
  }
}

TEST(BatchSource, SamplesWithoutATargetWithinTheCutoffAreDroppedAndCounted) {
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>{10, 10, 1, 0, 10}), {}};
  c.options.cutoff_len = 6;
  auto& mask = c.file->mask_;
  std::fill(mask.begin(), mask.end(), 0);
  mask[0] = 1;       // sample 0: only its first token, which nothing predicts
  mask[10 + 6] = 1;  // sample 1: only beyond the cutoff
  mask[21 + 5] = 1;  // sample 4: the last token within it
  const auto source = source_of(c);
  EXPECT_EQ(source->rows(), 1);
  EXPECT_EQ(source->dropped_samples(), 4);
  EXPECT_EQ(fill_step(*source, 0).batch.supervised_tokens, 1);
  c.options.split_long = true;
  EXPECT_EQ(source_of(c)->dropped_samples(), 3);
  EXPECT_EQ(source_of(c)->rows(), 2);
}

TEST(BatchSource, NothingToTrainOnIsADataFaultThatNamesTheFile) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {1, 1}, {0}}) {
    Case c{std::make_shared<NumberedTokens>(lengths), {}};
    try {
      source_of(c);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_THAT(error.what(), HasSubstr("x.ptk"));
    }
  }
}

TEST(BatchSource, OptionsOutOfRangeAreConfigFaults) {
  const auto code_of = [](void (*change)(SamplingOptions&)) {
    Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>{5}), {}};
    change(c.options);
    try {
      source_of(c);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kDone;
  };
  EXPECT_EQ(code_of([](SamplingOptions& o) { o.cutoff_len = 1; }), ExitCode::kConfig);
  EXPECT_EQ(code_of([](SamplingOptions& o) { o.micro_batch = 0; }), ExitCode::kConfig);
  EXPECT_EQ(code_of([](SamplingOptions& o) { o.accumulation = 0; }), ExitCode::kConfig);
  EXPECT_EQ(code_of([](SamplingOptions& o) { o.cutoff_len = std::int64_t{1} << 31; }), ExitCode::kConfig);
  EXPECT_EQ(code_of([](SamplingOptions& o) { o.cutoff_len = 1 << 30; }), ExitCode::kDone);
}

TEST(BatchSource, AMicroBatchOfMoreTokensThanIndicesCountIsAConfigFault) {
  std::vector<std::int64_t> lengths(2047, 2);
  lengths.push_back(1 << 20);
  Case c{std::make_shared<NumberedTokens>(lengths), {}};
  c.options.cutoff_len = 1 << 20;
  c.options.micro_batch = 2047;
  EXPECT_NO_THROW(source_of(c));
  c.options.micro_batch = 1 << 20;
  try {
    source_of(c);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
  }
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kFillSeconds = 0.1;
#else
constexpr double kFillSeconds = 0.005;
#endif

TEST(BatchSource, AFillReadsItsOwnTokensOnlyAndFast) {
  // 10^8 tokens would not fit the test's time if anything but the index were read at a fill.
  Case c{std::make_shared<NumberedTokens>(std::vector<std::int64_t>(20000, 1024)), {}};
  c.options.cutoff_len = 4096;
  c.options.packing = true;
  c.options.micro_batch = 16;
  const auto source = source_of(c);
  std::vector<std::byte> bytes(static_cast<std::size_t>(source->step_bytes()));
  double best_seconds = 1;
  for (std::int64_t s = 0; s < 20; ++s) {
    const std::int64_t before = c.file->tokens_read_;
    const auto begin = std::chrono::steady_clock::now();
    const StepBatch batch = source->fill(s, bytes.data());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (s > 0) best_seconds = std::min(best_seconds, seconds);  // the first shuffles the epoch
    EXPECT_EQ(c.file->tokens_read_ - before, batch.tokens);
  }
  RecordProperty("microseconds", static_cast<int>(best_seconds * 1e6));
  EXPECT_LT(best_seconds, kFillSeconds);
}

constexpr int kDraws = 24000;

TEST(Permutation, EveryOrderOfFourIsAboutAsLikely) {
  std::map<std::vector<std::int64_t>, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[permutation(4, 5, static_cast<std::uint64_t>(i))];
  EXPECT_EQ(counts.size(), 24u);
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 60.0);  // 23 degrees of freedom: 1 in 30,000 by chance, and the draw is fixed
}

}  // namespace
}  // namespace protrain
