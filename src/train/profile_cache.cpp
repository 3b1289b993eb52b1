#include "train/profile_cache.h"

#include <torch/version.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/cores.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "profile/times.h"
#include "tensor/replay.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

constexpr int kMeasuredVersion = 5;  // raised when the same calls would be measured or kept differently
constexpr std::string_view kCpuMachine = "CPU: ", kCudaMachine = "GPU: ";

std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// Fields with their lengths, so that no two lists of fields give one text.
class KeyText {
 public:
  template <typename T>
  KeyText& add(std::string_view name, const T& value) {
    const std::string text = fmt::format("{}", value);
    text_ += fmt::format("{} {} {}\n", name, text.size(), text);
    return *this;
  }
  void add_shapes(std::string_view name, const std::vector<BatchShape>& shapes) {
    add(name, shapes.size());
    for (const BatchShape& shape : shapes) {
      add("rows", shape.rows).add("row_tokens", shape.row_tokens).add("max_samples", shape.max_samples);
      add("packed", shape.packed);
    }
  }
  std::string hash() const {
    const XXH128_hash_t hash = XXH3_128bits(text_.data(), text_.size());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::string text_;
};

bool same(const Profile& a, const Profile& b) {
  return a.library_workspace == b.library_workspace && a.tables == b.tables &&
         std::ranges::equal(a.calls, b.calls, [](const Profile::Call& one, const Profile::Call& other) {
           return one.key == other.key && one.memory.saved == other.memory.saved &&
                  one.memory.workspace == other.memory.workspace &&
                  one.memory.workspace_bound == other.memory.workspace_bound;
         });
}

// Every call that may be asked for has its time.
bool complete(const Profile& memory, const Rates& rates) {
  return rates.measured && std::ranges::all_of(memory.calls, [&](const Profile::Call& call) {
           return std::ranges::any_of(rates.calls, [&](const Rates::Call& timed) { return timed.key == call.key; });
         });
}

Bytes timing_budget(const TrainConfig& config, const MeasuredModel& measured) {
  const Bytes free = measured.device->capacity();
  const Bytes limit = config.device_memory_limit.bytes;
  return limit > 0 ? std::clamp<Bytes>(limit - measured.outside_bytes, 0, free) : free;
}

Bytes host_timing_budget(const TrainConfig& config, const MeasuredModel& measured) {
  const Bytes there = plannable_host_memory();
  const Bytes limit = config.host_memory_limit.bytes > 0 ? std::min(config.host_memory_limit.bytes, there) : there;
  return std::max<Bytes>(limit - measured.process_bytes, 0);
}

void make_kernels(MeasuredModel& measured) {
  if (measured.kernels.device) return;
  measured.kernels = make_run_kernels(measured.device->kind(), measured.compute_threads);
}

// measure_rates() whose want of memory is said in the run's own terms.
Rates timed_rates(const TrainConfig& config, const ModelSource& model, const MeasuredModel& measured,
                  const Profile& memory, TimingOptions options,
                  const std::function<void(const std::string&)>& progress) {
  std::string doing = "preparing to time blocks";
  options.progress = [&](const std::string& line) {
    doing = line;
    if (progress) progress(line);
  };
  try {
    return measure_rates(model.spec, measured.blocks, *measured.traces, measured.shape, memory, *measured.device,
                         *measured.kernels.device, measured.kernels.host.get(), timing_budget(config, measured),
                         options);
  } catch (const std::exception& error) {
    if (!ran_out_of_memory(error)) throw;
    release_plain_memory(measured.device->kind());
    const BatchShape& batch = measured.shape.train_shapes.front();
    const std::string_view reason = error.what();
    fail(
        ExitCode::kDoesNotFit,
        "does not fit: memory ran out while the machine was measured ({}), at micro-batches of {} rows of {} tokens: a "
        "smaller per_device_train_batch_size (with more gradient_accumulation_steps), a smaller cutoff_len, or memory "
        "that other programs hold is needed ({})",
        doing, batch.rows, batch.row_tokens, reason.substr(0, reason.find('\n')));
  }
}

}  // namespace

