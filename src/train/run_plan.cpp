#include "train/run_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "train/nearest_change.h"
#include "train/plan_knobs.h"

namespace protrain {

SearchResult search_plan(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const Rates& rates,
                         const MemoryLimits& limits, SearchSpace space, const TrainConfig& config, DeviceKind kind) {
  const PredictOptions options = {.clip = config.max_grad_norm > 0};
  if (!space.order && (config.deterministic || kind == DeviceKind::kCpu)) space.order = Order::kMicroBatch;
  return search(spec, shape, profile, rates, limits, space, options);
}

std::int64_t fastest_micro_batch(std::int64_t rows_of_update,
                                 const std::function<std::optional<double>(std::int64_t)>& seconds) {
  // Larger micro-batches stop paying at some size, and do not begin to pay again.
  constexpr int kNoBetterInARow = 2;
  constexpr double kBetter = 0.005;
  std::int64_t best = 1;
  std::optional<double> least = seconds(1);
  int no_better = 0;
  for (std::int64_t rows = 2; least && rows <= rows_of_update && no_better < kNoBetterInARow; ++rows) {
    if (rows_of_update % rows != 0) continue;
    const std::optional<double> time = seconds(rows);
    if (!time) break;  // more rows take more
    if (*time < (1 - kBetter) * *least) {
      best = rows;
      least = time;
      no_better = 0;
    } else {
      ++no_better;
    }
  }
  return best;
}

MemoryLimits memory_limits(const TrainConfig& config, const MeasuredModel& measured) {
  MemoryLimits limits;
  const Device& device = *measured.device;
  limits.device_is_host = device.kind() == DeviceKind::kCpu;
  limits.pinned_of_a_table_byte = limits.device_is_host ? 0 : kPinnedOfATableByte;
  limits.outside = measured.outside_bytes;
  limits.device_cap = config.device_memory_limit.bytes;
  limits.device = device.capacity() - (limits.device_is_host ? 0 : kDeviceReserve);
  if (limits.device_cap > 0) limits.device = std::min(limits.device, limits.device_cap - limits.outside);
  limits.host = plannable_host_memory();
  if (config.host_memory_limit.bytes > 0) limits.host = std::min(limits.host, config.host_memory_limit.bytes);
  limits.process = measured.process_bytes;
  return limits;
}

MemoryThere memory_there(const MeasuredModel& measured) {
  const Device& device = *measured.device;
  return {device.kind() == DeviceKind::kCpu ? host_memory_limit() : device.capacity() + measured.outside_bytes,
          plannable_host_memory()};
}

Bytes host_reserve(const TrainConfig& config, const MemoryLimits& limits) {
  return limits.host == config.host_memory_limit.bytes ? 0 : limits.host / (kHostReserve - 1);
}

std::vector<std::string> idle_limits(const TrainConfig& config, const MemoryThere& there) {
  std::vector<std::string> lines;
  const auto compare = [&](const std::string& key, Bytes limit, Bytes has, std::string_view whose) {
    if (limit <= has) return;
    lines.push_back(
        fmt::format("{}{}: {} ({} bytes) is above the {} ({} bytes) that the {} has for a run: it limits "
                    "nothing",
                    key, config.is_given(key) ? " (" + config.given.at(key) + ")" : "", format_bytes(limit), limit,
                    format_bytes(has), has, whose));
  };
  compare("device_memory_limit", config.device_memory_limit.bytes, there.device, "device");
  compare("host_memory_limit", config.host_memory_limit.bytes, there.host, "host");
  return lines;
}

void settle_limits(RunPlan& run, const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return;
  const Bytes arena = run.layout.bytes(Tier::kDevice);
  const Bytes in_use = device.memory().in_use;
  if (run.limits.device_cap > 0 && in_use > run.limits.device_cap) {
    fail(
        ExitCode::kDoesNotFit,
        "does not fit: the plan needs {} ({} bytes) of device memory and driver and libraries {}, which were {} before "
        "the arenas were there; device_memory_limit: {} would fit",
        format_bytes(arena), arena, format_bytes(in_use - arena), format_bytes(run.limits.outside), in_use);
  }
  run.limits = with_arenas(run.limits, in_use - arena);
}

Bytes state_bytes(const ModelSpec& spec, DType compute) {
  Bytes width = 0;
  for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV, Part::kGradient}) {
    if (part == Part::kResidual && compute == DType::kF32) continue;  // the weight is the master
    width += size_of(part_dtype(part, compute));
  }
  return spec.parameter_count() * width;
}

