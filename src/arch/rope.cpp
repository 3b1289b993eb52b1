#include <algorithm>
#include <cmath>
#include <numbers>

#include "arch/architecture.h"
#include "base/error.h"

namespace protrain {
namespace {

// base^(-2i / dim) in fp32 steps, as the reference computes it.
std::vector<double> unscaled(double theta, std::int64_t dim) {
  std::vector<double> frequency;
  for (std::int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    frequency.push_back(1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return frequency;
}

void scale_llama3(const RopeConfig& rope, std::vector<double>& frequency) {
  const double longest = rope.original_max_positions / rope.low_freq_factor;
  const double shortest = rope.original_max_positions / rope.high_freq_factor;
  for (double& f : frequency) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      f /= rope.factor;
    } else {
      const double smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      f = (1 - smooth) * f / rope.factor + smooth * f;
    }
  }
}

double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1; }

void scale_yarn(const RopeConfig& rope, std::int64_t dim, std::vector<double>& frequency) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(dim) * std::log(rope.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency[i] = frequency[i] / rope.factor * interpolated + frequency[i] * (1 - interpolated);
  }
}

}  // namespace

RopeTable rope_table(const RopeConfig& rope, std::int64_t head_dim) {
  PROTRAIN_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim {}", head_dim);
  RopeTable table{unscaled(rope.theta, head_dim), 1};
  switch (rope.type) {
    case RopeConfig::Type::kDefault: break;
    case RopeConfig::Type::kLinear:
      for (double& f : table.inverse_frequency) f /= rope.factor;
      break;
    case RopeConfig::Type::kLlama3: scale_llama3(rope, table.inverse_frequency); break;
    case RopeConfig::Type::kYarn:
      scale_yarn(rope, head_dim, table.inverse_frequency);
      if (rope.attention_factor) {
        table.attention_factor = *rope.attention_factor;
      } else if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
        table.attention_factor = yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
      } else {
        table.attention_factor = yarn_mscale(rope.factor, 1);
      }
      break;
  }
  return table;
}

}  // namespace protrain
