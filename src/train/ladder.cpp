#include "train/ladder.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "plan/plan_json.h"
#include "schedule/layout.h"

namespace protrain {
namespace {

class Ladder {
 public:
  Ladder(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const PlanKnobs& knobs,
         const MemoryLimits& limits)
      : spec_(spec),
        shape_(shape),
        profile_(profile),
        knobs_(knobs),
        limits_(limits),
        body_(knobs.body_chunks(spec, shape.compute)) {}

  LadderResult run() {
    descend();
    if (!best_) fail(ExitCode::kConfig, "{}", refusal_);
    const Tried& taken = chosen_ ? *chosen_ : *best_;
    LadderResult result = {taken.memory, taken.missing, describe(spec_, taken.memory)};
    if (!first_->missing.fits() && taken.missing.fits()) {
      result.reason += fmt::format("; with {}: {}", describe(spec_, first_->memory),
                                   describe(first_->missing, MemoryNeed(first_->memory.layout), limits_));
    }
    return result;
  }

 private:
  struct Tried {
    PlannedMemory memory;
    Shortfall missing;
  };

  // Null where the user's knobs refuse the rung.
  const Tried* attempt(const Rung& rung) {
    try {
      Plan plan = knobs_.plan(spec_, shape_.compute, rung);
      const std::string key = plan_json(plan, Layout{});
      auto found = tried_.find(key);
      if (found == tried_.end()) {
        Tried tried{plan_memory(spec_, shape_, profile_, std::move(plan)), {}};
        tried.missing = shortfall(MemoryNeed(tried.memory.layout), limits_);
        found = tried_.emplace(key, std::move(tried)).first;
        if (!first_) first_ = &found->second;
        const auto lack = [](const Tried& one) { return std::pair(one.missing.device, one.missing.host); };
        if (!best_ || lack(found->second) < lack(*best_)) best_ = &found->second;
      }
      return &found->second;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig) throw;
      if (refusal_.empty()) refusal_ = error.what();
      return nullptr;
    }
  }

  bool fits(const Rung& rung) {
    const Tried* tried = attempt(rung);
    if (tried == nullptr || !tried->missing.fits()) return false;
    chosen_ = tried;
    return true;
  }
  bool fits_device(const Rung& rung) {
    const Tried* tried = attempt(rung);
    return tried != nullptr && tried->missing.device == 0;
  }

  // The largest count below `body_` for which the device has room, found as if need grew with it; -1 if not even 0.
  int most(const std::function<Rung(int)>& rung) {
    if (!fits_device(rung(0))) return -1;
    int fitting = 0, too_many = std::max(body_, 1);
    while (too_many - fitting > 1) {
      const int middle = fitting + (too_many - fitting) / 2;
      (fits_device(rung(middle)) ? fitting : too_many) = middle;
    }
    return fitting;
  }

  // The first rung that fits, with as much on the device as there is room for.
  bool try_most(const std::function<Rung(int)>& rung) {
    const int count = most(rung);
    return count >= 0 && fits(rung(count));
  }

  void descend() {
    using enum Activation;
    const Switch recompute = knobs_.sets_activation() ? Switch::kFalse : knobs_.recompute();
    const bool keeps = recompute != Switch::kTrue;
    const Activation lean = recompute == Switch::kFalse ? kKeep : kRecompute;
    const auto on_device = [&](Activation mode, int persist, int resident) {
      return Rung{mode, persist, resident, UpdatePlace::kResident, false};
    };
    if (keeps && fits(on_device(kKeep, body_, body_))) return;
    if (fits(on_device(lean, body_, body_))) return;
    if (try_most([&](int count) { return on_device(lean, body_, count); })) return;
    if (fits(Rung{lean, body_, 0, UpdatePlace::kCpu, false})) return;
    for (const Activation mode : {lean, kRecomputeHost}) {
      if (mode == kRecomputeHost && lean != kRecompute) break;
      for (const bool fewest : {false, true}) {
        // Streamed, then with states of persistent chunks on the device where the host is what lacks.
        if (try_most([&](int count) { return Rung{mode, count, 0, UpdatePlace::kCpu, fewest}; })) return;
        if (try_most([&](int count) { return Rung{mode, count, count, UpdatePlace::kCpu, fewest}; })) return;
      }
    }
  }

  const ModelSpec& spec_;
  const RunShape& shape_;
  const Profile& profile_;
  const PlanKnobs& knobs_;
  const MemoryLimits& limits_;
  const int body_;
  std::map<std::string, Tried> tried_;
  const Tried* first_ = nullptr;
  const Tried* best_ = nullptr;    // lacks least
  const Tried* chosen_ = nullptr;  // fits
  std::string refusal_;
};

}  // namespace

PlannedMemory plan_memory(const ModelSpec& spec, const RunShape& shape, const Profile& profile, Plan plan) {
  PlannedMemory memory;
  memory.chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
  memory.layout = layout(spec, memory.chunks, shape, profile, plan);
  memory.plan = std::move(plan);
  memory.plan.predicted_device_bytes = memory.layout.bytes(Tier::kDevice);
  return memory;
}

LadderResult climb_down(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const PlanKnobs& knobs,
                        const MemoryLimits& limits) {
  return Ladder(spec, shape, profile, knobs, limits).run();
}

std::string describe(const ModelSpec& spec, const PlannedMemory& memory) {
  const Plan& plan = memory.plan;
  const auto body = static_cast<int>(std::ranges::count(memory.chunks, BlockKind::kLayer, &Chunk::kind));
  const auto on_host = std::ranges::count(plan.place, UpdatePlace::kCpu);
  std::string text = plan.n_persist >= body ? "all weights on the device"
                                            : fmt::format("{} of {} layer chunks streamed through {} slots",
                                                          body - plan.n_persist, body, plan.n_buffer);
  text += on_host == 0 ? ", all updates there"
                       : fmt::format(", updates of {} of {} chunks on the host", on_host, memory.chunks.size());
  std::map<Activation, int> modes;
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    if (spec.blocks[block].kind == BlockKind::kLayer) ++modes[plan.activation[block]];
  }
  text += ", activations";
  const char* separator = " ";
  for (const auto& [mode, count] : modes) {
    text += modes.size() == 1 ? fmt::format(" {}", activation_name(mode))
                              : fmt::format("{}{} {}", std::exchange(separator, ", "), count, activation_name(mode));
  }
  return text;
}

}  // namespace protrain