std::string profile_key(const TrainConfig& config, const ModelSource& model, const MeasuredModel& measured) {
  KeyText key;
  key.add("version", kMeasuredVersion).add("torch", TORCH_VERSION);
  key.add("config.json", model.config_json);
  key.add("embedding_dropout", model.architecture.embedding_dropout);
  key.add("residual_dropout", model.architecture.residual_dropout);
  key.add("compute", safetensors_name(measured.shape.compute)).add("accumulation", measured.shape.accumulation);
  key.add_shapes("train", measured.shape.train_shapes);
  key.add_shapes("eval", measured.shape.eval_shapes);
  key.add("deterministic", config.deterministic).add("threads", measured.compute_threads);
  key.add("device", measured.device->name()).add("driver", first_line("/proc/driver/nvidia/version"));
  key.add("processor", make_cpu_device()->name()).add("nodes", allowed_nodes().size());
  key.add("cores", allowed_cores()).add("background", background_cores());
  return key.hash();
}

std::string machine_name(const Device& device) {
  return fmt::format("{}{}", device.kind() == DeviceKind::kCpu ? kCpuMachine : kCudaMachine, device.name());
}

std::optional<DeviceKind> device_of(const StoredProfile& profile) {
  if (profile.machine.starts_with(kCpuMachine)) return DeviceKind::kCpu;
  if (profile.machine.starts_with(kCudaMachine)) return DeviceKind::kCuda;
  return std::nullopt;
}

fs::path profile_folder() {
  if (const char* cache = std::getenv("PROTRAIN_CACHE"); cache && *cache) return fs::path(cache) / "profiles";
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    return fs::path(cache) / "protrain" / "profiles";
  }
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "protrain" / "profiles";
  return {};
}

std::optional<StoredProfile> load_profile(Files& files, const fs::path& folder, const std::string& key) {
  if (folder.empty()) return std::nullopt;
  const fs::path file = folder / (key + ".json");
  try {
    if (!files.exists(file)) return std::nullopt;
    StoredProfile profile = parse_profile(files.read_text(file), file.string());
    if (profile.key == key) return profile;
    log::warning("{} is the profile of something else; it is measured anew", file.string());
  } catch (const Error& error) {
    log::warning("{}; it is measured anew", error.what());
  }
  return std::nullopt;
}

void keep_profile(Files& files, const fs::path& folder, const StoredProfile& profile) {
  if (folder.empty()) {
    log::warning("the profile is not kept: none of PROTRAIN_CACHE, XDG_CACHE_HOME and HOME is set");
    return;
  }
  const fs::path file = folder / (profile.key + ".json");
  const fs::path aside = folder / fmt::format("{}.{}.part", profile.key, getpid());
  try {
    files.make_directories(folder);
    files.write_text(aside, profile_json(profile), false);
    files.rename(aside, file);
  } catch (const Error& error) {
    log::warning("the profile is not kept, and is measured again next time: {}", error.what());
    std::error_code ignored;
    fs::remove(aside, ignored);
  }
}

StoredProfile profile_of(Files& files, const TrainConfig& config, const ModelSource& model, MeasuredModel& measured,
                         ProfileCache cache, const std::function<void(const std::string&)>& progress) {
  StoredProfile profile;
  profile.key = profile_key(config, model, measured);
  profile.machine = machine_name(*measured.device);
  profile.compute = measured.shape.compute;
  profile.outside = measured.outside_bytes;
  profile.memory = measured.profile;
  const fs::path folder = profile_folder();
  if (cache != ProfileCache::kRenew) {
    std::optional<StoredProfile> kept = load_profile(files, folder, profile.key);
    // The memory that was just recorded is the truth: a file that says otherwise is of another state of libraries.
    if (kept && same(kept->memory, profile.memory) && complete(kept->memory, kept->rates)) {
      log::info("profile: {} (measured before)", (folder / (profile.key + ".json")).string());
      if (cache == ProfileCache::kUse && measured.device->kind() == DeviceKind::kCuda) {
        make_kernels(measured);
        kept->rates.cpu_update = measure_host_update(model.spec, measured.shape, *measured.device,
                                                     *measured.kernels.host, host_timing_budget(config, measured));
      }
      return std::move(*kept);
    }
    if (complete(profile.memory, measured.rates)) profile.rates = measured.rates;
  }
  if (!profile.rates.measured) {
    make_kernels(measured);
    TimingOptions options;
    if (cache != ProfileCache::kRenew) options.earlier = measured.rates;
    options.host_budget = host_timing_budget(config, measured);
    profile.rates = timed_rates(config, model, measured, profile.memory, options, progress);
  }
  if (cache != ProfileCache::kUse || measured.device->kind() == DeviceKind::kCuda) keep_profile(files, folder, profile);
  return profile;
}

}  // namespace protrain
