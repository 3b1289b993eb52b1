#include "profile/times.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/seconds_since.h"
#include "profile/call_times.h"
#include "profile/overlap.h"
#include "profile/pinned_bytes.h"
#include "profile/stopwatch.h"
#include "profile/update_rig.h"
#include "tensor/replay.h"

namespace protrain {
namespace {

using profile::BlockRig;
using profile::CallPace;
using profile::Clock;
using profile::DeviceBytes;
using profile::LaneLoad;
using profile::OverlapPace;
using profile::PinnedBytes;
using profile::RigModel;
using profile::UpdatePieces;
using profile::UpdateRig;
using profile::UpdateTimes;

// Where the time goes, in seconds, and how much is moved.
struct Pace {
  CallPace calls;
  OverlapPace overlap;
  double copies = 0;                              // each way
  double updates = 0;                             // the device's
  double host_settle = 0, host_updates = 0;       // the host's
  Bytes copy_bytes = 0;                           // the larger copy, one each way
  Bytes update_bytes = 0, host_update_bytes = 0;  // state of each side, at most
};

// 36 s of 40; what is left is for making blocks, for pieces longer than their windows and for the calls that every kind
// is timed with at least. A round of a 7B layer's calls at 16 Ki tokens takes 0.14 s and half the time is pauses where
// it is rested: 20 and 10 rounds of the longest shape alone.
Pace gpu_pace(double seconds, bool whole) {
  const double s = seconds / 40;
  Pace pace;
  pace.calls = {.duty_cycles = true,
                .warm = 5 * s,
                .settle = 6 * s,
                .cool = 1 * s,
                .steady = 3.5 * s,
                .rested = 3.5 * s,
                .heat = 0.05 * s,
                .rounds = 100};
  if (!whole) {
    pace.calls.warm = 1.5 * s;
    pace.calls.settle = 2 * s;
    pace.calls.cool = 0.5 * s;
    pace.calls.steady = pace.calls.rested = 1.5 * s;
  }
  pace.overlap = {.settle = 0.15 * s, .window = 0.4 * s, .warm = 2 * s};
  pace.copies = 0.4 * s;
  pace.updates = 1.0 * s;
  pace.host_settle = 0.5 * s;
  pace.host_updates = 2.0 * s;
  pace.copy_bytes = 64 * kMiB;
  pace.update_bytes = 1024 * 1'000'000;
  pace.host_update_bytes = 4096LL * 1'000'000;
  return pace;
}

// Of the whole time, what a model is worth: calls so short that they never heat a card settle at once. A block's share
// of the work stands for a layer's.
double worth(const ModelSpec& spec, const RunShape& run) {
  constexpr double kHeats = 2e12;  // FLOPs of a forward and a backward: 3 ms of an H200
  constexpr double kLeast = 0.125;
  const BatchShape shape = profile::busiest_shape(run);
  const double flops = spec.flops_per_token(shape.row_tokens) * static_cast<double>(shape.tokens());
  return std::clamp(flops / static_cast<double>(spec.blocks.size()) / kHeats, kLeast, 1.0);
}

// A training run begins with this, however small it is.
Pace cpu_pace() {
  Pace pace;
  pace.calls = {
      .duty_cycles = false, .warm = 0, .settle = 0, .cool = 0, .steady = 0.02, .rested = 0, .heat = 0, .rounds = 5};
  pace.overlap = {.settle = 0, .window = 1e-3};
  pace.copies = 1e-3;
  pace.updates = 2e-3;
  pace.host_updates = 1e-3;
  pace.copy_bytes = 2 * kMiB;
  pace.update_bytes = 32 * kMiB;
  pace.host_update_bytes = 32 * kMiB;
  return pace;
}

constexpr Bytes kHostShare = 16;  // of the host's memory one part of so many is taken, at most

// State that no cache holds: many times the last level's size. With four times its size an update was 10 % faster than
// with seven times that (host_update.log in bench/results/plans_h200).
Bytes beyond_caches(Bytes most) {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return cache > 0 ? std::min<Bytes>(most, 16 * static_cast<Bytes>(cache)) : most;
}

// The book replays meanwhile, with library workspaces in plain memory.
class ReplayMode {
 public:
  explicit ReplayMode(TraceBook& book) : book_(book) {
    book_.place_library(nullptr, 0);
    book_.set_mode(TraceBook::Mode::kReplay);
  }
  ~ReplayMode() {
    book_.set_mode(TraceBook::Mode::kPlain);
    book_.place_library(nullptr, 0);
  }
  ReplayMode(const ReplayMode&) = delete;
  ReplayMode& operator=(const ReplayMode&) = delete;

