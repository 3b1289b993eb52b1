#include "train/nearest_change.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace protrain {
namespace {

// The data may have fewer rows than the micro-batch that is asked for, so this is by their shares.
RunShape with_rows(RunShape shape, std::int64_t rows, std::int64_t of) {
  shape.accumulation *= of / rows;
  for (BatchShape& batch : shape.train_shapes) {
    batch.max_samples = ceil_div(batch.max_samples * rows, of);
    batch.rows = std::max<std::int64_t>(1, batch.rows * rows / of);
  }
  return shape;
}

bool fits(const Misfit& misfit, const RunShape& shape, const MemoryLimits& limits, const SearchSpace& space) {
  try {
    return misfit.fits(shape, limits, space);
  } catch (const Error&) {
    return false;
  }
}

// With more of a tier the search finds another plan than the leanest, so both tiers are asked for together. Empty where
// it does not help or is not there.
std::string more_memory(const Misfit& misfit) {
  const auto& [device_missing, host_missing] = misfit.missing;
  const Bytes own_limit = misfit.config.host_memory_limit.bytes;
  const bool device_capped =
      misfit.limits.device_cap > 0 && misfit.limits.device == misfit.limits.device_cap - misfit.limits.outside;
  const bool host_capped = own_limit > 0 && own_limit == misfit.limits.host;
  MemoryLimits more = misfit.limits;
  if (device_missing > 0) more.device += device_missing + (more.outside > 0 ? kMeasuredAnew : 0);
  if (host_missing > 0) more.host += host_missing + kMeasuredAnew;
  if (misfit.room && ((device_missing > 0 && (!device_capped || more.device > misfit.room->device)) ||
                      (host_missing > 0 && (!host_capped || more.host > misfit.room->host)))) {
    return {};
  }
  if (!fits(misfit, misfit.shape, more, misfit.space)) return {};
  std::vector<std::string> changes;
  const auto change = [&](std::string_view key, Bytes bytes) { changes.push_back(fmt::format("{} {}", key, bytes)); };
  if (device_missing > 0) {
    const Bytes used = more.device + more.outside;
    if (device_capped) change("device_memory_limit:", used);
    if (!device_capped || (misfit.told && used + kDeviceReserve > misfit.told->device)) {
      change("--device-memory", used + kDeviceReserve);
    }
  }
  if (host_missing > 0) {
    if (host_capped) change("host_memory_limit:", more.host);
    if (!host_capped || (misfit.told && more.host > misfit.told->host)) change("--host-memory", more.host);
  }
  return fmt::format("{} would fit", fmt::join(changes, " with "));
}

}  // namespace

std::string nearest_change(const Misfit& misfit) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{10};
  const Clock::time_point begin = Clock::now();
  const TrainConfig& config = misfit.config;
  if (misfit.knobs.any() || config.recompute != Switch::kAuto) {
    SearchSpace free;
    free.order = misfit.space.order;
    if (fits(misfit, misfit.shape, misfit.limits, free)) {
      std::vector<std::string_view> set;
      if (config.recompute != Switch::kAuto) set.emplace_back("recompute");
      if (!config.plan.empty()) set.emplace_back("plan");
      if (config.chunk_bytes.bytes > 0) set.emplace_back("chunk_bytes");
      return fmt::format("without {} it would fit", fmt::join(set, " and "));
    }
  }
  if (!misfit.space.order && misfit.shape.accumulation > 1) {  // what search_plan() does not choose everywhere
    SearchSpace layer = misfit.space;
    layer.order = Order::kLayer;
    if (fits(misfit, misfit.shape, misfit.limits, layer)) {
      return "plan: {order: layer} would fit (gradients are then summed in another order, so last bits differ)";
    }
  }
  const bool automatic = config.per_device_train_batch_size == 0;
  const std::int64_t of = automatic ? misfit.shape.train_shapes.front().rows : config.per_device_train_batch_size;
  for (std::int64_t rows = of / 2; rows >= 1 && Clock::now() - begin < kPatience; rows /= 2) {
    if (of % rows != 0) continue;
    const RunShape smaller = with_rows(misfit.shape, rows, of);
    if (!fits(misfit, smaller, misfit.limits, misfit.space)) continue;
    return fmt::format("per_device_train_batch_size: {} with gradient_accumulation_steps: {} would fit", rows,
                       smaller.accumulation);
  }
  const std::string state = fmt::format("weights, gradients and optimizer state take {}",
                                        format_bytes(state_bytes(misfit.spec, misfit.shape.compute)));
  if (const std::string text = more_memory(misfit); !text.empty()) return fmt::format("{} ({})", text, state);
  return state + ": a smaller model, a smaller cutoff_len or more memory is needed";
}

}  // namespace protrain