RunPlan choose_plan(Files& files, const TrainConfig& config, const ModelSource& model, const MeasuredModel& measured,
                    std::optional<Order> order) {
  const PlanKnobs knobs(files, config);
  RunPlan run;
  run.shape = measured.shape;
  run.profile = measured.profile;
  run.rates = measured.rates;
  run.limits = memory_limits(config, measured);
  run.host_reserve = host_reserve(config, run.limits);
  SearchSpace space = knobs.space(model.spec, run.shape.compute);
  if (!space.order) space.order = order;
  run.space = space;
  const auto ask = [&](const RunShape& shape, const Profile& profile, const MemoryLimits& limits,
                       const SearchSpace& in) {
    return search_plan(model.spec, shape, profile, with_calls_of(measured.rates, profile), limits, in, config,
                       measured.device->kind());
  };
  run.found = ask(run.shape, run.profile, run.limits, space);
  if (!run.found.missing.fits()) {
    const bool is_host = measured.device->kind() == DeviceKind::kCpu;
    const Bytes device = is_host ? std::numeric_limits<Bytes>::max() : measured.device->capacity() - kDeviceReserve;
    const auto fits = [&](const RunShape& shape, const MemoryLimits& limits, const SearchSpace& in) {
      const bool same = shape.train_shapes == run.shape.train_shapes && shape.accumulation == run.shape.accumulation;
      return ask(shape, same ? run.profile : measure_again(measured, model, shape), limits, in).missing.fits();
    };
    fail(ExitCode::kDoesNotFit, "does not fit: {}{}: {}; {}",
         config.plan.empty() ? "the leanest plan has " : "the plan has ", describe(model.spec, run.found.memory),
         describe(run.found.missing, MemoryNeed(run.found.memory.layout), run.limits),
         nearest_change({.config = config,
                         .knobs = knobs,
                         .spec = model.spec,
                         .shape = run.shape,
                         .limits = run.limits,
                         .space = space,
                         .missing = run.found.missing,
                         .room = Room{device, plannable_host_memory()},
                         .fits = fits}));
  }
  run.reason = (config.plan.empty() ? "" : "from " + knobs.source() + ": ") + describe(model.spec, run.found.memory);
  run.plan = std::move(run.found.memory.plan);
  run.chunks = std::move(run.found.memory.chunks);
  run.layout = std::move(run.found.memory.layout);
  return run;
}

Revision revise_plan(const TrainConfig& config, const ModelSource& model, const RunPlan& run, const Schedule& schedule,
                     const Timeline& measured) {
  const PredictOptions options = {.clip = config.max_grad_norm > 0};
  Revision revision;
  revision.rates = refine(run.rates, model.spec, run.chunks, schedule, run.shape.train_shapes.front(), measured);
  revision.present =
      predict(model.spec, run.chunks, run.shape, run.profile, run.plan, run.layout, revision.rates, options);

  SearchSpace space = run.space;
  space.chunk_bytes = run.plan.chunk_bytes;
  space.n_persist = run.plan.n_persist;
  space.n_buffer = run.plan.n_buffer;
  space.gradient_slots = run.plan.gradient_slots;
  space.order = run.plan.order;
  space.place = run.plan.place;
  space.n_resident.reset();  // said by `place`, as are the next two
  space.embedding.reset();
  space.head.reset();
  space.state_tier = run.plan.state_tier;
  MemoryLimits limits = run.limits;
  const MemoryNeed need(run.layout);
  limits.device = device_need(need, limits);
  limits.host = host_need(need, limits);

  RunPlan& next = revision.next;
  next.shape = run.shape;
  next.profile = run.profile;
  next.rates = revision.rates;
  next.space = run.space;
  next.limits = run.limits;
  next.host_reserve = run.host_reserve;
  next.host_before = run.host_before;
  next.found = search(model.spec, run.shape, run.profile, revision.rates, limits, space, options);
  next.reason = describe(model.spec, next.found.memory);
  next.plan = std::move(next.found.memory.plan);
  next.chunks = std::move(next.found.memory.chunks);
  next.layout = std::move(next.found.memory.layout);
  return revision;
}

}  // namespace protrain