 private:
  TraceBook& book_;
};

// State for updates of one side: a layer's, several times over, and a tiny one.
class UpdateSide {
 public:
  template <typename Memory>  // Bytes -> std::byte*, zero
  UpdateSide(const ModelSpec& spec, const RunShape& shape, Bytes most, UpdateKernels& kernels, const Memory& memory) {
    constexpr Bytes kElementBytes = 16;  // of both kinds of compute, about
    const UpdatePieces pieces = profile::layer_pieces(spec, most / kElementBytes);
    const UpdatePieces few = profile::layer_pieces(spec, 0);
    const auto layers = static_cast<std::int64_t>(spec.blocks.size());
    const auto copies = static_cast<int>(std::clamp<std::int64_t>(most / (kElementBytes * pieces.elements), 1, layers));
    std::byte* const at = memory(UpdateRig::bytes(spec, pieces, shape.compute, copies, shape.accumulation));
    layer_.emplace(spec, pieces, shape.compute, copies, shape.accumulation, kernels, at);
    tiny_.emplace(spec, few, shape.compute, 1, shape.accumulation, kernels, at);
  }
  UpdateRig& layer() { return *layer_; }
  UpdateRig& tiny() { return *tiny_; }

 private:
  std::optional<UpdateRig> layer_, tiny_;
};

// The host's, in memory of its own.
class HostSide {
 public:
  HostSide(const ModelSpec& spec, const RunShape& shape, Bytes most, Bytes budget, UpdateKernels& kernels)
      : side_(spec, shape, std::min({beyond_caches(most), host_memory_limit() / kHostShare, budget / 4 * 3}), kernels,
              [this](Bytes bytes) {
                state_.emplace(bytes);
                state_->touch();
                return state_->data();
              }) {}
  UpdateRig& layer() { return side_.layer(); }
  UpdateRig& tiny() { return side_.tiny(); }

 private:
  std::optional<HostMapping> state_;
  UpdateSide side_;
};

Rates::Linear host_update(HostSide& side, const Device& device, Stream& stream, const Pace& pace) {
  return profile::sustained_update_time(device, stream, side.layer(), side.tiny(), pace.host_settle, pace.host_updates);
}

class Measurement {
 public:
  Measurement(const RigModel& model, Device& device, UpdateKernels& device_kernels, UpdateKernels* host_kernels,
              Bytes budget, const TimingOptions& options)
      : model_(model),
        device_(device),
        device_kernels_(device_kernels),
        host_kernels_(host_kernels),
        budget_(budget),
        options_(options),
        pace_(device.kind() == DeviceKind::kCuda
                  ? gpu_pace(options.seconds * worth(model.spec, model.shape), !options.earlier.measured)
                  : cpu_pace()),
        compute_(device.stream("compute")) {}

