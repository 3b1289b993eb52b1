#include "train/what_if.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "search/roofline.h"
#include "train/nearest_change.h"
#include "train/plan_knobs.h"
#include "train/planned_shape.h"
#include "train/profile_cache.h"

namespace protrain {
namespace {

// What a run's process takes of host memory beside its arenas (451-524 MiB in the runs of bench/results/plans_h200).
constexpr Bytes kProcessBytes = 576 * kMiB;

// Where bytes and times come from, and what there is of memory.
struct Machine {
  std::string name;
  DeviceKind kind = DeviceKind::kCuda;
  MemoryThere there;
  MemoryLimits limits;
  // Error(kConfig) for shapes that it does not know.
  std::function<StoredProfile(const RunShape&)> profile;
  std::function<Profile(const RunShape&)> memory;  // the profile's, and nothing is timed for it
  std::function<bool(const RunShape&)> knows = [](const RunShape&) { return true; };
};

// A run's data as far as memory and time see it.
class ShapesAlone final : public BatchSource {
 public:
  explicit ShapesAlone(std::vector<BatchShape> shapes) : shapes_(std::move(shapes)) {}
  std::vector<BatchShape> shapes() const override { return shapes_; }
  std::int64_t steps_per_epoch() const override { return none(); }
  std::int64_t rows() const override { return none(); }
  std::int64_t dropped_samples() const override { return none(); }
  Bytes step_bytes() const override { return none(); }
  StepBatch fill(std::int64_t, std::byte*) const override {
    none();
    return {};
  }

