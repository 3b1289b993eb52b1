// Which regions a plan has, and how large they are.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/facts.h"

namespace protrain {

namespace {

class Regions {
 public:
  explicit Regions(const Facts& facts) : facts_(facts) {}

  Layout collect() {
    states();
    fixed();
    if (!facts_.shape.train_shapes.empty()) training();
    if (!facts_.shape.eval_shapes.empty()) evaluation();
    Layout layout;
    for (const auto& [key, entry] : entries_) layout.entries.push_back(entry);
    return layout;
  }

 private:
  // The largest of all that ask for it; nothing for 0 bytes.
  void add(Region region, Id index, Tier tier, Bytes bytes, bool whole_run) {
    if (bytes == 0) return;
    auto& entry = entries_.try_emplace({region, index}, Layout::Entry{region, index, {tier, 0, 0}, whole_run, false})
                      .first->second;
    PROTRAIN_CHECK(entry.range.tier == tier && entry.whole_run == whole_run, "{} {} is of two kinds",
                   region_name(region), index);
    entry.range.bytes = std::max(entry.range.bytes, bytes);
  }

  void states() {
    for (Id id = 0; id < static_cast<Id>(facts_.chunks.size()); ++id) {
      const std::int64_t elements = facts_.chunks[id].elements;
      const bool host = facts_.on_host(id);
      const auto state = [&](Part part, Tier tier, bool whole_run) {
        add(Region::kState, id * kParts + static_cast<Id>(part), tier, elements * facts_.element(part), whole_run);
      };
      state(Part::kWeight, host ? Tier::kPinned : Tier::kDevice, true);
      for (const Part part : {Part::kResidual, Part::kM, Part::kV}) {
        if (part == Part::kResidual && facts_.shape.compute == DType::kF32) continue;
        state(part, host ? facts_.plan.state_tier : Tier::kDevice, true);
      }
      if (host) state(Part::kGradient, Tier::kPinned, true);
      const auto& [sum, wire, sum_dtype] = facts_.gradients[id];
      // Slots belong to nobody else, though they are free most of the time: compute would wait for the way out of what
      // lies in bytes that it wants next.
      const auto gradient = [&](const RegionKey& key, DType dtype) {
        add(key.region, key.index, Tier::kDevice, elements * size_of(dtype), key.region == Region::kGradientSlot);
      };
      gradient(sum, sum_dtype);
      gradient(wire, part_dtype(Part::kGradient, facts_.shape.compute));
      const RegionKey weight = weight_region(facts_.plan, facts_.slots, id);
      add(weight.region, weight.index, Tier::kDevice, elements * facts_.element(Part::kWeight), true);
    }
  }

  void fixed() {
    const RunShape& shape = facts_.shape;
    std::int64_t largest = 0;
    for (const ParameterSpec& parameter : facts_.spec.parameters) largest = std::max(largest, parameter.elements());
    const auto doubles = [](std::int64_t count) { return count * Bytes{sizeof(double)}; };
    add(Region::kNorms, 0, Tier::kDevice, doubles(static_cast<std::int64_t>(facts_.spec.parameters.size())), true);
    add(Region::kNorms, 1, Tier::kDevice, doubles(ceil_div(largest, kNormPartialElements)), true);
    add(Region::kLosses, 0, Tier::kDevice, doubles(std::max(shape.accumulation, shape.eval_micro_batches)), true);
    for (Id index = 0; index < (facts_.any_on_host() ? 2 : 1); ++index) {
      add(Region::kControl, index, Tier::kDevice, kControlBytes, true);
    }
    for (Id index = 0; index < (facts_.any_on_host() ? 3 : 2); ++index) {
      add(Region::kResults, index, Tier::kPinned, kControlBytes, true);
    }
    add(Region::kTables, 0, Tier::kDevice, facts_.profile.tables, true);
    add(Region::kLibrary, 0, Tier::kDevice, facts_.profile.library_workspace, true);
  }

  void batches(const BatchShape& batch, std::int64_t micro_batches) {
    for (Id slot = 0; slot < 2; ++slot) {
      add(Region::kBatch, slot, Tier::kDevice, batch_layout(batch).bytes * micro_batches, true);
      add(Region::kBatchStaging, slot, Tier::kPinned, batch_layout(batch).bytes * micro_batches, true);
    }
  }

  Bytes activation_bytes(const BatchShape& batch) const {
    return batch.tokens() * facts_.spec.hidden * size_of(facts_.shape.compute);
  }

  void training() {
    const auto sets = static_cast<Id>(facts_.plan.order == Order::kLayer ? facts_.shape.accumulation : 1);
    for (const BatchShape& batch : facts_.shape.train_shapes) {
      batches(batch, facts_.shape.accumulation);
      const Bytes bytes = activation_bytes(batch);
      for (Id block = 0; block < facts_.blocks; ++block) {
        const bool head = block + 1 == facts_.blocks;
        const ActivationTraits& mode = facts_.mode(block);
        const auto call = [&](Pass pass) { return facts_.memory(block, pass, batch, true); };
        const auto workspace = [&](Pass pass) {
          add(Region::kWorkspace, facts_.workspace_index(block, static_cast<int>(pass)), Tier::kDevice,
              call(pass).workspace, false);
        };
        if (mode.recompute) workspace(Pass::kForward);
        if (!head) workspace(Pass::kForwardKeep);
        workspace(Pass::kBackward);
        const Bytes saved = head ? 0 : call(Pass::kForwardKeep).saved;
        for (Id m = 0; m < sets; ++m) {
          const Id index = facts_.activation_index(block, m);
          add(Region::kSaved, index, Tier::kDevice, saved, false);
          if (block > 0) {
            add(Region::kBlockInput, index, Tier::kDevice, bytes, false);
            add(Region::kInputGradient, index, Tier::kDevice, bytes, false);
          }
          if (mode.offload_saved) add(Region::kHostSaved, index, Tier::kPinned, saved, false);
          if (mode.offload_input) add(Region::kHostInput, index, Tier::kPinned, bytes, false);
        }
      }
    }
  }

  void evaluation() {
    const auto sets = static_cast<Id>(facts_.plan.order == Order::kLayer ? facts_.shape.eval_micro_batches : 1);
    for (const BatchShape& batch : facts_.shape.eval_shapes) {
      batches(batch, facts_.shape.eval_micro_batches);
      for (Id block = 0; block < facts_.blocks; ++block) {
        add(Region::kWorkspace, facts_.workspace_index(block, 3), Tier::kDevice,
            facts_.memory(block, Pass::kForward, batch, false).workspace, false);
        for (Id m = 0; block > 0 && m < sets; ++m) {
          add(Region::kBlockInput, facts_.evaluation_index(block, m), Tier::kDevice, activation_bytes(batch), false);
        }
      }
    }
  }

  const Facts& facts_;
  std::map<std::pair<Region, Id>, Layout::Entry> entries_;
};

}  // namespace

Layout regions(const Facts& facts) { return Regions(facts).collect(); }

}  // namespace protrain