  Rates run() {
    const Rates& earlier = options_.earlier;
    Rates rates = earlier.measured ? earlier : Rates{};
    rates.source = device_.name() + ", measured";
    rates.measured = true;
    rates.calls = profile::call_times(model_, device_, *compute_, budget_, pace_.calls,
                                      earlier.measured ? std::span(earlier.calls) : std::span<const Rates::Call>(),
                                      [this](const std::string& line) { say(line); });
    compute_->synchronize();
    give_back(model_, device_.kind());
    if (!earlier.measured) time_lanes(rates);
    return rates;
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  // For a copy each way: of `copy` bytes, or of fewer where the system does not let so much be pinned.
  PinnedBytes pin(Bytes& copy) const {
    for (;; copy = std::max(copy / 4 / kMiB, Bytes{1}) * kMiB) {
      try {
        return {2 * copy, device_.kind()};
      } catch (const Error&) {
        if (copy <= kMiB) throw;
      }
    }
  }

  void time_lanes(Rates& rates) {
    const auto h2d = device_.stream("h2d"), d2h = device_.stream("d2h"), gpu_update = device_.stream("gpu_update"),
               cpu_update = device_.host_stream("cpu_update");
    BlockRig block(model_, busiest_kind(model_), device_.kind(), *compute_);

    const Bytes left = std::max(budget_ - rig_bytes(model_, block.kind()), Bytes{0});
    const Bytes most_copied = std::min(left, options_.host_budget) / 8;
    Bytes copy = std::clamp<Bytes>(most_copied, kMiB, pace_.copy_bytes) / kMiB * kMiB;
    const PinnedBytes pinned = pin(copy);
    const DeviceBytes loaded(copy, device_.kind()), stored(copy, device_.kind());
    say(fmt::format("timing copies of {}", format_bytes(copy)));
    rates.h2d = profile::copy_time(device_, *h2d, loaded.get(), pinned.get(), copy, pace_.copies);
    rates.d2h = profile::copy_time(device_, *d2h, pinned.get() + copy, stored.get(), copy, pace_.copies);

    say("timing updates");
    DeviceBytes device_state;
    UpdateSide on_device(model_.spec, model_.shape, std::clamp<Bytes>(left / 4, kMiB, pace_.update_bytes),
                         device_kernels_, [&](Bytes bytes) {
                           device_state = DeviceBytes(bytes, device_.kind());
                           gpu_update->zero(device_state.get(), bytes);
                           gpu_update->synchronize();
                           return device_state.get();
                         });
    const UpdateTimes times =
        profile::update_times(device_, *gpu_update, on_device.layer(), on_device.tiny(), pace_.updates);
    rates.gpu_update = times.update;
    rates.norm = times.norm;
    rates.round = times.round;
    rates.finish_norm = times.finish_norm;

    std::optional<HostSide> on_host;
    if (host_kernels_ != nullptr) {
      on_host.emplace(model_.spec, model_.shape, pace_.host_update_bytes, options_.host_budget, *host_kernels_);
      rates.cpu_update = host_update(*on_host, device_, *cpu_update, pace_);
    } else {
      rates.cpu_update = rates.gpu_update;
    }

    std::vector<LaneLoad> loads = {
        {Lane::kCompute, compute_.get(), [&](Stream&) { block.forward_backward(); }, false, true},
        {Lane::kH2d, h2d.get(), [&](Stream& on) { on.copy(loaded.get(), pinned.get(), copy); }, true},
        {Lane::kD2h, d2h.get(), [&](Stream& on) { on.copy(pinned.get() + copy, stored.get(), copy); }, true},
        {Lane::kGpuUpdate, gpu_update.get(), [&](Stream& on) { on_device.layer().update(on); }, true}};
    if (on_host) {
      loads.push_back(
          {Lane::kCpuUpdate, cpu_update.get(), [&](Stream& on) { on_host->layer().update(on); }, true, true});
    }
    say("timing lanes beside each other");
    rates.slowdown = profile::slowdowns(device_, loads, overlap_pace(profile::windows(loads)));
    if (!on_host) copy_slowdown(rates, Lane::kGpuUpdate, Lane::kCpuUpdate);
    compute_->synchronize();
  }

  // What is left of the time, when making blocks took more of it than planned.
  OverlapPace overlap_pace(int windows) const {
    OverlapPace pace = pace_.overlap;
    if (device_.kind() == DeviceKind::kCpu) return pace;
    const double left = options_.seconds - seconds_since(begin_);
    const double share = std::clamp(left / (pace.warm + windows * (pace.settle + pace.window)), 0.1, 1.0);
    pace.settle *= share;
    pace.window *= share;
    pace.warm *= share;
    return pace;
  }

  static void copy_slowdown(Rates& rates, Lane from, Lane to) {
    const auto a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
    rates.slowdown[b] = rates.slowdown[a];
    for (auto& row : rates.slowdown) row[b] = row[a];
    rates.slowdown[a][b] = rates.slowdown[b][a] = rates.slowdown[b][b] = 1;
  }

  const RigModel& model_;
  Device& device_;
  UpdateKernels& device_kernels_;
  UpdateKernels* const host_kernels_;
  const Bytes budget_;
  const TimingOptions& options_;
  const Pace pace_;
  const Clock::time_point begin_ = Clock::now();
  const std::unique_ptr<Stream> compute_;
};

}  // namespace

Rates measure_rates(const ModelSpec& spec, std::span<const std::unique_ptr<Block>> blocks, TraceBook& book,
                    const RunShape& shape, const Profile& memory, Device& device, UpdateKernels& device_kernels,
                    UpdateKernels* host_kernels, Bytes device_budget, const TimingOptions& options) {
  PROTRAIN_CHECK(blocks.size() == spec.blocks.size() && book.mode() == TraceBook::Mode::kPlain);
  Rates rates;
  {
    const ReplayMode replay(book);
    const RigModel model{spec, blocks, book, shape, memory};
    rates = Measurement(model, device, device_kernels, host_kernels, device_budget, options).run();
  }
  release_plain_memory(device.kind());
  return rates;
}

Rates::Linear measure_host_update(const ModelSpec& spec, const RunShape& shape, Device& device,
                                  UpdateKernels& host_kernels, Bytes host_budget) {
  const Pace pace =
      device.kind() == DeviceKind::kCuda ? gpu_pace(TimingOptions{}.seconds * worth(spec, shape), true) : cpu_pace();
  HostSide side(spec, shape, pace.host_update_bytes, host_budget, host_kernels);
  const auto stream = device.host_stream("cpu_update");
  return host_update(side, device, *stream, pace);
}

}  // namespace protrain
