// The learning rate as a pure function of the update's index, so that resume, accumulation and skipped updates cannot
// shift it. Formulas: transformers' optimization.py (get_scheduler); min_ratio scales linear and cosine decay as
// cosine_with_min_lr does. Thread-safe.
#pragma once
#include <cstdint>

#include "train/config.h"

namespace protrain {

enum class LrShape : std::uint8_t { kConstant, kConstantWithWarmup, kLinear, kCosine, kWarmupStableDecay };
enum class LrDecay : std::uint8_t { kLinear, kCosine, kOneMinusSqrt };

struct LearningRate {
  LrShape shape = LrShape::kLinear;
  double peak = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double min_ratio = 0;
  std::int64_t decay_steps = 0;  // kWarmupStableDecay
  LrDecay decay = LrDecay::kCosine;

  // update: from 0; the update that brings the model to step update + 1.
  double at(std::int64_t update) const;
};

// Shares of warm-up and decay become counts of updates here, rounded up. Error(kConfig) when warm-up and decay together
// are longer than the run.
LearningRate make_learning_rate(const TrainConfig&, std::int64_t total_steps);

}  // namespace protrain
