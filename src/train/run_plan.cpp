#include "train/run_plan.h"

#include <algorithm>
#include <optional>

#include "base/cgroup.h"
#include "base/error.h"

namespace protrain {
namespace {

// CUDA without a limit of the user's: left free for what the driver may still load.
constexpr Bytes kReserve = 64 * kMiB;

bool fits(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const PlanKnobs& knobs,
          const MemoryLimits& limits) {
  try {
    return climb_down(spec, shape, profile, knobs, limits).missing.fits();
  } catch (const Error&) {
    return false;
  }
}

RunShape with_rows(RunShape shape, std::int64_t rows, std::int64_t of) {
  shape.accumulation *= of / rows;
  for (BatchShape& batch : shape.train_shapes) {
    batch.max_samples = ceil_div(batch.max_samples * rows, of);
    batch.rows = std::max<std::int64_t>(1, batch.rows * rows / of);
  }
  return shape;
}

// What would have fitted, in the order in which a user would rather give up something.
std::string nearest_change(const TrainConfig& config, const ModelSource& model, const MeasuredModel& measured,
                           const PlanKnobs& knobs, const MemoryLimits& limits, const LadderResult& leanest) {
  const ModelSpec& spec = model.spec;
  if (knobs.any() && (!config.plan.empty() || config.recompute != Switch::kAuto) &&
      fits(spec, measured.shape, measured.profile, {}, limits)) {
    return fmt::format("without {} it would fit", config.plan.empty() ? "recompute: false" : "plan");
  }
  for (std::int64_t rows = config.per_device_train_batch_size / 2; rows >= 1; rows /= 2) {
    if (config.per_device_train_batch_size % rows != 0) continue;
    const RunShape smaller = with_rows(measured.shape, rows, config.per_device_train_batch_size);
    try {
      if (!fits(spec, smaller, measure_again(measured, model, smaller), knobs, limits)) continue;
    } catch (const Error&) {
      continue;
    }
    return fmt::format("per_device_train_batch_size: {} with gradient_accumulation_steps: {} would fit", rows,
                       config.gradient_accumulation_steps * (config.per_device_train_batch_size / rows));
  }
  if (leanest.missing.host == 0 && limits.device_cap > 0) {
    return fmt::format("device_memory_limit: {} would fit", limits.device_cap + leanest.missing.device);
  }
  if (leanest.missing.device == 0 && config.host_memory_limit.bytes > 0 &&
      host_memory_limit() >= limits.host + leanest.missing.host) {
    return fmt::format("host_memory_limit: {} would fit", limits.host + leanest.missing.host);
  }
  return fmt::format(
      "weights, gradients and optimizer state take {}: a smaller model, a smaller cutoff_len or more "
      "memory is needed",
      format_bytes(state_bytes(spec, measured.shape.compute)));
}

}  // namespace

MemoryLimits memory_limits(const TrainConfig& config, const MeasuredModel& measured) {
  MemoryLimits limits;
  const Device& device = *measured.device;
  limits.device_is_host = device.kind() == DeviceKind::kCpu;
  limits.outside = measured.outside_bytes;
  limits.device_cap = config.device_memory_limit.bytes;
  limits.device = device.capacity() - (limits.device_is_host ? 0 : kReserve);
  if (limits.device_cap > 0) limits.device = std::min(device.capacity(), limits.device_cap - limits.outside);
  limits.host = host_memory_limit();
  if (config.host_memory_limit.bytes > 0) limits.host = std::min(limits.host, config.host_memory_limit.bytes);
  limits.process = measured.process_bytes;
  return limits;
}

Bytes settled_outside(const RunPlan& run, const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return 0;
  const Bytes arena = run.layout.bytes(Tier::kDevice);
  const Bytes in_use = device.memory().in_use;
  if (run.limits.device_cap > 0 && in_use > run.limits.device_cap) {
    fail(
        ExitCode::kDoesNotFit,
        "does not fit: the plan needs {} ({} bytes) of device memory and driver and libraries {}, which were {} before "
        "the arenas were there; device_memory_limit: {} would fit",
        format_bytes(arena), arena, format_bytes(in_use - arena), format_bytes(run.limits.outside), in_use);
  }
  return in_use - arena;
}

Bytes state_bytes(const ModelSpec& spec, DType compute) {
  Bytes width = 0;
  for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV, Part::kGradient}) {
    if (part == Part::kResidual && compute == DType::kF32) continue;  // the weight is the master
    width += size_of(part_dtype(part, compute));
  }
  return spec.parameter_count() * width;
}

RunPlan choose_plan(Files& files, const TrainConfig& config, const ModelSource& model, const MeasuredModel& measured) {
  const PlanKnobs knobs(files, config);
  RunPlan run;
  run.shape = measured.shape;
  run.profile = measured.profile;
  run.limits = memory_limits(config, measured);
  LadderResult result = climb_down(model.spec, run.shape, run.profile, knobs, run.limits);
  if (!result.missing.fits()) {
    fail(ExitCode::kDoesNotFit, "does not fit: {}{}: {}; {}",
         config.plan.empty() ? "the leanest plan has " : "the plan has ", describe(model.spec, result.memory),
         describe(result.missing, MemoryNeed(result.memory.layout), run.limits),
         nearest_change(config, model, measured, knobs, run.limits, result));
  }
  run.plan = std::move(result.memory.plan);
  run.chunks = std::move(result.memory.chunks);
  run.layout = std::move(result.memory.layout);
  run.reason = (config.plan.empty() ? "" : "from " + knobs.source() + ": ") + result.reason;
  return run;
}

}  // namespace protrain
