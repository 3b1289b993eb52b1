#include <algorithm>
#include <array>

#include "base/error.h"
#include "plan/plan.h"

namespace protrain {

namespace {

constexpr int kTiers = 4;

bool before(const Layout::Entry& a, const Layout::Entry& b) {
  return a.region != b.region ? a.region < b.region : a.index < b.index;
}

const Layout::Entry* search(const Layout& layout, Region region, Id index) {
  const Layout::Entry wanted{region, index, {}};
  const auto found = std::lower_bound(layout.entries.begin(), layout.entries.end(), wanted, before);
  if (found == layout.entries.end() || found->region != region || found->index != index) return nullptr;
  return &*found;
}

std::int64_t largest_tokens(const std::vector<BatchShape>& shapes) {
  std::int64_t most = 0;
  for (const BatchShape& shape : shapes) most = std::max(most, shape.tokens());
  return most;
}

Bytes largest_batch(const std::vector<BatchShape>& shapes) {
  Bytes most = 0;
  for (const BatchShape& shape : shapes) most = std::max(most, batch_layout(shape).bytes);
  return most;
}

// Every region lives for the whole run: ranges are handed out one after the other.
class Builder {
 public:
  void add(Region region, Id index, Tier tier, Bytes bytes) {
    Bytes& end = end_[static_cast<int>(tier)];
    layout_.entries.push_back({region, index, {tier, end, bytes}});
    end += round_up(bytes, kAlignment);
  }
  Layout take() {
    std::sort(layout_.entries.begin(), layout_.entries.end(), before);
    return std::move(layout_);
  }

 private:
  Layout layout_;
  std::array<Bytes, kTiers> end_{};
};

void add_states(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, Builder& builder) {
  for (Id id = 0; id < static_cast<Id>(chunks.size()); ++id) {
    const Chunk& chunk = chunks[id];
    const bool sums = accumulates(spec, shape, chunk.parameters.front());
    for (const Id parameter : chunk.parameters) {
      PROTRAIN_CHECK(accumulates(spec, shape, parameter) == sums, "chunk {} mixes kinds of gradients", id);
    }
    for (int i = 0; i < kParts; ++i) {
      const Part part = static_cast<Part>(i);
      if (part == Part::kResidual && shape.compute == DType::kF32) continue;
      if (part == Part::kAccumulator && !sums) continue;
      builder.add(Region::kState, id * kParts + i, Tier::kDevice,
                  chunk.elements * size_of(part_dtype(part, shape.compute)));
    }
  }
}

}  // namespace

std::string_view region_name(Region region) {
  switch (region) {
    case Region::kState: return "state";
    case Region::kBlockInput: return "block_input";
    case Region::kInputGradient: return "input_gradient";
    case Region::kBatch: return "batch";
    case Region::kLosses: return "losses";
    case Region::kNorms: return "norms";
    case Region::kControl: return "control";
    case Region::kBatchStaging: return "batch_staging";
    case Region::kResults: return "results";
  }
  return "?";
}

Range Layout::find(Region region, Id index) const {
  const Entry* entry = search(*this, region, index);
  PROTRAIN_CHECK(entry != nullptr, "the layout has no {} {}", region_name(region), index);
  return entry->range;
}

bool Layout::contains(Region region, Id index) const { return search(*this, region, index) != nullptr; }

Bytes Layout::bytes(Tier tier) const {
  Bytes most = 0;
  for (const Entry& entry : entries) {
    if (entry.range.tier == tier) most = std::max(most, entry.range.offset + entry.range.bytes);
  }
  return most;
}

Layout layout(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan) {
  validate(spec, shape, plan);
  const auto blocks = static_cast<Id>(spec.blocks.size());
  const Bytes token_bytes = spec.hidden * size_of(shape.compute);
  const Bytes train_bytes = largest_tokens(shape.train_shapes) * token_bytes;
  const Bytes eval_bytes = largest_tokens(shape.eval_shapes) * token_bytes;
  const Bytes batch_bytes = std::max(largest_batch(shape.train_shapes) * shape.accumulation,
                                     largest_batch(shape.eval_shapes) * shape.eval_micro_batches);
  const std::int64_t losses = std::max(shape.accumulation, shape.eval_micro_batches);

  Builder builder;
  add_states(spec, chunks, shape, builder);
  for (Id block = 1; block < blocks; ++block) {
    builder.add(Region::kBlockInput, block, Tier::kDevice,
                block <= 2 ? std::max(train_bytes, eval_bytes) : train_bytes);
  }
  for (Id index = 0; index < std::min<Id>(2, blocks - 1); ++index) {
    builder.add(Region::kInputGradient, (index + 1) % 2, Tier::kDevice, train_bytes);
  }
  std::int64_t largest = 0;
  for (const ParameterSpec& parameter : spec.parameters) largest = std::max(largest, parameter.elements());
  builder.add(Region::kNorms, 0, Tier::kDevice, static_cast<Bytes>(spec.parameters.size() * sizeof(double)));
  builder.add(Region::kNorms, 1, Tier::kDevice, ceil_div(largest, kNormPartialElements) * Bytes{sizeof(double)});
  builder.add(Region::kLosses, 0, Tier::kDevice, losses * Bytes{sizeof(double)});
  builder.add(Region::kControl, 0, Tier::kDevice, kControlBytes);
  builder.add(Region::kResults, 0, Tier::kPinned, kControlBytes);
  for (Id slot = 0; slot < 2; ++slot) {
    builder.add(Region::kBatch, slot, Tier::kDevice, batch_bytes);
    builder.add(Region::kBatchStaging, slot, Tier::kPinned, batch_bytes);
  }
  return builder.take();
}

}  // namespace protrain