 private:
  static std::int64_t none() { fail_check(__FILE__, __LINE__, "data", "there is none, only its shapes"); }
  const std::vector<BatchShape> shapes_;
};

void set_limits(Machine& machine, const TrainConfig& config, const WhatIfOptions& options, Bytes device, Bytes outside,
                Bytes host) {
  machine.there = {options.device_memory.value_or(device), options.host_memory.value_or(host)};
  MemoryLimits& limits = machine.limits;
  limits.outside = outside;
  limits.device_is_host = machine.kind == DeviceKind::kCpu;
  limits.pinned_of_a_table_byte = limits.device_is_host ? 0 : kPinnedOfATableByte;
  limits.device = machine.there.device - outside - (limits.device_is_host ? 0 : kDeviceReserve);
  if (config.device_memory_limit.bytes > 0) {
    limits.device_cap = config.device_memory_limit.bytes;
    limits.device = std::min(limits.device, limits.device_cap - outside);
  }
  limits.host = machine.there.host;
  if (config.host_memory_limit.bytes > 0) limits.host = std::min(limits.host, config.host_memory_limit.bytes);
  limits.process = kProcessBytes;
}

// `hint`: what would be right.
std::string read_option(Files& files, std::string_view option, const std::string& path, std::string_view hint) {
  if (!files.exists(path)) fail(ExitCode::kConfig, "{}: {} does not exist; {}", option, path, hint);
  try {
    return files.read_text(path);
  } catch (const Error& error) {
    fail(ExitCode::kConfig, "{}: {}; {}", option, error.what(), hint);
  }
}

Hardware hardware_of(Files& files, const WhatIfOptions& options) {
  const std::string text = read_option(files, "--hardware", options.hardware, "give a file such as hardware/h200.json");
  Hardware hardware = parse_hardware(text, options.hardware);
  if (options.h2d_bytes) hardware.h2d_bytes = *options.h2d_bytes;
  if (options.d2h_bytes) hardware.d2h_bytes = *options.d2h_bytes;
  return hardware;
}

void set_links(Rates& rates, const WhatIfOptions& options) {
  if (options.h2d_bytes) rates.h2d.per_unit = 1 / *options.h2d_bytes;
  if (options.d2h_bytes) rates.d2h.per_unit = 1 / *options.d2h_bytes;
}

// Whether the profile has all that the search may ask of it for these shapes.
bool covers(const StoredProfile& profile, const ModelSpec& spec, const RunShape& run) {
  const auto has = [&](const CallKey& key) {
    return std::ranges::any_of(profile.memory.calls, [&](const auto& call) { return call.key == key; }) &&
           std::ranges::any_of(profile.rates.calls, [&](const auto& call) { return call.key == key; });
  };
  for (const BlockSpec& block : spec.blocks) {
    for (const BatchShape& shape : run.train_shapes) {
      if (!has({block.trace, Pass::kBackward, false, shape, true})) return false;
    }
    for (const BatchShape& shape : run.eval_shapes) {
      if (!has({block.trace, Pass::kForward, false, shape, false})) return false;
    }
  }
  return true;
}

// How many samples packed rows hold is the data's affair: where it is presumed, the profile knows better.
void take_samples(RunShape& run, const StoredProfile& profile) {
  const auto take = [&](BatchShape& batch, bool training) {
    const auto like = [&](const Rates::Call& call) {
      BatchShape asked = batch;
      asked.max_samples = call.key.shape.max_samples;
      return call.key.training == training && call.key.shape == asked;
    };
    const auto found = std::ranges::find_if(profile.rates.calls, like);
    if (batch.packed && found != profile.rates.calls.end()) batch.max_samples = found->key.shape.max_samples;
  };
  for (BatchShape& batch : run.train_shapes) take(batch, true);
  for (BatchShape& batch : run.eval_shapes) take(batch, false);
}

DType compute_of(const TrainConfig& config, const StoredProfile& profile, const std::string& file) {
  if (config.bf16 != Switch::kAuto && (config.bf16 == Switch::kTrue) != (profile.compute == DType::kBf16)) {
    fail(ExitCode::kConfig,
         "--profile: {} is of a run in {}, and bf16 is {}: leave bf16 at auto, or make one with this configuration "
         "(protrain profile --output FILE)",
         file, transformers_name(profile.compute), config.bf16 == Switch::kTrue);
  }
  return profile.compute;
}

std::shared_ptr<StoredProfile> read_profile(Files& files, const WhatIfOptions& options) {
  const std::string text = read_option(files, "--profile", options.profile, "protrain profile --output FILE makes one");
  return std::make_shared<StoredProfile>(parse_profile(text, options.profile));
}

Machine from_profile(Files& files, const TrainConfig& config, const WhatIfOptions& options, const ModelSource& model,
                     const std::shared_ptr<StoredProfile>& profile, DeviceKind kind) {
  set_links(profile->rates, options);
  Machine machine;
  machine.name = profile->machine.empty() ? options.profile : profile->machine;
  machine.kind = kind;
  if (!options.hardware.empty()) {
    const Hardware hardware = hardware_of(files, options);
    set_limits(machine, config, options, hardware.device_memory, hardware.outside, hardware.host_memory);
  } else {
    if (!options.device_memory || !options.host_memory) {
      fail(ExitCode::kConfig,
           "--profile: {} does not say how much memory there is: give --hardware FILE, or --device-memory and "
           "--host-memory",
           options.profile);
    }
    set_limits(machine, config, options, 0, profile->outside, 0);
  }
  machine.knows = [profile, &model](const RunShape& run) { return covers(*profile, model.spec, run); };
  machine.profile = [profile, knows = machine.knows, file = options.profile](const RunShape& run) {
    if (!knows(run)) {
      const BatchShape& batch = run.train_shapes.front();
      fail(ExitCode::kConfig,
           "--profile: {} was made for another model or other shapes than {} rows of {} tokens{}: make one with this "
           "configuration (protrain profile --output FILE)",
           file, batch.rows, batch.row_tokens, batch.packed ? ", packed" : "");
    }
    return *profile;
  };
  machine.memory = [profile_of = machine.profile](const RunShape& run) { return profile_of(run).memory; };
  return machine;
}

Machine from_hardware(Files& files, const TrainConfig& config, const WhatIfOptions& options, const ModelSource& model) {
  const Hardware hardware = hardware_of(files, options);
  Machine machine;
  machine.name = hardware.name;
  set_limits(machine, config, options, hardware.device_memory, hardware.outside, hardware.host_memory);
  machine.profile = [hardware, &model](const RunShape& run) {
    return estimate_profile(model.architecture, model.spec, run, hardware);
  };
  machine.memory = [profile_of = machine.profile](const RunShape& run) { return profile_of(run).memory; };
  return machine;
}

// Blocks are run here, so that memory is recorded; times come from the cache, or are measured as in train().
Machine of_this_machine(Files& files, const TrainConfig& config, const WhatIfOptions& options, const ModelSource& model,
                        const RunShape& run) {
  DataSources shapes;
  shapes.train = std::make_unique<ShapesAlone>(run.train_shapes);
  if (!run.eval_shapes.empty()) shapes.eval = std::make_unique<ShapesAlone>(run.eval_shapes);
  TrainConfig own = config;
  own.gradient_accumulation_steps = run.accumulation;
  const auto measured = std::make_shared<MeasuredModel>(measure_model(own, model, shapes));
  Machine machine;
  machine.profile = [measured, own, options, &files, &model](const RunShape& shape) mutable {
    own.per_device_train_batch_size = shape.train_shapes.front().rows;
    own.gradient_accumulation_steps = shape.accumulation;
    if (shape.train_shapes != measured->shape.train_shapes || shape.accumulation != measured->shape.accumulation) {
      change_shape(*measured, model, shape);
    }
    StoredProfile profile = profile_of(files, own, model, *measured, ProfileCache::kUse,
                                       [](const std::string& line) { log::info("profile: {}", line); });
    measured->rates = profile.rates;
    set_links(profile.rates, options);
    return profile;
  };
  machine.memory = [measured, &model](const RunShape& shape) { return measure_again(*measured, model, shape); };
  machine.profile(run);
  settle(*measured);
  machine.kind = measured->device->kind();
  machine.name = machine_name(*measured->device);
  machine.limits = memory_limits(config, *measured);
  machine.there = memory_there(*measured);
  if (options.device_memory) {
    machine.there.device = *options.device_memory;
    const Bytes there = *options.device_memory - (machine.kind == DeviceKind::kCpu ? 0 : kDeviceReserve);
    machine.limits.device = there - machine.limits.outside;
    if (machine.limits.device_cap > 0) {
      machine.limits.device = std::min(machine.limits.device, machine.limits.device_cap - machine.limits.outside);
    }
  }
  if (options.host_memory) {
    machine.there.host = *options.host_memory;
    machine.limits.host = *options.host_memory;
    if (config.host_memory_limit.bytes > 0) {
      machine.limits.host = std::min(machine.limits.host, config.host_memory_limit.bytes);
    }
  }
  return machine;
}

struct Answer {
  RunShape shape;
  StoredProfile profile;
  SearchResult found;
};

// The questions that lead to the plan and, where there is none, to the nearest change.
class Asker {
 public:
  Asker(const TrainConfig& config, const ModelSource& model, const Machine& machine, const PlanKnobs& knobs,
        DType compute)
      : config_(config), model_(model), machine_(machine), knobs_(knobs), space_(knobs.space(model.spec, compute)) {}

