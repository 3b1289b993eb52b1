#include "train/step_cost.h"

#include <algorithm>

namespace protrain {

double step_flops(const ModelSpec& spec, const StepBatch& batch, const std::byte* host_batch) {
  const BatchLayout layout = batch_layout(batch.shape);
  double flops = 0, covered = 0;
  for (std::int64_t m = 0; m < batch.micro_batches; ++m) {
    const auto* starts = reinterpret_cast<const std::int32_t*>(host_batch + m * layout.bytes + layout.sample_starts);
    for (std::int64_t sample = 0; sample < batch.shape.max_samples; ++sample) {
      const std::int64_t tokens = starts[sample + 1] - starts[sample];
      if (tokens == 0) continue;
      flops += static_cast<double>(tokens) * spec.flops_per_token(tokens);
      covered += static_cast<double>(tokens);
    }
  }
  return covered == 0 ? 0 : flops * static_cast<double>(batch.tokens) / covered;
}

std::uint64_t dropout_key(std::uint64_t seed, std::int64_t update) {
  // splitmix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated keys.
  std::uint64_t z = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(update) * 0xd1342543de82ef95u + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace protrain
