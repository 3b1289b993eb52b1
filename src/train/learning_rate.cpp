#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace protrain {
namespace {

double share_or_count(double value, std::int64_t total) {
  return value >= 1 ? std::floor(value) : std::ceil(static_cast<double>(total) * value);
}

double half_cosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

double falling(LrDecay decay, double progress) {
  switch (decay) {
    case LrDecay::kLinear: return 1.0 - progress;
    case LrDecay::kCosine: return half_cosine(progress);
    case LrDecay::kOneMinusSqrt: return 1.0 - std::sqrt(progress);
  }
  return 0;
}

}  // namespace

double LearningRate::at(std::int64_t update) const {
  if (shape == LrShape::kConstant) return peak;
  const auto ratio = [](std::int64_t part, std::int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
  };
  const auto above_minimum = [&](double factor) {
    return peak * std::max(0.0, factor * (1.0 - min_ratio) + min_ratio);
  };

  if (update < warmup_steps) {
    const double factor = ratio(update, warmup_steps);
    return shape == LrShape::kWarmupStableDecay ? above_minimum(factor) : peak * factor;
  }
  switch (shape) {
    case LrShape::kConstant:
    case LrShape::kConstantWithWarmup: return peak;
    case LrShape::kLinear: return above_minimum(std::max(0.0, ratio(total_steps - update, total_steps - warmup_steps)));
    case LrShape::kCosine: return above_minimum(half_cosine(ratio(update - warmup_steps, total_steps - warmup_steps)));
    case LrShape::kWarmupStableDecay: {
      const std::int64_t decay_from = total_steps - decay_steps;
      if (update < decay_from) return peak;
      if (update < total_steps) return above_minimum(falling(decay, ratio(update - decay_from, decay_steps)));
      return peak * min_ratio;
    }
  }
  return peak;
}

LearningRate make_learning_rate(const TrainConfig& config, std::int64_t total_steps) {
  LearningRate rate;
  const std::string& type = config.lr_scheduler_type;
  if (type == "constant") rate.shape = LrShape::kConstant;
  if (type == "constant_with_warmup") rate.shape = LrShape::kConstantWithWarmup;
  if (type == "linear") rate.shape = LrShape::kLinear;
  if (type == "cosine" || type == "cosine_with_min_lr") rate.shape = LrShape::kCosine;
  if (type == "warmup_stable_decay" || type == "wsd") rate.shape = LrShape::kWarmupStableDecay;
  if (config.lr_decay_type == "linear") rate.decay = LrDecay::kLinear;
  if (config.lr_decay_type == "1-sqrt") rate.decay = LrDecay::kOneMinusSqrt;

  rate.peak = config.learning_rate;
  rate.min_ratio = config.min_lr_ratio;
  rate.total_steps = total_steps;
  const double warmup = config.warmup_steps > 0 ? share_or_count(config.warmup_steps, total_steps)
                                                : std::ceil(static_cast<double>(total_steps) * config.warmup_ratio);
  rate.warmup_steps = static_cast<std::int64_t>(warmup);
  if (rate.shape == LrShape::kWarmupStableDecay) {
    rate.decay_steps = static_cast<std::int64_t>(share_or_count(config.lr_decay_steps, total_steps));
    if (rate.warmup_steps + rate.decay_steps > total_steps) {
      fail(ExitCode::kConfig,
           "lr_scheduler_type {}: {} updates of warm-up and {} of decay (lr_decay_steps) are more than the run's {}",
           type, rate.warmup_steps, rate.decay_steps, total_steps);
    }
  }
  return rate;
}

}  // namespace protrain