  Answer ask(const RunShape& shape) const {
    Answer answer;
    answer.shape = shape;
    answer.profile = machine_.profile(shape);
    answer.found = search_plan(model_.spec, shape, answer.profile.memory, answer.profile.rates, machine_.limits, space_,
                               config_, machine_.kind);
    return answer;
  }

  // The fastest of all micro-batches that make up the update, and that the machine can tell of.
  Answer ask_any_micro_batch(const RunShape& shape, std::vector<std::string>& notes) const {
    const std::int64_t samples = shape.train_shapes.front().rows * shape.accumulation;
    std::map<std::int64_t, Answer> answers;
    const std::int64_t best = fastest_micro_batch(samples, [&](std::int64_t rows) -> std::optional<double> {
      const RunShape asked = with_micro_batch(shape, rows);
      if (!answers.empty() && !machine_.knows(asked)) {
        notes.push_back(
            fmt::format("per_device_train_batch_size: auto: the profile knows no micro-batches of {} rows: "
                        "larger ones than {} were not asked about",
                        rows, answers.rbegin()->first));
        return std::nullopt;
      }
      try {
        const SearchResult& found = answers.emplace(rows, ask(asked)).first->second.found;
        if (!found.missing.fits()) return std::nullopt;
        return found.prediction.step_seconds;
      } catch (const Error& error) {  // measuring it here ran out of memory
        if (answers.empty() || error.code() != ExitCode::kDoesNotFit) throw;
        return std::nullopt;
      }
    });
    return std::move(answers.at(best));
  }

  std::string nearest_change(const Answer& leanest) const {
    const auto fits = [&](const RunShape& shape, const MemoryLimits& limits, const SearchSpace& space) {
      const Profile memory = machine_.memory(shape);
      const Rates rates = with_calls_of(leanest.profile.rates, memory);
      return search_plan(model_.spec, shape, memory, rates, limits, space, config_, machine_.kind).missing.fits();
    };
    return protrain::nearest_change({.config = config_,
                                     .knobs = knobs_,
                                     .spec = model_.spec,
                                     .shape = leanest.shape,
                                     .limits = machine_.limits,
                                     .space = space_,
                                     .missing = leanest.found.missing,
                                     .room = {},
                                     .told = machine_.there,
                                     .fits = fits});
  }

 private:
  const TrainConfig& config_;
  const ModelSource& model_;
  const Machine& machine_;
  const PlanKnobs& knobs_;
  const SearchSpace space_;
};

// The model's config.json alone, with the configuration's changes to it.
std::unique_ptr<ModelSource> open_shapes(Files& files, const TrainConfig& config) {
  TrainConfig own = config;
  if (own.config_name.empty()) own.config_name = std::exchange(own.model_name_or_path, {});
  own.tokenizer_name.clear();
  return open_model(files, own);
}

// What the configuration says and the other machine rules. A file may well be meant for both machines; a device on the
// command line contradicts.
void add_left_aside(const TrainConfig& config, bool profile, DeviceKind kind, std::vector<std::string>& notes) {
  const std::string_view of = profile ? "profile" : "hardware";
  if (config.device != "auto" && (config.device == "cpu") != (kind == DeviceKind::kCpu)) {
    const std::string why = fmt::format("the {} is {}", of,
                                        kind == DeviceKind::kCpu ? "a CPU's"
                                        : profile                ? "a GPU's"
                                                                 : "a GPU");
    if (config.given.at("device") == kCommandLine) {
      fail(ExitCode::kConfig, "{}: --device {} and --{} are both given, but {}: drop one", kCommandLine, config.device,
           of, why);
    }
    notes.push_back(fmt::format("device: {} is left aside: {}", config.device, why));
  }
  if (config.compute_threads > 0) {
    notes.push_back(
        fmt::format("compute_threads: {} is left aside: times are those of the {}", config.compute_threads, of));
  }
}

}  // namespace

WhatIf what_if(Files& files, const TrainConfig& config, const WhatIfOptions& options) {
  if (options.gpus > 1) {
    fail(ExitCode::kConfig, "--gpus: {}: runs on several GPUs come later; give 1", options.gpus);
  }
  WhatIf answer;
  answer.model = open_shapes(files, config);
  const ModelSource& model = *answer.model;
  const PlanKnobs knobs(files, config);
  const bool here = options.hardware.empty() && options.profile.empty();
  const auto profile = options.profile.empty() ? nullptr : read_profile(files, options);
  DeviceKind kind = DeviceKind::kCuda;
  if (here) kind = device_kind(config);
  if (profile) kind = device_of(*profile).value_or(config.device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda);
  const DType compute = profile ? compute_of(config, *profile, options.profile) : compute_dtype(config, kind);
  PlannedShape planned = planned_shape(files, config, model.spec, compute);
  if (profile) take_samples(planned.run, *profile);
  answer.notes = std::move(planned.notes);
  if (!here) add_left_aside(config, profile != nullptr, kind, answer.notes);
  const Machine machine = here      ? of_this_machine(files, config, options, model, planned.run)
                          : profile ? from_profile(files, config, options, model, profile, kind)
                                    : from_hardware(files, config, options, model);
  answer.machine = machine.name;
  for (std::string& line : idle_limits(config, machine.there)) answer.notes.push_back(std::move(line));
  if (options.disk) {
    answer.notes.push_back(
        fmt::format("a disk of {:.3g} GB/s is noted, but no plan uses one yet", *options.disk / 1e9));
  }

  const Asker asker(config, model, machine, knobs, compute);
  const bool any_micro_batch = config.per_device_train_batch_size == 0;
  Answer found = any_micro_batch ? asker.ask_any_micro_batch(planned.run, answer.notes) : asker.ask(planned.run);
  RunPlan& run = answer.run;
  run.limits = machine.limits;
  if (here && !options.host_memory) run.host_reserve = host_reserve(config, run.limits);
  if (!found.found.missing.fits()) answer.nearest_change = asker.nearest_change(found);
  run.shape = std::move(found.shape);
  run.profile = std::move(found.profile.memory);
  run.rates = std::move(found.profile.rates);
  run.found = std::move(found.found);
  run.plan = std::move(run.found.memory.plan);
  run.chunks = std::move(run.found.memory.chunks);
  run.layout = std::move(run.found.memory.layout);
  run.reason = (config.plan.empty() ? "" : "from " + knobs.source() + ": ") +
               describe(model.spec, {run.plan, run.chunks, run.layout});
  answer.micro_batch = run.shape.train_shapes.front().rows;
  if (answer.fits()) {
    const MemoryNeed need(run.layout);
    run.limits = with_arenas(run.limits, run.limits.outside + device_need(need, run.limits) - need.device);
  }
  if (config.deterministic && !run.rates.measured && config.bf16 != Switch::kFalse) {
    answer.notes.emplace_back("deterministic attention takes more workspace and time than the estimate has");
  }
  return answer;
}

}  // namespace protrain
